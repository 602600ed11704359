"""Protocols of a hypervisor driver, one file for each subject, such as power. ``virt.driver`` combines them."""
