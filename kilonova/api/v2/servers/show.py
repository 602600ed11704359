"""The response fields of a server, and the request ``GET /servers/{id}``.

Other modules use the fields to render servers. A server has four kinds of bodies: the response to GET (ONE), an entry
of a detailed list (LISTED), the response to PUT (CHANGED), and the response to a rebuild (REBUILT). Before microversion
2.75 CHANGED and REBUILT have fewer fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kilonova import states
from kilonova.api.fields import ABSENT, Field, Fields, column, micro, zulu
from kilonova.api.rules import ADMIN, PREFIX, READER, rule
from kilonova.api.services import server_groups
from kilonova.api.services.server_operations import PARTIAL, ServerRef
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.db import envelopes
from kilonova.db.engine import Connection
from kilonova.db.queries import servers as queries
from kilonova.objects.image_meta import ImageMetaProps

# --- policy rules ----------------------------------------------------------------------------------------------------
SHOW = f'{PREFIX}servers:show'
HOST_STATUS, HOST_STATUS_UNKNOWN = f'{SHOW}:host_status', f'{SHOW}:host_status:unknown-only'
FLAVOR_EXTRA_SPECS = f'{SHOW}:flavor-extra-specs'
EXTENDED_ATTRIBUTES = f'{PREFIX}os-extended-server-attributes'
RULES = (
    rule(SHOW, READER, 'Show a server.'),
    rule(HOST_STATUS, ADMIN, 'See the state of the host of a server.'),
    rule(HOST_STATUS_UNKNOWN, ADMIN, 'See only that the state of the host of a server is UNKNOWN, and no other state.'),
    rule(FLAVOR_EXTRA_SPECS, READER, 'See the extra specs of the flavor of a server.'),
    rule(EXTENDED_ATTRIBUTES, ADMIN, 'See the host, the hypervisor and the internal names of a server.'),
)
# The policy rules that decide whether a user sees certain fields of a server.
SEEN = (HOST_STATUS, HOST_STATUS_UNKNOWN, FLAVOR_EXTRA_SPECS, EXTENDED_ATTRIBUTES)


# --- response fields -------------------------------------------------------------------------------------------------
ONE, LISTED, CHANGED, REBUILT = 'show', 'detail', 'update', 'rebuild'
_PROGRESSING = frozenset(('ACTIVE', 'BUILD', 'REBUILD', 'RESIZE', 'VERIFY_RESIZE', 'MIGRATING'))
_FAULTY = frozenset(('ERROR', 'DELETED'))
_FAILED = frozenset((states.VmState.ERROR, states.VmState.DELETED))
VOLUMES = 'os-extended-volumes:volumes_attached'
# Names of the flavor's fields in the body of a server, and their names in the server's row.
_FLAVOR = (
    ('vcpus', 'vcpus'),
    ('ram', 'memory_mb'),
    ('disk', 'root_gb'),
    ('ephemeral', 'ephemeral_gb'),
    ('swap', 'swap'),
    ('original_name', 'name'),
)

Row = Mapping[str, Any]


@dataclass
class ServerView:
    """The values that the response fields need in addition to the server's row.

    ``host_states`` is a dict from host to its host_status, such as 'UP'. ``wishes`` is a dict from a server's uuid to
    values of its request spec: {'zone': <the zone to which the server is pinned, or None>, 'hints': <scheduler hints>}.
    ``groups`` are the uuids of the server's groups. ``answers`` is a cache with the results of policy checks, as a dict
    from (rule, project id, user id) to bool.
    """

    links: Any
    may: Callable[[str, Mapping[str, Any]], bool]
    is_admin: bool
    version: int
    default_zone: str = 'nova'
    instance_name_template: str = 'instance-%08x'
    host_states: Mapping[str, str] = field(default_factory=dict)
    wishes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Sequence[str] = ()
    answers: dict[tuple[str, Any, Any], bool] = field(default_factory=dict)

    def allows(self, rule: str, row: Row) -> bool:
        """Return whether the caller passes a policy rule for the project and user of the server ``row``.

        The result is cached, so each rule is checked only once for all servers of the same user.
        """
        key = rule, row['project_id'], row['user_id']
        if key not in self.answers:
            self.answers[key] = self.may(rule, {'project_id': row['project_id'], 'user_id': row['user_id']})
        return self.answers[key]


def host_id(project_id: str | None, host: str | None) -> str:
    """Return a hash that users see instead of a host's name. Return '' if ``host`` is None."""
    return hashlib.sha224(f'{project_id}{host}'.encode()).hexdigest() if host else ''


