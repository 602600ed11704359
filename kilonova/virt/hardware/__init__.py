"""CPUs, memory and boards of hosts and guests, independent of any hypervisor."""
