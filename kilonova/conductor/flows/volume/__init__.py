"""Flows and steps for volumes."""
