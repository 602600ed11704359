"""The acceptance suite of the field (Tempest) against the one-machine cloud: ``make tempest``."""
