"""CPUs, memory and virtual hardware of hosts and guests, in code that is independent of any hypervisor."""
