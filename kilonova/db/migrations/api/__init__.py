"""Alembic revisions of the API database's schema."""
