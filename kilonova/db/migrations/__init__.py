"""Alembic revisions of the API and cell schemas. ``kilonova.db.migration`` runs them."""
