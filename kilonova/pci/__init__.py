"""The devices that servers hold: PCI functions and mediated devices. The modules use neither libvirt nor SQL.

- ``address`` and ``spec`` parse the configuration, which says what devices an operator offers.
- ``request`` parses the devices that a flavor requests.
- ``pools`` counts free devices. The scheduler and the compute use this module.
- ``devices`` compares the devices of a host with their rows in the database.
- ``kinds`` defines the differences between PCI functions and mediated devices.
- ``placement`` describes devices as resource providers.
- ``sysfs`` reads from the kernel those properties of devices that libvirt does not report.

The module ``compute.tracker`` decides which server holds which device.
"""
