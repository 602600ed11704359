"""PCI passthrough: parsing and decisions, no libvirt and no SQL.

``address`` and ``spec`` say which devices an operator gives out, ``request`` what a flavor asks for,
``pools`` counts what is free (scheduler and compute), ``tracker`` is one host's ledger of devices,
``placement`` the devices as resource providers, ``sysfs`` the two facts that only the kernel knows.
"""
