"""Live migrations of a server that are under way."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import server_parts as policies
from kilonova.api.services import server_migrations as service
from kilonova.api.views import server_migrations as views
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /servers/{server_id}/migrations."""
    server: Any = call.server
    look = views.Look(hosts=call.may(policies.MIGRATIONS_HOST))
    return {'migrations': [views.FIELDS.render(row, look, call.version) for row in service.under_way(server)]}


def show(call: Call) -> Any:
    """GET /servers/{server_id}/migrations/{migration_id}."""
    server: Any = call.server
    row = service.one(server, call.path['migration_id'])
    return {'migration': views.FIELDS.render(row, views.Look(hosts=True), call.version)}
