"""Alembic revisions of the cell databases' schema."""