def instance_name(template: str, row: Row) -> str:
    """Return the server's name in the hypervisor. Return '' for a server that is not in a cell yet."""
    if row['id'] is None:
        return ''
    try:
        found: str = template % row['id']
        return found
    except TypeError:
        return template % {'id': row['id'], 'uuid': row['uuid'], 'project_id': row['project_id']}


def _status(row: Row) -> str:
    # Check ``deleted`` before ``vm_state``.
    # The database may have servers that OpenStack Nova deleted before the cloud changed from Nova to Kilonova.
    # If Nova deleted a server during its build, the row's vm_state is still 'building'.
    return 'DELETED' if row['deleted'] else states.status(row['vm_state'], row['task_state'])


def _flavor_link(row: Row, viewer: ServerView) -> dict[str, Any]:
    identifier = row['flavor'].get('flavorid', '')
    return {'id': identifier, 'links': [viewer.links.bookmark('flavors', identifier)]}


def _flavor(row: Row, viewer: ServerView) -> dict[str, Any]:
    flavor = row['flavor']
    body = {name: flavor.get(key) for name, key in _FLAVOR}
    if viewer.allows(FLAVOR_EXTRA_SPECS, row):
        body['extra_specs'] = flavor.get('extra_specs') or {}
    return body


def _image(row: Row, viewer: ServerView) -> Any:
    if not row['image_ref']:
        return ''
    return {'id': row['image_ref'], 'links': [viewer.links.bookmark('images', row['image_ref'])]}


def _image_with_properties(row: Row, viewer: ServerView) -> Any:
    body = _image(row, viewer)
    return {**body, 'properties': ImageMetaProps.convert_known(row['image_properties'])} if body else body


def addresses(row: Row) -> dict[str, list[dict[str, Any]]]:
    """Return a dict from network label to the server's addresses. The dict is empty while the server is being built."""
    if row['vm_state'] == states.VmState.BUILDING:
        return {}
    found: dict[str, Any] = {}
    for vif in json.loads(row['network_info'] or '[]'):
        shown = found.setdefault(vif['network']['label'], [])
        for subnet in vif['network'].get('subnets', ()):
            for address in subnet.get('ips', ()):
                shown.extend(
                    {
                        'version': each.get('version', 4),
                        'addr': each['address'],
                        'OS-EXT-IPS:type': each.get('type', 'fixed'),
                        'OS-EXT-IPS-MAC:mac_addr': vif.get('address'),
                    }
                    for each in (address, *address.get('floating_ips', ()))
                )
    return found


def plain_addresses(row: Row) -> dict[str, list[dict[str, Any]]]:
    """Return the server's addresses by network label, each with only the fields 'version' and 'addr'."""
    return {
        label: [{name: one[name] for name in ('version', 'addr')} for one in found]
        for label, found in addresses(row).items()
    }


def _security_groups(row: Row, viewer: ServerView) -> Any:
    """Return the names of the security groups of the server's ports, as the info cache has them."""
    names = {
        name
        for vif in json.loads(row['network_info'] or '[]')
        for name in (vif.get('meta') or {}).get('security_groups') or ()
    }
    return [{'name': name} for name in sorted(names)] or ABSENT


def _fault(row: Row, viewer: ServerView) -> Any:
    fault = row.get('fault')
    if not fault or _status(row) not in _FAULTY:
        return ABSENT
    body = {'code': fault['code'], 'created': zulu(fault['created_at']), 'message': fault['message']}
    if fault['details'] and (viewer.is_admin or fault['code'] != 500):
        body['details'] = fault['details']
    return body


