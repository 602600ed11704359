"""The nested machine of ``make test-vfio``: vfio-pci, SR-IOV and mediated devices without any such hardware."""
