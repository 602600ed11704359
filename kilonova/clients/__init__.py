"""Clients of the other OpenStack services. Each client uses one keystoneauth1 adapter."""
