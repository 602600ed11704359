"""The conductor: runs operations from their rows, and answers for the database to those that have none."""
