"""The audit: compares databases, Placement, libvirt, Neutron, Cinder and Cyborg."""
