"""The scheduler: it chooses a host for each requested server.

``query`` turns a request into a query to Placement, ``snapshot`` reads the hosts of Placement's answer, ``select``
chooses among them with filters and weighers, ``claims`` writes the choice into Placement, and ``manager`` is the RPC
endpoint. ``select`` gets data and returns a plan. In this package "a select" is one call of ``select_destinations``.
"""
