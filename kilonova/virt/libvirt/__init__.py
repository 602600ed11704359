"""The libvirt driver: kvm and qemu guests, and libvirt's own test driver for hosts that are a file."""