def _progress(row: Row, viewer: ServerView) -> Any:
    return int(row['progress'] or 0) if _status(row) in _PROGRESSING else ABSENT


def _zone(row: Row, viewer: ServerView) -> str:
    return row['availability_zone'] or (viewer.default_zone if row['host'] else '')


def _host_status(row: Row, viewer: ServerView) -> Any:
    # Check ``deleted``, too. Kilonova clears the host in a server's row when it deletes the server.
    # OpenStack Nova did not: servers that Nova deleted before the cloud changed to Kilonova still have a host.
    status = viewer.host_states.get(row['host'], '') if row['host'] and not row['deleted'] else ''
    if viewer.allows(HOST_STATUS, row):
        return status
    return status if status == 'UNKNOWN' and viewer.allows(HOST_STATUS_UNKNOWN, row) else ABSENT


def _volumes(row: Row, viewer: ServerView) -> list[dict[str, Any]]:
    return [{'id': volume, 'delete_on_termination': goes} for volume, goes in row['volumes']]


def _certificates(row: Row, viewer: ServerView) -> list[str] | None:
    text = row['trusted_certs']
    return envelopes.certificate_ids(text) if text else None


def _hints(row: Row, viewer: ServerView) -> dict[str, Any]:
    found: dict[str, Any] = viewer.wishes.get(row['uuid'], {}).get('hints') or {}
    return found


def _attribute(read: Callable[[Row, ServerView], Any]) -> Callable[[Row, ServerView], Any]:
    """Return a function that calls ``read`` only if the caller passes the policy rule EXTENDED_ATTRIBUTES.

    Without this right it returns ABSENT, so that the response does not have the field.
    """
    return lambda row, viewer: read(row, viewer) if viewer.allows(EXTENDED_ATTRIBUTES, row) else ABSENT


# Extended fields are those of Nova's former extensions, such as OS-EXT-AZ:availability_zone (see ``_extended``).
# _LATER: the kinds of responses that have the extended fields in every microversion: to GET, and in detailed lists.
# _ACTED: the kinds of responses that have the extended fields only from microversion 2.75 on: to PUT and to a rebuild.
_LATER, _ACTED = frozenset((ONE, LISTED)), frozenset((CHANGED, REBUILT))


def _extended(name: str, read: Callable[[Row, ServerView], Any], since: int = 1) -> tuple[Field, ...]:
    return (Field(name, read, since=since, kinds=_LATER), Field(name, read, since=max(since, 75), kinds=_ACTED))


