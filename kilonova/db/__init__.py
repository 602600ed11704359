"""The only floor that speaks SQL: engine, models, queries and migrations of API and cell databases."""
