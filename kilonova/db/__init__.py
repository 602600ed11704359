"""The only package that contains SQL: connections, models, queries and migrations of the API and cell databases."""