FIELDS = Fields(
    Field('id', column('uuid')),
    Field('name', column('display_name')),
    Field('status', lambda row, viewer: _status(row)),
    Field('tenant_id', column('project_id', '')),
    Field('user_id', column('user_id', '')),
    Field('metadata', column('metadata')),
    Field('hostId', lambda row, viewer: host_id(row['project_id'], row['host'])),
    Field('image', _image, until=97),
    Field('image', _image_with_properties, since=98),
    Field('flavor', _flavor_link, until=46),
    Field('flavor', _flavor, since=47),
    Field('created', lambda row, viewer: zulu(row['created_at'])),
    Field('updated', lambda row, viewer: zulu(row['updated_at'] or row['created_at'])),
    # Before 2.75 the addresses in the responses to PUT and rebuild have only the fields 'version' and 'addr'.
    Field('addresses', lambda row, viewer: plain_addresses(row), until=74, kinds=_ACTED),
    Field('addresses', lambda row, viewer: addresses(row), since=75, kinds=_ACTED),
    Field('addresses', lambda row, viewer: addresses(row), kinds=_LATER),
    Field('accessIPv4', lambda row, viewer: str(row['access_ip_v4'] or '')),
    Field('accessIPv6', lambda row, viewer: str(row['access_ip_v6'] or '')),
    Field('links', lambda row, viewer: viewer.links.of('servers', row['uuid'])),
    Field('OS-DCF:diskConfig', lambda row, viewer: 'AUTO' if row['auto_disk_config'] else 'MANUAL'),
    Field('fault', _fault),
    Field('progress', _progress),
    *_extended('OS-EXT-AZ:availability_zone', _zone),
    *_extended('config_drive', column('config_drive', '')),
    *_extended('key_name', column('key_name')),
    *_extended('security_groups', _security_groups),
    Field('key_name', column('key_name'), since=54, until=74, kinds=frozenset((REBUILT,))),
    Field('user_data', column('user_data'), since=57, kinds=frozenset((REBUILT,))),
    *_extended('OS-SRV-USG:launched_at', lambda row, viewer: micro(row['launched_at'])),
    *_extended('OS-SRV-USG:terminated_at', lambda row, viewer: micro(row['terminated_at'])),
    *_extended('OS-EXT-SRV-ATTR:host', _attribute(column('host'))),
    *_extended(
        'OS-EXT-SRV-ATTR:instance_name',
        _attribute(lambda row, viewer: instance_name(viewer.instance_name_template, row)),
    ),
    *_extended('OS-EXT-SRV-ATTR:hypervisor_hostname', _attribute(column('node'))),
    *_extended('OS-EXT-SRV-ATTR:reservation_id', _attribute(column('reservation_id')), since=3),
    *_extended('OS-EXT-SRV-ATTR:launch_index', _attribute(column('launch_index')), since=3),
    *_extended('OS-EXT-SRV-ATTR:kernel_id', _attribute(column('kernel_id', '')), since=3),
    *_extended('OS-EXT-SRV-ATTR:ramdisk_id', _attribute(column('ramdisk_id', '')), since=3),
    *_extended('OS-EXT-SRV-ATTR:root_device_name', _attribute(column('root_device_name')), since=3),
    Field('OS-EXT-SRV-ATTR:user_data', _attribute(column('user_data')), since=3, kinds=_LATER),
    # The response to a rebuild (REBUILT) does not have this field. It has the field 'user_data' instead.
    Field('OS-EXT-SRV-ATTR:user_data', _attribute(column('user_data')), since=75, kinds=frozenset((CHANGED,))),
    Field('OS-EXT-SRV-ATTR:hostname', _attribute(column('hostname')), since=3, until=89, kinds=_LATER),
    Field('OS-EXT-SRV-ATTR:hostname', _attribute(column('hostname')), since=75, until=89, kinds=_ACTED),
    Field('OS-EXT-SRV-ATTR:hostname', column('hostname'), since=90),
    *_extended('OS-EXT-STS:task_state', column('task_state')),
    *_extended('OS-EXT-STS:vm_state', column('vm_state')),
    *_extended('OS-EXT-STS:power_state', lambda row, viewer: int(row['power_state'] or 0)),
    Field(VOLUMES, lambda row, viewer: [{'id': volume} for volume, _ in row['volumes']], until=2, kinds=_LATER),
    *_extended(VOLUMES, _volumes, since=3),
    Field('locked', lambda row, viewer: bool(row['locked']), since=9),
    *_extended('host_status', _host_status, since=16),
    Field('description', column('display_description'), since=19),
    Field('tags', column('tags'), since=26),
    Field('trusted_image_certificates', _certificates, since=63),
    Field('server_groups', lambda row, viewer: list(viewer.groups), since=71, kinds=frozenset((ONE, CHANGED, REBUILT))),
    Field('locked_reason', lambda row, viewer: row.get('locked_reason'), since=73),
    Field('pinned_availability_zone', lambda row, viewer: viewer.wishes.get(row['uuid'], {}).get('zone'), since=96),
    Field('scheduler_hints', _hints, since=100),
)


def render(row: Row, viewer: ServerView, kind: str = ONE) -> dict[str, Any]:
    """Return the response body of a server, with all fields that this kind of response has in the microversion."""
    return FIELDS.render(row, viewer, viewer.version, kind)


def brief(row: Row, viewer: ServerView) -> dict[str, Any]:
    """Return the entry of a server in the list without details: id, name and links."""
    return {'id': row['uuid'], 'name': row['display_name'], 'links': viewer.links.of('servers', row['uuid'])}


