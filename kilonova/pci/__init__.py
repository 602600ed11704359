"""Devices that servers hold: parsing of configuration and requests, and decisions, without libvirt and SQL.

``address`` and ``spec`` define which devices an operator offers, ``request`` what a flavor asks for. ``pools`` counts
free devices (scheduler and compute). ``devices`` compares a host's devices with their rows, ``kinds`` has what differs
between kinds of devices, ``placement`` describes devices as resource providers. ``sysfs`` reads what only the kernel
knows. ``compute.tracker`` plans which server holds which device.
"""
