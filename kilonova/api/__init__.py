"""The compute REST API v2.1 (WSGI), with Kilonova's own API under /kilonova/v1.

``routes`` maps requests to the handlers in ``v2`` and ``v1``. The handlers call functions in ``services`` and
``db.queries``.
"""
