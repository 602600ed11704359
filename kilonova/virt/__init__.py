"""Hypervisors: the seam (driver) and what its parts promise (parts), a fake of it (fake) and the libvirt driver
(libvirt)."""
