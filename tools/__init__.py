"""Programs of the Makefile. Only ``deadcode`` (vulture) and ``coverage_floors`` (coverage) need a library."""
