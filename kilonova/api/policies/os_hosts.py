"""Rules of hosts, as they were known before hypervisors and services."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

LIST, SHOW, UPDATE, START, SHUTDOWN, REBOOT = (
    f'{PREFIX}os-hosts:{verb}' for verb in ('list', 'show', 'update', 'start', 'shutdown', 'reboot'))

RULES = (
    rule(LIST, ADMIN, 'List hosts with their services.'),
    rule(SHOW, ADMIN, 'Show what a host has and what is used of it.'),
    rule(UPDATE, ADMIN, 'Enable or disable a host.'),
    rule(START, ADMIN, 'Power a host on, which no driver does.'),
    rule(SHUTDOWN, ADMIN, 'Power a host off, which no driver does.'),
    rule(REBOOT, ADMIN, 'Reboot a host, which no driver does.'),
)
