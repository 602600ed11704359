"""Queries to Placement for candidates, and claims: the allocations that the scheduler writes to Placement."""
