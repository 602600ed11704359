"""Live migration of guests."""
