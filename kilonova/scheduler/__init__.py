"""The scheduler: from a request to hosts.

``query`` turns the request into a question to Placement, ``snapshot`` reads the hosts of its answer, ``select`` chooses
with filters and weighers (data in, plan out), ``claims`` writes the choice into Placement, ``manager`` is the RPC
endpoint.
"""
