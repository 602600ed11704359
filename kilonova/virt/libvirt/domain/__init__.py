"""A guest's definition: what it is made from, and the configurators that write it; ``builder`` has the list."""
