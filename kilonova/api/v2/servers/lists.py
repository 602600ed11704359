"""The lists of servers (``GET /servers`` and ``/servers/detail``): policy, filters, order and paging."""

from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.rules import ADMIN, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.v2.servers import pages, show
from kilonova.api.wsgi import Call, Route
from kilonova.db.queries import owners
from kilonova.errors import Forbidden, Invalid

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, DETAIL = f'{PREFIX}servers:index', f'{PREFIX}servers:detail'
INDEX_ALL, DETAIL_ALL = f'{INDEX}:get_all_tenants', f'{DETAIL}:get_all_tenants'
ALL_FILTERS = f'{PREFIX}servers:allow_all_filters'
RULES = (
    rule(INDEX, READER, 'List servers.'),
    rule(DETAIL, READER, 'List servers with details.'),
    rule(INDEX_ALL, ADMIN, 'List servers of all projects.'),
    rule(DETAIL_ALL, ADMIN, 'List servers of all projects with details.'),
    rule(ALL_FILTERS, ADMIN, 'Use all filters in lists of servers.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# From this microversion (2.73) on, the list of servers has the filter and the sort key 'locked'.
LOCKED_SINCE = 73
SORT_KEYS = (
    'access_ip_v4',
    'access_ip_v6',
    'auto_disk_config',
    'availability_zone',
    'config_drive',
    'created_at',
    'display_description',
    'display_name',
    'host',
    'hostname',
    'image_ref',
    'instance_type_id',
    'kernel_id',
    'key_name',
    'launch_index',
    'launched_at',
    'locked_by',
    'node',
    'power_state',
    'progress',
    'project_id',
    'ramdisk_id',
    'root_device_name',
    'task_state',
    'terminated_at',
    'updated_at',
    'user_id',
    'uuid',
    'vm_state',
)
# Sort keys that are accepted until microversion 2.74 but have no effect, because their columns have no useful values.
_DEAD_SORT_KEYS = (
    'architecture',
    'cell_name',
    'cleaned',
    'default_ephemeral_device',
    'default_swap_device',
    'deleted',
    'deleted_at',
    'disable_terminate',
    'ephemeral_gb',
    'ephemeral_key_uuid',
    'id',
    'key_data',
    'launched_on',
    'locked',
    'memory_mb',
    'os_type',
    'reservation_id',
    'root_gb',
    'shutdown_terminate',
    'user_data',
    'vcpus',
    'vm_mode',
)


def _sort_key(*more: str) -> dict[str, Any]:
    return t.one_of(*sorted({*SORT_KEYS, *more}))


_DATED = ('changes-since', 'created_at', 'launched_at', 'terminated_at')
_TEXTS = (
    'user_id',
    'project_id',
    'tenant_id',
    'launch_index',
    'image_ref',
    'image',
    'kernel_id',
    'ramdisk_id',
    'hostname',
    'key_name',
    'power_state',
    'vm_state',
    'task_state',
    'host',
    'node',
    'flavor',
    'reservation_id',
    'availability_zone',
    'uuid',
    'display_description',
    'description',
    'locked_by',
    'root_device_name',
    'config_drive',
    'access_ip_v4',
    'access_ip_v6',
    'auto_disk_config',
    'progress',
    'soft_deleted',
    'deleted',
    'status',
    'all_tenants',
)
# Filters that Nova refuses, because they are names of tables that Nova joins with the table of servers.
# A caller who may use all filters gets error 400 for a forbidden filter. For other callers the filter is ignored.
FORBIDDEN_FILTERS = (
    'block_device_mapping',
    'services',
    'metadata',
    'system_metadata',
    'info_cache',
    'security_groups',
    'pci_devices',
)

QUERY = QuerySchema.of(
    Prop('limit', t.NUMBER_TEXT),
    Prop('marker', t.ANY_TEXT),
    Prop('sort_key', _sort_key(*_DEAD_SORT_KEYS), until=LOCKED_SINCE - 1),
    Prop('sort_key', _sort_key(*_DEAD_SORT_KEYS, 'locked'), since=LOCKED_SINCE, until=74),
    Prop('sort_key', _sort_key('locked'), since=75),
    Prop('sort_dir', t.ANY_TEXT),
    Prop('name', t.REGEX_TEXT),
    Prop('display_name', t.REGEX_TEXT),
    Prop('ip', t.REGEX_TEXT),
    Prop('ip6', t.REGEX_TEXT),
    *(Prop(name, t.ANY_TEXT) for name in (*_TEXTS, *FORBIDDEN_FILTERS)),
    *(Prop(name, t.DATE_TEXT) for name in _DATED),
    *(Prop(name, t.ANY_TEXT, since=26) for name in ('tags', 'tags-any', 'not-tags', 'not-tags-any')),
    Prop('changes-before', t.DATE_TEXT, since=66),
    Prop('locked', t.BOOLEAN, since=LOCKED_SINCE),
    private=True,
)


# --- handlers of requests --------------------------------------------------------------------------------------------
_ADMIN_SORT_KEYS = frozenset(('host', 'node'))


def index(call: Call) -> Any:
    """List servers with their names only (``GET /servers``)."""
    return _list(call, detailed=False)


def detail(call: Call) -> Any:
    """List servers with details (``GET /servers/detail``)."""
    return _list(call, detailed=True)


def _list(call: Call, detailed: bool) -> Any:
    query = {name: values[-1] for name, values in call.query.items() if not name.startswith('_')}
    all_filters = call.may(ALL_FILTERS)
    owner = _owner(call, query, detailed)
    if all_filters:
        # A caller who may use all filters gets error 400 for FORBIDDEN_FILTERS, as in Nova.
        # For other callers, filters that they may not use are ignored.
        _refuse_joined(call.query)
    filters = pages.read_filters(
        call.backend,
        query,
        version=call.version,
        all_filters=all_filters,
        is_admin=call.ctxt.is_admin,
        all_tenants=owner is owners.ALL,
        statuses=call.query.get('status', []),
    )
    limit = call.limit()
    order, marker = _order(call), call.one('marker')
    found = pages.list_servers(
        call.backend,
        pages.Listing(
            filters=filters,
            owner=owner,
            order=order,
            limit=limit,
            marker=marker,
            plain=not detailed,
            bulky=detailed and call.version >= 3 and call.may(show.EXTENDED_ATTRIBUTES),
            version=call.version,
            host_status=detailed and call.version >= 16 and show.sees_hosts(call),
            whole=not set(query) - {'all_tenants'},
        ),
    )
    shown = show.viewer(call, host_states=found.host_states, wishes=found.wishes)
    if detailed:
        bodies = [show.render(row, shown, show.LISTED) for row in found.rows]
    else:
        bodies = [show.brief(row, shown) for row in found.rows]
    body: dict[str, Any] = {'servers': bodies + [show.unknown(row, shown, detailed) for row in found.unknown]}
    if found.rows and len(found.rows) == limit:
        path = 'servers/detail' if detailed else 'servers'
        body['servers_links'] = call.links.next(path, call.query, found.rows[-1]['uuid'])
    return body


def _owner(call: Call, query: dict[str, str], detailed: bool) -> owners.Owner:
    """Return the owner whose servers are listed: the caller's project, or ``owners.ALL`` for all projects.

    Raises PolicyNotAuthorized (403) if the caller may not list the servers of all projects. ``detailed`` says which
    policy rule is checked.
    """
    wanted = query.get('all_tenants')
    if wanted is None:
        return call.ctxt.project_id
    try:
        everybody = wanted == '' or strutils.bool_from_string(wanted, strict=True)
    except ValueError as error:
        raise Invalid(str(error)) from None
    if not everybody:
        return call.ctxt.project_id
    call.authorise(DETAIL_ALL if detailed else INDEX_ALL)
    return owners.ALL


def _refuse_joined(query: dict[str, list[str]]) -> None:
    for name in query:
        if name in FORBIDDEN_FILTERS or name.startswith('_'):
            raise Invalid(f'Invalid filter field: {name}.')


def _order(call: Call) -> list[tuple[str, str]]:
    keys, directions = call.query.get('sort_key', []), call.query.get('sort_dir', [])
    for key in keys:
        if key in _ADMIN_SORT_KEYS and not call.ctxt.is_admin:
            raise Forbidden(f'Only administrators can sort servers by {key}')
    if any(direction not in ('asc', 'desc') for direction in directions):
        raise Invalid("Invalid input received: Unknown sort direction, must be 'desc' or 'asc'")
    if len(directions) > max(len(keys), 1):
        raise Invalid('Invalid input received: Sort direction size exceeds sort key size')
    last = directions[-1] if directions else 'desc'
    pairs = [(key, directions[position] if position < len(directions) else last) for position, key in enumerate(keys)]
    # If a sort key is named twice, its first occurrence counts. Sort keys without effect are left out.
    live = {*SORT_KEYS, *(['locked'] if call.version >= LOCKED_SINCE else [])}
    kept = {key: direction for key, direction in reversed(pairs) if key in live}
    ordered = [(key, kept[key]) for key in dict(pairs) if key in kept]
    return ordered or [('created_at', last)]


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (
    Route('GET', '/servers', index, INDEX, query=QUERY, asks=(INDEX_ALL, ALL_FILTERS)),
    Route('GET', '/servers/detail', detail, DETAIL, query=QUERY, asks=(DETAIL_ALL, ALL_FILTERS, *show.SEEN)),
)
