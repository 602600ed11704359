"""Clients of the neighbour services, each over one keystoneauth1 adapter."""
