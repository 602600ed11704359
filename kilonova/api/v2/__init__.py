"""The resources of the compute API (``/v2.1``), one module each. ``kilonova.api.routes`` collects their routes.

A module holds the resource's policy rules, request schemas, response fields, handlers and routes. The dispatcher calls
a handler after it has checked the request schema, found the server that the path names, and checked the policy rule.
The handler returns the response body.
"""
