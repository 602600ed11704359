"""Filters, weighers and prefilters of operators: how they are loaded, named and guarded."""
