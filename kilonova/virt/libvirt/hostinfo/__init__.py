"""Capabilities, options and inventory of a host."""
