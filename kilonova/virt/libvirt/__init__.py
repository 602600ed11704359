"""The libvirt driver for kvm and qemu guests. It also supports libvirt's test driver, whose hosts are files."""
