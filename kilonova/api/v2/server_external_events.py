"""Events that other services tell of servers."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import server_external_events as service
from kilonova.api.wsgi import Call, Reply


def create(call: Call) -> Any:
    """POST /os-server-external-events: 207 when one of them is refused."""
    events = service.dispatch(call.backend, call.ctxt, call.body['events'])
    return Reply({'events': events}, status=200 if all(event['code'] == 200 for event in events) else 207)
