"""Explanations for administrators: why a request got its host or none, stored decisions, and dry runs."""
