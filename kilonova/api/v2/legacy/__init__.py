"""API resources of old microversions: proxies for Glance, Cinder and Neutron, and the resource os-hosts."""
