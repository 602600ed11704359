"""The operations of the compute service, one module per kind: the steps that a host executes, and their undos."""
