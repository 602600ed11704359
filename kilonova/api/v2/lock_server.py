"""lock and unlock."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import lock_server as policies
from kilonova.api.services import lock_server as service
from kilonova.api.wsgi import Call

REASON_SINCE = 73


def lock(call: Call) -> None:
    """lock; from 2.73 on perhaps with a reason."""
    server: Any = call.server
    body = call.body['lock'] if call.version >= REASON_SINCE else None
    service.lock(call.backend, call.ctxt, server, (body or {}).get('locked_reason'))


def unlock(call: Call) -> None:
    """unlock; what the other kind of caller has locked takes a right of its own."""
    server: Any = call.server
    if service.is_anothers(call.ctxt, server):
        call.authorise(policies.UNLOCK_OVERRIDE)
    service.unlock(call.backend, call.ctxt, server)