def unknown(row: Row, viewer: ServerView, detailed: bool) -> dict[str, Any]:
    """Return a list entry of a server whose cell does not answer (from microversion 2.69 on).

    The entry only has values from the server's instance mapping in the API database. With ``detailed`` the entry also
    has the project and the time of creation.
    """
    body = {'id': row['uuid'], 'status': 'UNKNOWN', 'links': viewer.links.of('servers', row['uuid'])}
    return {**body, 'tenant_id': row['project_id'], 'created': zulu(row['created_at'])} if detailed else body


def _silent(row: Row, viewer: ServerView) -> dict[str, Any]:
    """Return the response body of a single server whose cell does not answer (from microversion 2.69 on)."""
    return {
        **unknown(row, viewer, detailed=True),
        'user_id': row['user_id'] or '',
        'flavor': _flavor(row, viewer),
        'image': _image(row, viewer),
        'OS-EXT-AZ:availability_zone': row['availability_zone'] or 'UNKNOWN',
        'OS-EXT-STS:power_state': int(states.PowerState.NOSTATE),
    }


# --- handlers of requests --------------------------------------------------------------------------------------------
GROUPS_SINCE = 71


def viewer(call: Call, **facts: Any) -> ServerView:
    """Return the ServerView of a request. ``facts`` are further fields of the view, such as ``host_states``."""
    options = call.backend.options
    return ServerView(
        links=call.links,
        may=call.may,
        is_admin=call.ctxt.is_admin,
        version=call.version,
        default_zone=options.default_zone,
        instance_name_template=options.instance_name_template,
        **facts,
    )


def sees_hosts(call: Call) -> bool:
    """Return whether the response may have the field host_status, so that the states of hosts must be read.

    This is true if the caller passes the policy rule host_status (all states) or host_status:unknown-only (only the
    state UNKNOWN).
    """
    return call.may(HOST_STATUS) or call.may(HOST_STATUS_UNKNOWN)


def show(call: Call) -> Any:
    """Return a server (``GET /servers/{id}``)."""
    server = call.server
    if server.silent:
        return {'server': _silent(server.row, viewer(call))}
    return {'server': body(call, ONE)}


def body(call: Call, kind: str, changed: ServerRef | None = None) -> dict[str, Any]:
    """Return the response body of the server in the path.

    ``kind`` is the kind of the response: ONE (to GET), CHANGED (to PUT) or REBUILT (to a rebuild). ``changed`` is the
    server as it is after the request's change. If it is None, the server that was read at the start of the request is
    shown.
    """
    server = changed or call.server
    row = server.row
    host_states: dict[str, str] = {}
    wishes: dict[str, dict[str, Any]] = {}
    if server.cell is not None:
        with server.cell.read() as conn:
            add_facts(conn, [row], call.version)
            if row['host'] and call.version >= 16 and sees_hosts(call):
                host_states = queries.host_states(conn, [row['host']], call.backend.options.service_down_time)
    asked = call.version >= GROUPS_SINCE
    if call.version >= 96:
        with call.backend.api_db.read() as conn:
            wishes = queries.wishes(conn, [server.uuid])
        # Only the scheduler hint 'group' of a create request puts a server into a server group.
        # Without this hint, do not query the groups of the server.
        asked = 'group' in wishes.get(server.uuid, {}).get('hints', ())
    groups = server_groups.of_server(call.backend, server.uuid) if asked else []
    return render(row, viewer(call, host_states=host_states, wishes=wishes, groups=groups), kind)


def add_facts(conn: Connection, rows: Sequence[dict[str, Any]], version: int) -> None:
    """Add metadata, tags, volumes, image properties and faults to rows of servers of one cell.

    Runs at most two SQL statements.
    """
    facts = queries.facts(
        conn,
        [row['uuid'] for row in rows],
        with_tags=version >= 26,
        with_image=version >= 98,
        with_reason=version >= 73,
    )
    failed = [row['uuid'] for row in rows if row['deleted'] or row['vm_state'] in _FAILED]
    faults = queries.last_faults(conn, failed) if failed else {}
    for row in rows:
        row.update(facts[row['uuid']], fault=faults.get(row['uuid']))


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (Route('GET', SERVER, show, SHOW, server=PARTIAL, asks=SEEN),)
