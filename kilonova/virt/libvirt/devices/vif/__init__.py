"""Ports that the compute service itself connects to Open vSwitch on this host."""
