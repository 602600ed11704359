"""What Neutron has, by noun, with the calls of ``network.NetworkClient`` for it."""
