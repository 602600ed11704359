"""Servers, a file an act. What is looked at or done below a server is a noun of its own."""
from __future__ import annotations

from kilonova.api.v2.servers import change, create, lists, rebuild, show

# In the order of the sample of policies.
RULES = (*lists.RULES, *show.RULES, *create.RULES, *change.RULES, *rebuild.RULES)
ROUTES = (*show.ROUTES, *lists.ROUTES, *create.ROUTES, *change.ROUTES, *rebuild.ROUTES)
