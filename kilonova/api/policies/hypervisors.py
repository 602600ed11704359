"""Rules of hypervisors."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

LIST, DETAIL, SHOW, STATISTICS, UPTIME, SEARCH, SERVERS = (
    f'{PREFIX}os-hypervisors:{verb}'
    for verb in ('list', 'list-detail', 'show', 'statistics', 'uptime', 'search', 'servers'))

RULES = (
    rule(LIST, ADMIN, 'List hypervisors.'),
    rule(DETAIL, ADMIN, 'List hypervisors with details.'),
    rule(SHOW, ADMIN, 'Show a hypervisor.'),
    rule(STATISTICS, ADMIN, 'Show the sums over all hypervisors.'),
    rule(UPTIME, ADMIN, 'Show the uptime of a hypervisor.'),
    rule(SEARCH, ADMIN, 'Find hypervisors by name.'),
    rule(SERVERS, ADMIN, 'List the servers of hypervisors.'),
)
