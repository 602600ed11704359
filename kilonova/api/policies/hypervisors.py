"""Rules of hypervisors."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

LIST, DETAIL, SHOW, STATISTICS, UPTIME, SEARCH, SERVERS = (
    f'{PREFIX}os-hypervisors:{verb}'
    for verb in ('list', 'list-detail', 'show', 'statistics', 'uptime', 'search', 'servers'))

_RULES = (
    rule(LIST, ADMIN, 'List hypervisors.', 'GET /os-hypervisors'),
    rule(DETAIL, ADMIN, 'List hypervisors with details.', 'GET /os-hypervisors/detail'),
    rule(SHOW, ADMIN, 'Show a hypervisor.', 'GET /os-hypervisors/{hypervisor_id}'),
    rule(STATISTICS, ADMIN, 'Show the sums over all hypervisors.', 'GET /os-hypervisors/statistics'),
    rule(UPTIME, ADMIN, 'Show the uptime of a hypervisor.', 'GET /os-hypervisors/{hypervisor_id}/uptime'),
    rule(SEARCH, ADMIN, 'Find hypervisors by name.', 'GET /os-hypervisors/{hypervisor_hostname_pattern}/search'),
    rule(SERVERS, ADMIN, 'List the servers of hypervisors.',
         'GET /os-hypervisors/{hypervisor_hostname_pattern}/servers'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
