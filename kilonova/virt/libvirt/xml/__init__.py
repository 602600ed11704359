"""Typed elements of a domain's XML: dataclasses that know how they are written, and nothing else."""
