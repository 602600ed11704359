"""The encrypted password that a server's guest left."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import server_password as service
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /servers/{server_id}/os-server-password."""
    server: Any = call.server
    return {'password': service.read(server)}


def clear(call: Call) -> None:
    """DELETE /servers/{server_id}/os-server-password."""
    server: Any = call.server
    service.clear(server)
