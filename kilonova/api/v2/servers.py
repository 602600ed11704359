"""Servers: list, show, create, update, delete."""
from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.policies import servers as policies
from kilonova.api.schemas import servers as schemas
from kilonova.api.services import block_devices, listing, server_groups
from kilonova.api.services import create as creation
from kilonova.api.services import delete as deletion
from kilonova.api.services import update as updating
from kilonova.api.views import servers as views
from kilonova.api.wsgi import Call, Reply
from kilonova.db.queries import owners
from kilonova.db.queries import servers as queries
from kilonova.errors import Forbidden, Invalid

DESCRIPTION_SINCE, GROUPS_SINCE = 19, 71
# What services tell one another by hints; from a request it would get around filters and allocations.
INTERNAL_HINTS = '_nova_'
_ADMIN_SORT_KEYS = frozenset(('host', 'node'))


def look(call: Call, **facts: Any) -> views.Look:
    """What the views need of this request."""
    options = call.backend.options
    return views.Look(links=call.links, may=call.may, is_admin=call.ctxt.is_admin, version=call.version,
                      default_zone=options.default_zone, instance_name_template=options.instance_name_template, **facts)


# --- lists -----------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """GET /servers."""
    return _list(call, detailed=False)


def detail(call: Call) -> Any:
    """GET /servers/detail."""
    return _list(call, detailed=True)


def _list(call: Call, detailed: bool) -> Any:
    query = {name: values[-1] for name, values in call.query.items() if not name.startswith('_')}
    all_filters = call.may(policies.ALL_FILTERS)
    owner = _owner(call, query, detailed)
    if all_filters:
        # To others these are filters like any that they may not use: passed over.
        _refuse_joined(call.query)
    filters = listing.read_filters(call.backend, query, version=call.version, all_filters=all_filters,
                                   is_admin=call.ctxt.is_admin, all_tenants=owner is owners.ALL,
                                   statuses=call.query.get('status', []))
    limit = call.limit()
    order, marker = _order(call), call.one('marker')
    found = listing.list_servers(call.backend, listing.Listing(
        filters=filters, owner=owner, order=order, limit=limit, marker=marker, plain=not detailed,
        bulky=detailed and call.version >= 3 and call.may(policies.EXTENDED_ATTRIBUTES), version=call.version,
        host_status=detailed and call.version >= 16 and _sees_hosts(call),
        whole=not set(query) - {'all_tenants'}))
    shown = look(call, host_states=found.host_states, wishes=found.wishes)
    if detailed:
        bodies = [views.show(row, shown, views.DETAIL) for row in found.rows]
    else:
        bodies = [views.brief(row, shown) for row in found.rows]
    body: dict[str, Any] = {'servers': bodies + [views.unknown(row, shown, detailed) for row in found.unknown]}
    if found.rows and len(found.rows) == limit:
        path = 'servers/detail' if detailed else 'servers'
        body['servers_links'] = call.links.next(path, call.query, found.rows[-1]['uuid'])
    return body


def _owner(call: Call, query: dict[str, str], detailed: bool) -> owners.Owner:
    """Whose servers are listed. 403 without the policy for that."""
    wanted = query.get('all_tenants')
    if wanted is None:
        return call.ctxt.project_id
    try:
        everybody = wanted == '' or strutils.bool_from_string(wanted, strict=True)
    except ValueError as error:
        raise Invalid(str(error)) from None
    if not everybody:
        return call.ctxt.project_id
    call.authorise(policies.DETAIL_ALL if detailed else policies.INDEX_ALL)
    return owners.ALL


def _refuse_joined(query: dict[str, list[str]]) -> None:
    for name in query:
        if name in schemas.FORBIDDEN_FILTERS or name.startswith('_'):
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
    # A key that comes twice can't change what its first turn decided; dead keys are accepted and change nothing.
    live = {*schemas.SORT_KEYS, *(['locked'] if call.version >= schemas.LOCKED_SINCE else [])}
    kept = {key: direction for key, direction in reversed(pairs) if key in live}
    ordered = [(key, kept[key]) for key in dict(pairs) if key in kept]
    return ordered or [('created_at', last)]


def _sees_hosts(call: Call) -> bool:
    return call.may(policies.HOST_STATUS) or call.may(policies.HOST_STATUS_UNKNOWN)


# --- one server ------------------------------------------------------------------------------------------------------
def show(call: Call) -> Any:
    """GET /servers/{id}."""
    server = call.server
    if server.silent:
        return {'server': views.silent(server.row, look(call))}
    return {'server': _body(call, views.SHOW)}


