"""Revisions of the api schema."""
