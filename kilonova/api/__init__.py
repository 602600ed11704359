"""The compute REST API v2.1 (WSGI), with Kilonova's own API under /kilonova/v1.

``routes`` maps requests to handlers. The package ``v2`` has the handlers of the compute API, and the package ``own``
has the handlers of Kilonova's own API. The handlers call functions in ``services`` and ``db.queries``.
"""