def _body(call: Call, kind: str) -> dict[str, Any]:
    server = call.server
    row = server.row
    host_states: dict[str, str] = {}
    wishes: dict[str, dict[str, Any]] = {}
    if server.cell is not None:
        with server.cell.read() as conn:
            listing.add_facts(conn, [row], call.version)
            if row['host'] and call.version >= 16 and _sees_hosts(call):
                host_states = queries.host_states(conn, [row['host']], call.backend.options.service_down_time)
    asked = call.version >= GROUPS_SINCE
    if call.version >= 96:
        with call.backend.api_db.read() as conn:
            wishes = queries.wishes(conn, [server.uuid])
        # Nobody gets into a group but by the hint.
        asked = 'group' in wishes.get(server.uuid, {}).get('hints', ())
    groups = server_groups.of_server(call.backend, server.uuid) if asked else []
    return views.show(row, look(call, host_states=host_states, wishes=wishes, groups=groups), kind)


def update(call: Call) -> Any:
    """PUT /servers/{id}."""
    server = call.server
    body = call.body['server']
    columns = {'name': 'display_name', 'description': 'display_description', 'accessIPv4': 'access_ip_v4',
               'accessIPv6': 'access_ip_v6', 'hostname': 'hostname'}
    values = {column: body[name] for name, column in columns.items() if name in body}
    if 'OS-DCF:diskConfig' in body:
        values['auto_disk_config'] = updating.disk_config(server, body['OS-DCF:diskConfig'])
    pinned = 'pinned_availability_zone' in body
    if pinned:
        updating.check_pin(call.backend, server, body['pinned_availability_zone'])
    updating.update(call.backend, call.ctxt, server, values)
    if pinned:
        # Last: what the cell refuses leaves no pin.
        updating.pin(call.backend, call.ctxt, server, body['pinned_availability_zone'])
    return {'server': _body(call, views.UPDATE)}


def delete(call: Call) -> None:
    """DELETE /servers/{id}."""
    deletion.delete(call.backend, call.ctxt, call.server)


# --- create ----------------------------------------------------------------------------------------------------------
def create(call: Call) -> Reply:
    """POST /servers."""
    body = call.body['server']
    request = _request(call, body)
    _authorise_parts(call, request)
    made = creation.create(call.backend, call.ctxt, request)
    location = call.links.to('servers', made.rows[0]['uuid'])
    if _boolean(body.get('return_reservation_id')):
        return Reply({'reservation_id': made.reservation_id})
    password = made.admin_password if call.backend.options.enable_instance_password else None
    groups = request.security_groups or ['default']
    return Reply({'server': views.created(made.rows, look(call), password, groups)}, (('Location', location),))


def _request(call: Call, body: dict[str, Any]) -> creation.CreateRequest:
    zone, host, node = creation.parse_zone(body.get('availability_zone'))
    minimum = int(body.get('min_count') or 1)
    # Before 2.19 there was no description: the name stood in for it.
    description = body.get('description') if call.version >= DESCRIPTION_SINCE else body['name']
    hints = call.body.get('os:scheduler_hints') or call.body.get('OS-SCH-HNT:scheduler_hints') or {}
    for name in hints:
        if name.startswith(INTERNAL_HINTS):
            raise Invalid(f"Invalid input for field/attribute scheduler_hints. Value: {name}. Names that begin with "
                          f"'{INTERNAL_HINTS}' are the services' own.")
    return creation.CreateRequest(
        name=body['name'], flavor_ref=str(body['flavorRef']), image_ref=body.get('imageRef') or None,
        networks=body.get('networks'), metadata=body.get('metadata') or {}, admin_password=body.get('adminPass'),
        zone=zone, force_host=host, force_node=node, host=body.get('host'),
        hypervisor_hostname=body.get('hypervisor_hostname'), block_devices=body.get('block_device_mapping_v2') or [],
        old_block_devices=body.get('block_device_mapping') or [], personality=body.get('personality') or [],
        config_drive=_boolean(body.get('config_drive')), user_data=body.get('user_data'),
        key_name=body.get('key_name'), min_count=minimum, max_count=int(body.get('max_count') or minimum),
        security_groups=list(dict.fromkeys(group['name'] for group in body.get('security_groups') or ()
                                           if 'name' in group)),
        disk_config=body.get('OS-DCF:diskConfig'), access_ip_v4=body.get('accessIPv4'),
        access_ip_v6=body.get('accessIPv6'), description=description, tags=sorted(set(body.get('tags') or ())),
        hostname=body.get('hostname'), hints=hints, certificates=body.get('trusted_image_certificates') or [],
        zero_disk_allowed=call.may(policies.ZERO_DISK))


def _authorise_parts(call: Call, request: creation.CreateRequest) -> None:
    if request.force_host or request.force_node:
        call.authorise(policies.FORCED_HOST)
    if request.host or request.hypervisor_hostname:
        call.authorise(policies.REQUESTED_DESTINATION)
    if request.old_block_devices or any(block_devices.is_volume(device) for device in request.block_devices):
        call.authorise(policies.ATTACH_VOLUME)
    if isinstance(request.networks, list) and request.networks:
        call.authorise(policies.ATTACH_NETWORK)
    if request.certificates:
        call.authorise(policies.TRUSTED_CERTS)


def _boolean(value: Any) -> bool:
    return strutils.bool_from_string(value) if value is not None else False

