"""Hypervisors: the seam (driver) and what its parts promise (parts), a fake (fake, of fakes) and the libvirt driver
(libvirt)."""
