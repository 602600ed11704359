"""Rules of servers."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, READER, rule

ROOT = f'{PREFIX}servers:'
INDEX, DETAIL, SHOW = f'{ROOT}index', f'{ROOT}detail', f'{ROOT}show'
INDEX_ALL, DETAIL_ALL = f'{ROOT}index:get_all_tenants', f'{ROOT}detail:get_all_tenants'
ALL_FILTERS = f'{ROOT}allow_all_filters'
CREATE, UPDATE, DELETE = f'{ROOT}create', f'{ROOT}update', f'{ROOT}delete'
FORCED_HOST = f'{ROOT}create:forced_host'
ZERO_DISK = f'{ROOT}create:zero_disk_flavor'
ATTACH_VOLUME, ATTACH_NETWORK = f'{ROOT}create:attach_volume', f'{ROOT}create:attach_network'
TRUSTED_CERTS = f'{ROOT}create:trusted_certs'
REQUESTED_DESTINATION = 'compute:servers:create:requested_destination'
HOST_STATUS, HOST_STATUS_UNKNOWN = f'{ROOT}show:host_status', f'{ROOT}show:host_status:unknown-only'
FLAVOR_EXTRA_SPECS = f'{ROOT}show:flavor-extra-specs'
EXTENDED_ATTRIBUTES = f'{PREFIX}os-extended-server-attributes'

RULES = (
    rule(INDEX, READER, 'List servers.'),
    rule(DETAIL, READER, 'List servers with details.'),
    rule(INDEX_ALL, ADMIN, 'List servers of all projects.'),
    rule(DETAIL_ALL, ADMIN, 'List servers of all projects with details.'),
    rule(ALL_FILTERS, ADMIN, 'Use all filters in lists of servers.'),
    rule(SHOW, READER, 'Show a server.'),
    rule(HOST_STATUS, ADMIN, 'See the state of the host of a server.'),
    rule(HOST_STATUS_UNKNOWN, ADMIN, 'See of the host of a server only whether its state is unknown.'),
    rule(FLAVOR_EXTRA_SPECS, READER, 'See the extra specs of the flavor of a server.'),
    rule(EXTENDED_ATTRIBUTES, ADMIN, 'See where a server is and under which names.'),
    rule(CREATE, MEMBER, 'Create servers.'),
    rule(FORCED_HOST, ADMIN, "Create servers on a named host, without a scheduler's filters."),
    rule(REQUESTED_DESTINATION, ADMIN, 'Create servers on a named host that the scheduler agrees with.'),
    rule(ATTACH_VOLUME, MEMBER, 'Create servers with volumes.'),
    rule(ATTACH_NETWORK, MEMBER, 'Create servers on named networks or ports.'),
    rule(TRUSTED_CERTS, MEMBER, 'Create servers with trusted image certificates.'),
    rule(ZERO_DISK, ADMIN, 'Create servers from an image on a flavor without disk.'),
    rule(UPDATE, MEMBER, 'Update a server.'),
    rule(DELETE, MEMBER, 'Delete a server.'),
)
