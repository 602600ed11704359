"""JSON schemas for bodies and queries of requests, and the check of requests against them."""
