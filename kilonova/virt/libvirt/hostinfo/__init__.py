"""Data about a host: its capabilities as libvirt reports them, its [libvirt] options, and its inventory."""
