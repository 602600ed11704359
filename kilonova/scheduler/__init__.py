"""The scheduler: it chooses a host for each requested server.

``placement.query`` turns a request into a query to Placement, ``hosts.snapshot`` reads the hosts, ``select`` chooses
among them with filters and weighers, and ``placement.claims`` writes the choice into Placement. ``manager`` is the RPC
endpoint with the method ``select_destinations``.
"""
