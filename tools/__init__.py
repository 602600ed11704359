"""What a developer or an operator runs from the Makefile; only the standard library is used (and vulture, by ``deadcode``)."""
