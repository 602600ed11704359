"""Conductor daemon: runs operations from their database rows, and reads and writes databases for the computes."""
