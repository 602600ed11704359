"""Taking over a running Nova: its options.

``kilonova-manage adopt`` calls this package. Nova's files and databases are read, and never changed.
"""
