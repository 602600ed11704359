"""Kilonova, a compute control plane for clouds whose servers use GPUs."""
