"""Candidates for a request, and claims in Placement."""
