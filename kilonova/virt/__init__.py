"""Hypervisor drivers: the interface (``driver``, ``parts``), a fake (``fake``, ``fakes``) and the libvirt driver."""
