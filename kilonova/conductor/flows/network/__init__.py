"""Flows, and functions for steps of flows, that create, bind and release the Neutron ports of servers."""
