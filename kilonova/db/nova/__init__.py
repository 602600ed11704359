"""Read the databases of a running Nova, so that its cloud can become one of Kilonova (``kilonova.adopt``).

Nothing here can write: each connection is read-only. Tables and columns of Nova 27 to 34 are read as they are.
"""
