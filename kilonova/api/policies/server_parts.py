"""Rules of what is looked at below a server: addresses, topology, diagnostics, password, console, live migrations."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MANAGER, MEMBER, PREFIX, READER, rule

IPS_INDEX, IPS_SHOW = f'{PREFIX}ips:index', f'{PREFIX}ips:show'
TOPOLOGY, TOPOLOGY_HOST = 'compute:server:topology:index', 'compute:server:topology:host:index'
DIAGNOSTICS = f'{PREFIX}os-server-diagnostics'
PASSWORD_SHOW, PASSWORD_CLEAR = f'{PREFIX}os-server-password:show', f'{PREFIX}os-server-password:clear'
CONSOLE_OUTPUT = f'{PREFIX}os-console-output'
MIGRATIONS_INDEX, MIGRATIONS_SHOW = f'{PREFIX}servers:migrations:index', f'{PREFIX}servers:migrations:show'
MIGRATIONS_HOST = f'{MIGRATIONS_INDEX}:host'

RULES = (
    rule(IPS_INDEX, READER, 'List the addresses of a server.'),
    rule(IPS_SHOW, READER, 'List the addresses of a server on one network.'),
    rule(TOPOLOGY, READER, 'See the NUMA topology of a server.'),
    rule(TOPOLOGY_HOST, ADMIN, 'See on which NUMA nodes and CPUs of its host a server is.'),
    rule(DIAGNOSTICS, ADMIN, 'See what the hypervisor measures of a server.'),
    rule(PASSWORD_SHOW, READER, 'See the encrypted password of a server.'),
    rule(PASSWORD_CLEAR, MEMBER, 'Forget the encrypted password of a server.'),
    rule(CONSOLE_OUTPUT, MEMBER, 'Read the console log of a server.'),
    rule(MIGRATIONS_INDEX, MANAGER, 'List the live migrations of a server that are under way.'),
    rule(MIGRATIONS_HOST, ADMIN, 'See the hosts of the live migrations of a server.'),
    rule(MIGRATIONS_SHOW, ADMIN, 'Show a live migration of a server that is under way.'),
)
