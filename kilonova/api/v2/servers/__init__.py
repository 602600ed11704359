"""The resource ``/servers``, one module for each kind of request.

Sub-resources and most actions of servers are modules of ``kilonova.api.v2``.
"""

from __future__ import annotations

from kilonova.api.v2.servers import change, create, lists, rebuild, show

# The sample policy file has the rules in this order.
RULES = (*lists.RULES, *show.RULES, *create.RULES, *change.RULES, *rebuild.RULES)
ROUTES = (*show.ROUTES, *lists.ROUTES, *create.ROUTES, *change.ROUTES, *rebuild.ROUTES)
