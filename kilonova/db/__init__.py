"""The only package that contains SQL: engine, models, queries and migrations of API and cell databases."""
