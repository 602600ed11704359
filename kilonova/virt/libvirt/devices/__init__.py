"""Devices that guests get, as data: the host's devices, ports and volumes.

Only the configurators in ``domain`` know how they are written in a domain's XML.
"""
