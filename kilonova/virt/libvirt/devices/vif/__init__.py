"""Ports that the host itself connects to its Open vSwitch."""
