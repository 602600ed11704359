"""Start and end of the daemons: options first, then services, signals, workers and health."""
