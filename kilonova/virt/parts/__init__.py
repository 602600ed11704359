"""Protocols of the parts of a driver, one file for each subject. ``virt.driver`` combines the protocols."""
