"""A guest's definition: its input data, and the configurators that write it as a domain. ``builder`` lists them."""
