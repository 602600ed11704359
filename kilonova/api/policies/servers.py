"""Rules of servers."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, MEMBER, PREFIX, READER, rule

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

_RULES = (
    rule(INDEX, READER, 'List servers.', 'GET /servers'),
    rule(DETAIL, READER, 'List servers with details.', 'GET /servers/detail'),
    rule(INDEX_ALL, ADMIN, 'List servers of all projects.', 'GET /servers'),
    rule(DETAIL_ALL, ADMIN, 'List servers of all projects with details.', 'GET /servers/detail'),
    rule(ALL_FILTERS, ADMIN, 'Use all filters in lists of servers.', 'GET /servers', 'GET /servers/detail'),
    rule(SHOW, READER, 'Show a server.', 'GET /servers/{server_id}'),
    rule(HOST_STATUS, ADMIN, 'See the state of the host of a server.', 'GET /servers/{server_id}',
         'GET /servers/detail', 'PUT /servers/{server_id}'),
    rule(HOST_STATUS_UNKNOWN, ADMIN, 'See of the host of a server only whether its state is unknown.',
         'GET /servers/{server_id}', 'GET /servers/detail', 'PUT /servers/{server_id}'),
    rule(FLAVOR_EXTRA_SPECS, READER, 'See the extra specs of the flavor of a server.', 'GET /servers/{server_id}',
         'GET /servers/detail', 'PUT /servers/{server_id}'),
    rule(EXTENDED_ATTRIBUTES, ADMIN, 'See where a server is and under which names.', 'GET /servers/{server_id}',
         'GET /servers/detail', 'PUT /servers/{server_id}'),
    rule(CREATE, MEMBER, 'Create servers.', 'POST /servers'),
    rule(FORCED_HOST, ADMIN, "Create servers on a named host, without a scheduler's filters.", 'POST /servers'),
    rule(REQUESTED_DESTINATION, ADMIN, 'Create servers on a named host that the scheduler agrees with.',
         'POST /servers'),
    rule(ATTACH_VOLUME, MEMBER, 'Create servers with volumes.', 'POST /servers'),
    rule(ATTACH_NETWORK, MEMBER, 'Create servers on named networks or ports.', 'POST /servers'),
    rule(TRUSTED_CERTS, MEMBER, 'Create servers with trusted image certificates.', 'POST /servers'),
    rule(ZERO_DISK, ADMIN, 'Create servers from an image on a flavor without disk.', 'POST /servers'),
    rule(UPDATE, MEMBER, 'Update a server.', 'PUT /servers/{server_id}'),
    rule(DELETE, MEMBER, 'Delete a server.', 'DELETE /servers/{server_id}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
