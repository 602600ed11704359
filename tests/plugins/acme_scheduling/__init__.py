"""What Acme wants of its schedulers."""
