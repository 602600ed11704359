"""A guest's definition, one subject a file; ``builder`` has the list."""
