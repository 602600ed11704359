"""The NUMA topology of a server."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import server_parts as policies
from kilonova.api.views import server_topology as views
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /servers/{server_id}/topology."""
    server: Any = call.server
    # A server without a cell has asked for a topology at most: it has none yet.
    return views.topology(server.row.get('extra_numa_topology'), host=call.may(policies.TOPOLOGY_HOST))
