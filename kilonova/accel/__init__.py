"""Accelerators of Cyborg: device profiles, which flavors name, and requests for accelerators, which servers hold."""
