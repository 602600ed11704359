"""Classes for the elements of a domain's XML."""
