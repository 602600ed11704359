"""What may be said about servers: create, update, and the queries of their lists (rest-api.md §1.5, §2.1)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

# Networks, disks, files and groups of one request.
MOST = 255

# Device tags came with 2.32, were lost by mistake, and came back with 2.42.
_TAG = (Prop('tag', t.TAG, since=32, until=32), Prop('tag', t.TAG, since=42))
_NETWORK_TAG = (Prop('tag', t.TAG, since=32, until=36), Prop('tag', t.TAG, since=42))

_FIXED_IP = {'type': 'string', 'maxLength': 64, 'oneOf': [{'format': 'ipv4'}, {'format': 'ipv6'}]}
_OLD_NETWORK = Obj(
    Prop('fixed_ip', _FIXED_IP),
    Prop('port', {'oneOf': [t.UUID, t.NULL]}),
    # Until 2.36 a network could be named by anything that its manager understood.
    Prop('uuid', {'type': 'string', 'maxLength': 255}),
    *_NETWORK_TAG)
_NETWORK = Obj(
    Prop('fixed_ip', _FIXED_IP),
    Prop('port', {'oneOf': [t.UUID, t.NULL]}),
    Prop('uuid', t.UUID),
    *_NETWORK_TAG)
_OLD_NETWORKS = {'type': 'array', 'items': _OLD_NETWORK, 'maxItems': MOST}
_NETWORKS = {'oneOf': [{'type': 'array', 'items': _NETWORK, 'maxItems': MOST}, t.one_of('none', 'auto')]}

_VOLUME_SIZE = {'type': ['integer', 'string'], 'pattern': '^[0-9]+$', 'minimum': 1, 'maximum': t.MAX_INT,
                'minLength': 1, 'maxLength': 20}
_DEVICE_NAME = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': r'^[a-zA-Z0-9._\-/]*$'}
_CONNECTION = {'type': 'string', 'maxLength': 65535}
_OLD_DEVICE = Obj(
    Prop('virtual_name', {'type': 'string', 'maxLength': 255}), Prop('volume_id', t.UUID),
    Prop('snapshot_id', t.UUID), Prop('volume_size', _VOLUME_SIZE), Prop('device_name', _DEVICE_NAME),
    Prop('delete_on_termination', t.BOOLEAN), Prop('no_device', {}), Prop('connection_info', _CONNECTION))
_DEVICE = Obj(
    Prop('source_type', t.one_of('volume', 'image', 'snapshot', 'blank')),
    Prop('uuid', {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': '^[a-zA-Z0-9._-]*$'}),
    Prop('image_id', t.UUID), Prop('volume_id', t.UUID), Prop('snapshot_id', t.UUID),
    Prop('destination_type', t.one_of('local', 'volume')),
    Prop('guest_format', {'type': 'string', 'maxLength': 255}),
    Prop('device_type', {'type': 'string', 'maxLength': 255}),
    Prop('disk_bus', {'type': 'string', 'maxLength': 255}),
    Prop('boot_index', {'type': ['integer', 'string', 'null'], 'pattern': '^-?[0-9]+$', 'minimum': -1,
                        'maximum': t.MAX_INT, 'maxLength': 20}),
    Prop('volume_size', _VOLUME_SIZE), Prop('device_name', _DEVICE_NAME),
    Prop('delete_on_termination', t.BOOLEAN), Prop('no_device', {}), Prop('connection_info', _CONNECTION),
    *_TAG, Prop('volume_type', {'type': ['string', 'null'], 'minLength': 0, 'maxLength': 255}, since=67))

_HINT_IDS = {'oneOf': [t.UUID, {'type': 'array', 'items': t.UUID, 'maxItems': 4 * MOST}]}
_HINTS = Obj(
    Prop('group', t.UUID), Prop('different_host', _HINT_IDS), Prop('same_host', _HINT_IDS),
    Prop('query', {'type': ['string', 'object'], 'maxLength': 65535}), Prop('target_cell', t.NAME),
    Prop('different_cell', {'type': ['string', 'array'], 'maxLength': 255, 'maxItems': MOST,
                             'items': {'type': 'string', 'maxLength': 255}}),
    Prop('build_near_host_ip', _FIXED_IP), Prop('cidr', {'type': 'string', 'pattern': r'^/[0-9a-f.:]+$',
                                                           'maxLength': 64}),
    additional=True)

_SERVER = Obj(
    Prop('name', t.NAME, required=True),
    Prop('flavorRef', {'type': ['string', 'integer'], 'minLength': 1, 'maxLength': 255, 'minimum': 0,
                       'maximum': t.MAX_INT}, required=True),
    Prop('imageRef', {'oneOf': [t.UUID, {'type': 'string', 'maxLength': 0}]}),
    Prop('networks', _OLD_NETWORKS, until=36), Prop('networks', _NETWORKS, required=True, since=37),
    Prop('adminPass', t.PASSWORD), Prop('metadata', t.METADATA), Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
    Prop('accessIPv4', t.IPV4), Prop('accessIPv6', t.IPV6),
    Prop('personality', {'type': 'array', 'maxItems': MOST, 'items': Obj(
        Prop('path', {'type': 'string', 'maxLength': 4096}),
        Prop('contents', {'type': 'string', 'format': 'base64', 'maxLength': 114688}))}, until=56),
    Prop('availability_zone', t.ZONE),
    Prop('block_device_mapping', {'type': 'array', 'items': _OLD_DEVICE, 'maxItems': MOST}),
    Prop('block_device_mapping_v2', {'type': 'array', 'items': _DEVICE, 'maxItems': MOST}),
    Prop('config_drive', t.BOOLEAN), Prop('key_name', t.NAME),
    Prop('min_count', t.integer(1)), Prop('max_count', t.integer(1)), Prop('return_reservation_id', t.BOOLEAN),
    Prop('security_groups', {'type': 'array', 'maxItems': MOST, 'items': Obj(
        Prop('name', {'type': 'string', 'minLength': 1, 'maxLength': 255}))}),
    Prop('user_data', {'type': 'string', 'format': 'base64', 'maxLength': 65535}),
    Prop('description', t.TEXT, since=19),
    Prop('tags', {'type': 'array', 'items': t.TAG, 'maxItems': 50}, since=52),
    Prop('trusted_image_certificates', {'oneOf': [
        {'type': 'array', 'items': {'type': 'string', 'minLength': 1, 'maxLength': 255}, 'minItems': 1, 'maxItems': 50,
         'uniqueItems': True}, t.NULL]}, since=63),
    Prop('host', t.HOST, since=74), Prop('hypervisor_hostname', t.HYPERVISOR_HOSTNAME, since=74),
    Prop('hostname', t.HOSTNAME, since=90, until=93), Prop('hostname', t.FQDN, since=94))

CREATE = Obj(Prop('server', _SERVER, required=True), Prop('os:scheduler_hints', _HINTS),
             Prop('OS-SCH-HNT:scheduler_hints', _HINTS))

UPDATE = Obj(Prop('server', Obj(
    Prop('name', t.NAME), Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
    Prop('accessIPv4', t.IPV4), Prop('accessIPv6', t.IPV6), Prop('description', t.TEXT, since=19),
    Prop('hostname', t.HOSTNAME, since=90, until=93), Prop('hostname', t.FQDN, since=94),
    Prop('pinned_availability_zone', {'oneOf': [t.ZONE, t.NULL]}, since=104)), required=True))

LOCKED_SINCE = 73
SORT_KEYS = (
    'access_ip_v4', 'access_ip_v6', 'auto_disk_config', 'availability_zone', 'config_drive', 'created_at',
    'display_description', 'display_name', 'host', 'hostname', 'image_ref', 'instance_type_id', 'kernel_id',
    'key_name', 'launch_index', 'launched_at', 'locked_by', 'node', 'power_state', 'progress', 'project_id',
    'ramdisk_id', 'root_device_name', 'task_state', 'terminated_at', 'updated_at', 'user_id', 'uuid', 'vm_state')
# Accepted and without effect until 2.74: columns that say nothing about servers.
_DEAD_SORT_KEYS = (
    'architecture', 'cell_name', 'cleaned', 'default_ephemeral_device', 'default_swap_device', 'deleted', 'deleted_at',
    'disable_terminate', 'ephemeral_gb', 'ephemeral_key_uuid', 'id', 'key_data', 'launched_on', 'locked', 'memory_mb',
    'os_type', 'reservation_id', 'root_gb', 'shutdown_terminate', 'user_data', 'vcpus', 'vm_mode')


def _sort_key(*more: str) -> dict:
    return t.one_of(*sorted({*SORT_KEYS, *more}))


_DATED = ('changes-since', 'created_at', 'launched_at', 'terminated_at')
_TEXTS = (
    'user_id', 'project_id', 'tenant_id', 'launch_index', 'image_ref', 'image', 'kernel_id', 'ramdisk_id', 'hostname',
    'key_name', 'power_state', 'vm_state', 'task_state', 'host', 'node', 'flavor', 'reservation_id',
    'availability_zone', 'uuid', 'display_description', 'description', 'locked_by', 'root_device_name', 'config_drive',
    'access_ip_v4', 'access_ip_v6', 'auto_disk_config', 'progress', 'soft_deleted', 'deleted', 'status', 'all_tenants')
# Names of tables, not of columns: known, and refused to those who may use all filters.
FORBIDDEN_FILTERS = ('block_device_mapping', 'services', 'metadata', 'system_metadata', 'info_cache',
                     'security_groups', 'pci_devices')

INDEX = Query.of(
    Prop('limit', t.NUMBER_TEXT), Prop('marker', t.ANY_TEXT),
    Prop('sort_key', _sort_key(*_DEAD_SORT_KEYS), until=LOCKED_SINCE - 1),
    Prop('sort_key', _sort_key(*_DEAD_SORT_KEYS, 'locked'), since=LOCKED_SINCE, until=74),
    Prop('sort_key', _sort_key('locked'), since=75),
    Prop('sort_dir', t.ANY_TEXT),
    Prop('name', t.REGEX_TEXT), Prop('display_name', t.REGEX_TEXT), Prop('ip', t.REGEX_TEXT),
    Prop('ip6', t.REGEX_TEXT),
    *(Prop(name, t.ANY_TEXT) for name in (*_TEXTS, *FORBIDDEN_FILTERS)), *(Prop(name, t.DATE_TEXT) for name in _DATED),
    *(Prop(name, t.ANY_TEXT, since=26) for name in ('tags', 'tags-any', 'not-tags', 'not-tags-any')),
    Prop('changes-before', t.DATE_TEXT, since=66),
    Prop('locked', t.BOOLEAN, since=LOCKED_SINCE),
    private=True)
