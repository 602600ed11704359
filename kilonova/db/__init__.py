"""The only floor that speaks SQL: engine, table models, queries and migrations of the API and the cell databases."""
