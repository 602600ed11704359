"""The objects of Neutron, one module for each kind, with the calls of ``network.NetworkClient`` for it."""
