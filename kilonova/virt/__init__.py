"""Hypervisors: one small protocol (driver), a fake of it (fake) and the libvirt driver (libvirt)."""
