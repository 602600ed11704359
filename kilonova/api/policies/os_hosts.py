"""Rules of hosts, as they were known before hypervisors and services."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

LIST, SHOW, UPDATE, START, SHUTDOWN, REBOOT = (
    f'{PREFIX}os-hosts:{verb}' for verb in ('list', 'show', 'update', 'start', 'shutdown', 'reboot'))

_RULES = (
    rule(LIST, ADMIN, 'List hosts with their services.', 'GET /os-hosts'),
    rule(SHOW, ADMIN, 'Show what a host has and what is used of it.', 'GET /os-hosts/{host_name}'),
    rule(UPDATE, ADMIN, 'Enable or disable a host.', 'PUT /os-hosts/{host_name}'),
    rule(START, ADMIN, 'Power a host on, which no driver does.', 'GET /os-hosts/{host_name}/startup'),
    rule(SHUTDOWN, ADMIN, 'Power a host off, which no driver does.', 'GET /os-hosts/{host_name}/shutdown'),
    rule(REBOOT, ADMIN, 'Reboot a host, which no driver does.', 'GET /os-hosts/{host_name}/reboot'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
