"""Typed elements of a domain's XML."""
