"""The rule of events that other services tell."""
from __future__ import annotations

from kilonova.api.rules import PREFIX, SERVICE, rule

CREATE = f'{PREFIX}os-server-external-events:create'

RULES = (
    rule(CREATE, SERVICE, 'Tell events of servers, as the network and volume services do.'),
)
