"""What the hypervisor measures of a server."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import ask_host
from kilonova.api.views import server_diagnostics as views
from kilonova.api.wsgi import Call


def flat(call: Call) -> Any:
    """GET /servers/{server_id}/diagnostics, up to 2.47: what the driver calls it."""
    server: Any = call.server
    return ask_host.ask(call.backend, call.ctxt, server, 'get_diagnostics')


def show(call: Call) -> Any:
    """GET /servers/{server_id}/diagnostics, from 2.48 on: the same keys of every driver."""
    server: Any = call.server
    return views.show(ask_host.ask(call.backend, call.ctxt, server, 'get_instance_diagnostics'))
