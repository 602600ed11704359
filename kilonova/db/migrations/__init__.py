"""Revisions of the two schemas, run by ``kilonova.db.migration``."""
