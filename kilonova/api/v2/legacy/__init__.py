"""Proxies to Glance, Cinder and Neutron, and os-hosts: what clients of old microversions call."""
