"""What a host's processors and memory look like, without any hypervisor's words."""
