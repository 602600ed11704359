"""The audit: it compares the records in databases, Placement, libvirt, Neutron, Cinder and Cyborg with each other."""
