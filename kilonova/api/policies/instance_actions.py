"""Rules of the stories of servers."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, READER, rule

LIST, SHOW = f'{PREFIX}os-instance-actions:list', f'{PREFIX}os-instance-actions:show'
EVENTS, DETAILS = f'{PREFIX}os-instance-actions:events', f'{PREFIX}os-instance-actions:events:details'

RULES = (
    rule(LIST, READER, 'List the actions on a server.'),
    rule(SHOW, READER, 'Show an action on a server.'),
    rule(EVENTS, ADMIN, 'See tracebacks and hosts of events; before 2.51 any event at all.'),
    rule(DETAILS, ADMIN, 'See the details of events.'),
)
