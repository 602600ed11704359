"""Revisions of the cell schema."""
