"""Code that all daemons share: their start and end, service records, signals, worker processes and health checks."""
