"""The rule of events that other services tell."""
from __future__ import annotations

from kilonova.api.policies.base import PREFIX, SERVICE, rule

CREATE = f'{PREFIX}os-server-external-events:create'

_RULES = (
    rule(CREATE, SERVICE, 'Tell events of servers, as the network and volume services do.',
         'POST /os-server-external-events'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
