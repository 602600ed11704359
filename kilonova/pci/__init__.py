"""Devices that servers hold: parsing of configuration and requests, and decisions. Uses neither libvirt nor SQL.

``address`` and ``spec`` define which devices an operator offers, ``request`` defines what a flavor asks for. ``pools``
counts free devices (in scheduler and compute). ``devices`` compares the devices that a host has with their rows in the
database. ``kinds`` has the differences between PCI functions and mediated devices. ``placement`` describes devices as
resource providers. ``sysfs`` reads device properties from the kernel that libvirt does not report. ``compute.tracker``
decides which server holds which device.
"""
