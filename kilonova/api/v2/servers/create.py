"""The creation of servers (``POST /servers``): request schema, policy and response."""

from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.schemas.types import Json
from kilonova.api.services import block_devices
from kilonova.api.services import create as creation
from kilonova.api.wsgi import Call, Reply, Route
from kilonova.errors import Invalid

# --- policy rules ----------------------------------------------------------------------------------------------------
CREATE = f'{PREFIX}servers:create'
FORCED_HOST, ZERO_DISK = f'{CREATE}:forced_host', f'{CREATE}:zero_disk_flavor'
ATTACH_VOLUME, ATTACH_NETWORK = f'{CREATE}:attach_volume', f'{CREATE}:attach_network'
TRUSTED_CERTS = f'{CREATE}:trusted_certs'
ATTACH_EXTERNAL = 'network:attach_external_network'
REQUESTED_DESTINATION = 'compute:servers:create:requested_destination'
RULES = (
    rule(CREATE, MEMBER, 'Create servers.'),
    rule(FORCED_HOST, ADMIN, "Create servers on a given host, without the scheduler's filters."),
    rule(REQUESTED_DESTINATION, ADMIN, "Create servers on a given host, if it passes the scheduler's filters."),
    rule(ATTACH_VOLUME, MEMBER, 'Create servers with volumes.'),
    rule(ATTACH_NETWORK, MEMBER, 'Create servers on given networks or ports.'),
    rule(ATTACH_EXTERNAL, ADMIN, 'Create servers on, or attach servers to, external networks that are not shared.'),
    rule(TRUSTED_CERTS, MEMBER, 'Create servers with trusted image certificates.'),
    rule(ZERO_DISK, ADMIN, 'Create servers from an image with a flavor whose disk size is 0.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# The maximum length of each of these lists: networks, block devices, personality files and security groups.
MOST = 255

# Nova introduced device tags with 2.32, dropped them by mistake, and introduced them again with 2.42.
_TAG = (Prop('tag', t.TAG, since=32, until=32), Prop('tag', t.TAG, since=42))
_NETWORK_TAG = (Prop('tag', t.TAG, since=32, until=36), Prop('tag', t.TAG, since=42))

_FIXED_IP = {'type': 'string', 'maxLength': 64, 'oneOf': [{'format': 'ipv4'}, {'format': 'ipv6'}]}
_OLD_NETWORK = Obj(
    Prop('fixed_ip', _FIXED_IP),
    Prop('port', {'oneOf': [t.UUID, t.NULL]}),
    # Until 2.36 the id of a network could be any text.
    Prop('uuid', {'type': 'string', 'maxLength': 255}),
    *_NETWORK_TAG,
)
_NETWORK = Obj(
    Prop('fixed_ip', _FIXED_IP), Prop('port', {'oneOf': [t.UUID, t.NULL]}), Prop('uuid', t.UUID), *_NETWORK_TAG
)
_OLD_NETWORKS = {'type': 'array', 'items': _OLD_NETWORK, 'maxItems': MOST}
_NETWORKS = {'oneOf': [{'type': 'array', 'items': _NETWORK, 'maxItems': MOST}, t.one_of('none', 'auto')]}

_VOLUME_SIZE = {
    'type': ['integer', 'string'],
    'pattern': '^[0-9]+$',
    'minimum': 1,
    'maximum': t.MAX_INT,
    'minLength': 1,
    'maxLength': 20,
}
_DEVICE_NAME = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': r'^[a-zA-Z0-9._\-/]*$'}
_CONNECTION = {'type': 'string', 'maxLength': 65535}
_OLD_DEVICE = Obj(
    Prop('virtual_name', {'type': 'string', 'maxLength': 255}),
    Prop('volume_id', t.UUID),
    Prop('snapshot_id', t.UUID),
    Prop('volume_size', _VOLUME_SIZE),
    Prop('device_name', _DEVICE_NAME),
    Prop('delete_on_termination', t.BOOLEAN),
    Prop('no_device', {}),
    Prop('connection_info', _CONNECTION),
)
_DEVICE = Obj(
    Prop('source_type', t.one_of('volume', 'image', 'snapshot', 'blank')),
    Prop('uuid', {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': '^[a-zA-Z0-9._-]*$'}),
    Prop('image_id', t.UUID),
    Prop('volume_id', t.UUID),
    Prop('snapshot_id', t.UUID),
    Prop('destination_type', t.one_of('local', 'volume')),
    Prop('guest_format', {'type': 'string', 'maxLength': 255}),
    Prop('device_type', {'type': 'string', 'maxLength': 255}),
    Prop('disk_bus', {'type': 'string', 'maxLength': 255}),
    Prop(
        'boot_index',
        {
            'type': ['integer', 'string', 'null'],
            'pattern': '^-?[0-9]+$',
            'minimum': -1,
            'maximum': t.MAX_INT,
            'maxLength': 20,
        },
    ),
    Prop('volume_size', _VOLUME_SIZE),
    Prop('device_name', _DEVICE_NAME),
    Prop('delete_on_termination', t.BOOLEAN),
    Prop('no_device', {}),
    Prop('connection_info', _CONNECTION),
    *_TAG,
    Prop('volume_type', {'type': ['string', 'null'], 'minLength': 0, 'maxLength': 255}, since=67),
)

_HINT_IDS = {'oneOf': [t.UUID, {'type': 'array', 'items': t.UUID, 'maxItems': 4 * MOST}]}
_HINTS = Obj(
    Prop('group', t.UUID),
    Prop('different_host', _HINT_IDS),
    Prop('same_host', _HINT_IDS),
    Prop('query', {'type': ['string', 'object'], 'maxLength': 65535}),
    Prop('target_cell', t.NAME),
    Prop(
        'different_cell',
        {
            'type': ['string', 'array'],
            'maxLength': 255,
            'maxItems': MOST,
            'items': {'type': 'string', 'maxLength': 255},
        },
    ),
    Prop('build_near_host_ip', _FIXED_IP),
    Prop('cidr', {'type': 'string', 'pattern': r'^/[0-9a-f.:]+$', 'maxLength': 64}),
    additional=True,
)

# The schemas PERSONALITY, CERTIFICATES, HOSTNAME and USER_DATA are used for create requests and rebuild requests.
PERSONALITY = Prop(
    'personality',
    {
        'type': 'array',
        'maxItems': MOST,
        'items': Obj(
            Prop('path', {'type': 'string', 'maxLength': 4096}),
            Prop('contents', {'type': 'string', 'format': 'base64', 'maxLength': 114688}),
        ),
    },
    until=56,
)
CERTIFICATES = Prop(
    'trusted_image_certificates',
    {
        'oneOf': [
            {
                'type': 'array',
                'items': {'type': 'string', 'minLength': 1, 'maxLength': 255},
                'minItems': 1,
                'maxItems': 50,
                'uniqueItems': True,
            },
            t.NULL,
        ]
    },
    since=63,
)
HOSTNAME = (Prop('hostname', t.HOSTNAME, since=90, until=93), Prop('hostname', t.FQDN, since=94))
USER_DATA = {'type': 'string', 'format': 'base64', 'maxLength': 65535}

_SERVER = Obj(
    Prop('name', t.NAME, required=True),
    Prop(
        'flavorRef',
        {'type': ['string', 'integer'], 'minLength': 1, 'maxLength': 255, 'minimum': 0, 'maximum': t.MAX_INT},
        required=True,
    ),
    Prop('imageRef', {'oneOf': [t.UUID, {'type': 'string', 'maxLength': 0}]}),
    Prop('networks', _OLD_NETWORKS, until=36),
    Prop('networks', _NETWORKS, required=True, since=37),
    Prop('adminPass', t.PASSWORD),
    Prop('metadata', t.METADATA),
    Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
    Prop('accessIPv4', t.IPV4),
    Prop('accessIPv6', t.IPV6),
    PERSONALITY,
    Prop('availability_zone', t.ZONE),
    Prop('block_device_mapping', {'type': 'array', 'items': _OLD_DEVICE, 'maxItems': MOST}),
    Prop('block_device_mapping_v2', {'type': 'array', 'items': _DEVICE, 'maxItems': MOST}),
    Prop('config_drive', t.BOOLEAN),
    Prop('key_name', t.NAME),
    Prop('min_count', t.integer(1)),
    Prop('max_count', t.integer(1)),
    Prop('return_reservation_id', t.BOOLEAN),
    Prop(
        'security_groups',
        {
            'type': 'array',
            'maxItems': MOST,
            'items': Obj(Prop('name', {'type': 'string', 'minLength': 1, 'maxLength': 255})),
        },
    ),
    Prop('user_data', USER_DATA),
    Prop('description', t.TEXT, since=19),
    Prop('tags', {'type': 'array', 'items': t.TAG, 'maxItems': 50}, since=52),
    CERTIFICATES,
    Prop('host', t.HOST, since=74),
    Prop('hypervisor_hostname', t.HYPERVISOR_HOSTNAME, since=74),
    *HOSTNAME,
)

BODY = Obj(
    Prop('server', _SERVER, required=True),
    Prop('os:scheduler_hints', _HINTS),
    Prop('OS-SCH-HNT:scheduler_hints', _HINTS),
)


# --- handlers of requests --------------------------------------------------------------------------------------------
DESCRIPTION_SINCE, MULTIATTACH_SINCE, GUARANTEES_SINCE = 19, 60, 72
# The prefix of internal scheduler hints, such as _nova_forced_move.
# Kilonova's API and conductors set internal hints for the scheduler.
# A user's request with an internal hint is refused: the hint could make the scheduler skip filters or allocations.
INTERNAL_HINTS = '_nova_'


def create(call: Call) -> Reply:
    """Create one or several servers (``POST /servers``).

    The response has the first server, or with return_reservation_id only the reservation id.
    """
    body = call.body['server']
    request = _request(call, body)
    _authorise_parts(call, request)
    made = creation.create(call.backend, call.ctxt, request)
    location = call.links.to('servers', made.rows[0]['uuid'])
    if boolean(body.get('return_reservation_id')):
        return Reply({'reservation_id': made.reservation_id})
    password = made.admin_password if has_password(call) else None
    groups = request.security_groups or ['default']
    return Reply({'server': _body(call, made.rows[0], password, groups)}, (('Location', location),))


def _request(call: Call, body: dict[str, Any]) -> creation.CreateRequest:
    zone, host, node = creation.parse_zone(body.get('availability_zone'))
    minimum = int(body.get('min_count') or 1)
    # Before 2.19 requests have no description: the server gets its name as description.
    description = body.get('description') if call.version >= DESCRIPTION_SINCE else body['name']
    hints = call.body.get('os:scheduler_hints') or call.body.get('OS-SCH-HNT:scheduler_hints') or {}
    for name in hints:
        if name.startswith(INTERNAL_HINTS):
            raise Invalid(
                f'Invalid input for field/attribute scheduler_hints. Value: {name}. Names that begin with '
                f"'{INTERNAL_HINTS}' are reserved for internal use."
            )
    return creation.CreateRequest(
        name=body['name'],
        flavor_ref=str(body['flavorRef']),
        image_ref=body.get('imageRef') or None,
        networks=body.get('networks'),
        metadata=body.get('metadata') or {},
        admin_password=body.get('adminPass'),
        zone=zone,
        force_host=host,
        force_node=node,
        host=body.get('host'),
        hypervisor_hostname=body.get('hypervisor_hostname'),
        block_devices=body.get('block_device_mapping_v2') or [],
        old_block_devices=body.get('block_device_mapping') or [],
        personality=body.get('personality') or [],
        config_drive=boolean(body.get('config_drive')),
        user_data=body.get('user_data'),
        key_name=body.get('key_name'),
        min_count=minimum,
        max_count=int(body.get('max_count') or minimum),
        security_groups=list(
            dict.fromkeys(group['name'] for group in body.get('security_groups') or () if 'name' in group)
        ),
        disk_config=body.get('OS-DCF:diskConfig'),
        access_ip_v4=body.get('accessIPv4'),
        access_ip_v6=body.get('accessIPv6'),
        description=description,
        tags=sorted(set(body.get('tags') or ())),
        hostname=body.get('hostname'),
        hints=hints,
        certificates=body.get('trusted_image_certificates') or [],
        zero_disk_allowed=call.may(ZERO_DISK),
        external_network_allowed=call.may(ATTACH_EXTERNAL),
        multiattach_allowed=call.version >= MULTIATTACH_SINCE,
        guarantees_allowed=call.version >= GUARANTEES_SINCE,
    )


def _authorise_parts(call: Call, request: creation.CreateRequest) -> None:
    if request.force_host or request.force_node:
        call.authorise(FORCED_HOST)
    if request.host or request.hypervisor_hostname:
        call.authorise(REQUESTED_DESTINATION)
    if request.old_block_devices or any(block_devices.is_volume(device) for device in request.block_devices):
        call.authorise(ATTACH_VOLUME)
    if isinstance(request.networks, list) and request.networks:
        call.authorise(ATTACH_NETWORK)
    if request.certificates:
        call.authorise(TRUSTED_CERTS)


def boolean(value: Json) -> bool:
    """Convert a boolean of a request body, which may be a text, to a bool. None is converted to False."""
    return strutils.bool_from_string(value) if value is not None else False


def has_password(call: Call) -> bool:
    """Return whether responses contain the administrator's passwords of guests."""
    return call.backend.options.enable_instance_password


def _body(call: Call, row: dict[str, Any], password: str | None, groups: list[str]) -> dict[str, Any]:
    """Return the response body of a create, which describes the first of the new servers.

    ``groups`` are the names of its security groups. The body has no password if ``password`` is None.
    """
    body = {
        'id': row['uuid'],
        'links': call.links.of('servers', row['uuid']),
        'OS-DCF:diskConfig': 'AUTO' if row['auto_disk_config'] else 'MANUAL',
        'security_groups': [{'name': name} for name in groups],
    }
    if password is not None:
        body['adminPass'] = password
    return body


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (
    Route(
        'POST',
        '/servers',
        create,
        CREATE,
        body=BODY,
        status=202,
        asks=(
            FORCED_HOST,
            REQUESTED_DESTINATION,
            ATTACH_VOLUME,
            ATTACH_NETWORK,
            ATTACH_EXTERNAL,
            TRUSTED_CERTS,
            ZERO_DISK,
        ),
    ),
)
