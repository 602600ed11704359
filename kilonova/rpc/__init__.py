"""RPC between the daemons. ``interface`` declares the methods, and ``transport`` carries the messages."""
