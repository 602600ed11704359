"""What a developer or an operator runs from the Makefile, with the standard library alone (``deadcode``: vulture)."""
