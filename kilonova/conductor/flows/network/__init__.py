"""Flows and steps for ports."""
