"""Use cases that more than one noun or daemon needs, or that are too long for their noun's file: what a request means,
without HTTP and without SQL. Each takes the ``Backend`` and the context first."""
