"""Programs that developers and operators run from the Makefile. Only ``deadcode`` needs a library (vulture)."""
