"""Devices that servers hold: parsing and decisions, no libvirt and no SQL.

``address`` and ``spec`` say which devices an operator gives out, ``request`` what a flavor asks for,
``pools`` counts what is free (scheduler and compute), ``devices`` is what a host has against what rows say, ``kinds``
what is PCI's own in that, ``placement`` the devices as resource providers, ``sysfs`` the two facts that only the kernel
knows. Who holds what is planned in ``compute.tracker``.
"""
