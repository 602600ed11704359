"""RPC between the daemons. ``interface`` is used to declare RPC methods, and ``transport`` sends the messages."""
