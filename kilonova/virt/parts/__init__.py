"""What the parts of a driver promise, a subject each; ``virt.driver`` puts them together."""
