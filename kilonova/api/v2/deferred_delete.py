"""Actions on soft-deleted servers: restore and forceDelete."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import delete
from kilonova.api.wsgi import Call


def restore(call: Call) -> None:
    """restore."""
    server: Any = call.server
    delete.restore(call.backend, call.ctxt, server)


def force_delete(call: Call) -> None:
    """forceDelete: also a server that isn't soft-deleted."""
    server: Any = call.server
    delete.delete(call.backend, call.ctxt, server, at_once=True)
