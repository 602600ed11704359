"""Use cases: what a request means, without HTTP and without SQL. Each takes the ``Backend`` and the context first."""
