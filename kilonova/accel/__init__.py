"""Accelerators of Cyborg: device profiles, which flavors name, and accelerator requests, which servers hold."""
