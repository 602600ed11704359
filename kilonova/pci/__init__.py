"""Devices that servers hold: parsing of configuration and requests, and decisions. Uses neither libvirt nor SQL.

``address`` and ``spec`` define which devices an operator offers, ``request`` defines what a flavor asks for. ``pools``
counts free devices (in scheduler and compute). ``devices`` compares a host's devices with their rows. ``kinds`` has the
differences between PCI functions and mediated devices. ``placement`` describes devices as resource providers. ``sysfs``
reads properties that only the kernel has. ``compute.tracker`` decides which server holds which device.
"""
