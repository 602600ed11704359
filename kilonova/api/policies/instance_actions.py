"""Rules of the stories of servers."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, READER, rule

LIST, SHOW = f'{PREFIX}os-instance-actions:list', f'{PREFIX}os-instance-actions:show'
EVENTS, DETAILS = f'{PREFIX}os-instance-actions:events', f'{PREFIX}os-instance-actions:events:details'
_SHOW = 'GET /servers/{server_id}/os-instance-actions/{request_id}'

_RULES = (
    rule(LIST, READER, 'List the actions on a server.', 'GET /servers/{server_id}/os-instance-actions'),
    rule(SHOW, READER, 'Show an action on a server.', _SHOW),
    rule(EVENTS, ADMIN, 'See tracebacks and hosts of events; before 2.51 any event at all.', _SHOW),
    rule(DETAILS, ADMIN, 'See the details of events.', _SHOW),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
