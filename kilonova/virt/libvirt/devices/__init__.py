"""Devices of guests: the host's devices, ports and volumes.

The package ``domain`` writes them into the domain's XML.
"""
