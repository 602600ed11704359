"""The objects of Neutron, one module for each kind. Each module has the calls of ``NetworkClient`` for its kind."""
