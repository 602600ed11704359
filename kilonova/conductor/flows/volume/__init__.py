"""Flows, and functions for steps of flows, that attach, detach and replace the Cinder volumes of servers."""
