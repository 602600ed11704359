"""RPC between the daemons: interfaces declared once (``interface``), carried by a transport (``transport``)."""
