"""The keys of bodies by version and their types, written down from what the field answers.

This table and the samples are independent: the samples say what is answered, this says what is to be answered.
"""

from __future__ import annotations

import itertools

import pytest

from kilonova.api.routes import ROUTES
from kilonova.api.versions import MAX
from tests.api import counts, examples, table

# s string, i integer, f float, b boolean, n null, d object, l list; several: any of them.
TYPES = {'s': str, 'i': int, 'f': float, 'b': bool, 'n': type(None), 'd': dict, 'l': list}

_SERVER = (
    'OS-DCF:diskConfig:s OS-EXT-AZ:availability_zone:s OS-EXT-SRV-ATTR:host:s '
    'OS-EXT-SRV-ATTR:hypervisor_hostname:s OS-EXT-SRV-ATTR:instance_name:s OS-EXT-STS:power_state:i '
    'OS-EXT-STS:task_state:n OS-EXT-STS:vm_state:s OS-SRV-USG:launched_at:s OS-SRV-USG:terminated_at:n '
    'accessIPv4:s accessIPv6:s addresses:d config_drive:s created:s flavor:d hostId:s id:s image:d key_name:s '
    'links:l metadata:d name:s os-extended-volumes:volumes_attached:l progress:i status:s tenant_id:s '
    'updated:s user_id:s security_groups:l'
)
_SHOWN = {
    1: _SERVER,
    3: 'OS-EXT-SRV-ATTR:hostname:s OS-EXT-SRV-ATTR:kernel_id:s OS-EXT-SRV-ATTR:launch_index:i '
    'OS-EXT-SRV-ATTR:ramdisk_id:s OS-EXT-SRV-ATTR:reservation_id:s OS-EXT-SRV-ATTR:root_device_name:s '
    'OS-EXT-SRV-ATTR:user_data:s',
    9: 'locked:b',
    16: 'host_status:s',
    19: 'description:s',
    26: 'tags:l',
    63: 'trusted_image_certificates:l',
    73: 'locked_reason:n',
    96: 'pinned_availability_zone:sn',
    100: 'scheduler_hints:d',
}
_FIRST_PART = (
    'OS-DCF:diskConfig:s accessIPv4:s accessIPv6:s addresses:d created:s flavor:d hostId:s id:s image:d '
    'links:l metadata:d name:s progress:i status:s tenant_id:s updated:s user_id:s'
)
_FLAVOR = {
    1: 'OS-FLV-DISABLED:disabled:b OS-FLV-EXT-DATA:ephemeral:i disk:i id:s links:l name:s '
    'os-flavor-access:is_public:b ram:i rxtx_factor:f swap:s vcpus:i',
    55: 'description:s',
    61: 'extra_specs:d',
    75: 'swap:i',
    102: '-rxtx_factor -OS-FLV-DISABLED:disabled',
}
_MADE_FLAVOR = {**_FLAVOR, 1: _FLAVOR[1].replace('swap:s', 'swap:i')}
_DATED = 'created_at:s deleted:b deleted_at:n updated_at:sn'
_AGGREGATE = {1: f'availability_zone:sn id:i name:s {_DATED} hosts:l metadata:d', 41: 'uuid:s'}
_NODE = {
    1: 'cpu_info:s current_workload:i disk_available_least:i free_disk_gb:i free_ram_mb:i host_ip:s '
    'hypervisor_hostname:s hypervisor_type:s hypervisor_version:i id:i local_gb:i local_gb_used:i memory_mb:i '
    'memory_mb_used:i running_vms:i service:d state:s status:s vcpus:i vcpus_used:i',
    28: 'cpu_info:d',
    53: 'id:s',
    88: '-cpu_info -current_workload -disk_available_least -free_disk_gb -free_ram_mb -local_gb -local_gb_used '
    '-memory_mb -memory_mb_used -running_vms -vcpus -vcpus_used uptime:sn',
}
_SERVICE = {
    1: 'binary:s disabled_reason:sn host:s id:i state:s status:s updated_at:sn zone:s',
    11: 'forced_down:b',
    53: 'id:s',
}
_MIGRATION = {
    1: 'created_at:s dest_compute:s dest_host:s dest_node:s id:i instance_uuid:s new_instance_type_id:i '
    'old_instance_type_id:i source_compute:s source_node:s status:s updated_at:s',
    23: 'migration_type:s',
    59: 'uuid:s',
    80: 'project_id:s user_id:s',
}
_ACTION = {1: 'action:s instance_uuid:s message:n project_id:s request_id:s start_time:s user_id:s', 58: 'updated_at:s'}
_INJECTED = 'injected_file_content_bytes injected_file_path_bytes injected_files'
_NETWORK = 'fixed_ips floating_ips security_group_rules security_groups'
_CORE = 'cores instances key_pairs metadata_items ram server_group_members server_groups'


def _quota(kind, *, without_id=False, network_until=35):
    def typed(names):
        return ' '.join(f'{name}:{kind}' for name in names.split())

    def gone(names):
        return ' '.join(f'-{name}' for name in names.split())

    return {
        1: typed(f'{_CORE} {_INJECTED} {_NETWORK}') + ('' if without_id else ' id:s'),
        network_until + 1: gone(_NETWORK),
        57: gone(_INJECTED),
    }


_KEY = 'fingerprint:s name:s public_key:s'
_INTERFACE = {1: 'fixed_ips:l mac_addr:s net_id:s port_id:s port_state:s', 70: 'tag:sn'}
_VOLUME = {
    1: 'device:s id:s serverId:s volumeId:s',
    70: 'tag:sn',
    79: 'delete_on_termination:b',
    89: '-id attachment_id:s bdm_uuid:s',
}
_GROUP = {
    1: 'id:s members:l metadata:d name:s policies:l',
    13: 'project_id:s user_id:s',
    64: '-metadata -policies policy:s rules:d',
}
_LIMITED = (
    'maxImageMeta maxPersonality maxPersonalitySize maxSecurityGroupRules maxSecurityGroups '
    'maxServerGroupMembers maxServerGroups maxServerMeta maxTotalCores maxTotalFloatingIps maxTotalInstances '
    'maxTotalKeypairs maxTotalRAMSize totalCoresUsed totalFloatingIpsUsed totalInstancesUsed totalRAMUsed '
    'totalSecurityGroupsUsed totalServerGroupsUsed'
)
_LIMITS = {
    1: ' '.join(f'{name}:i' for name in _LIMITED.split()),
    36: '-maxSecurityGroupRules -maxSecurityGroups -maxTotalFloatingIps -totalFloatingIpsUsed -totalSecurityGroupsUsed',
    39: '-maxImageMeta',
    57: '-maxPersonality -maxPersonalitySize',
}
_USAGE = (
    'start:s stop:s tenant_id:s total_hours:f total_local_gb_usage:f total_memory_mb_usage:f '
    'total_vcpus_usage:f server_usages:l'
)
_USED = (
    'ended_at:sn flavor:s hours:f instance_id:s local_gb:i memory_mb:i name:s started_at:s state:s tenant_id:s '
    'uptime:i vcpus:i'
)
_STATISTICS = (
    'count current_workload disk_available_least free_disk_gb free_ram_mb local_gb local_gb_used memory_mb '
    'memory_mb_used running_vms vcpus vcpus_used'
)

# (route, where in the body, {version: what comes (key:types) and what goes (-key)}).
KEYS = [
    ('GET /servers', '', {1: 'servers:l servers_links:l'}),
    ('GET /servers', 'servers/0', {1: 'id:s links:l name:s'}),
    ('GET /servers', 'servers_links/0', {1: 'href:s rel:s'}),
    ('GET /servers/{server_id}', '', {1: 'server:d'}),
    ('GET /servers/{server_id}', 'server', {**_SHOWN, 71: 'server_groups:l'}),
    (
        'GET /servers/{server_id}',
        'server/flavor',
        {1: 'id:s links:l', 47: '-id -links disk:i ephemeral:i extra_specs:d original_name:s ram:i swap:i vcpus:i'},
    ),
    ('GET /servers/{server_id}', 'server/image', {1: 'id:s links:l', 98: 'properties:d'}),
    (
        'GET /servers/{server_id}',
        'server/addresses/private/0',
        {1: 'addr:s version:i OS-EXT-IPS:type:s OS-EXT-IPS-MAC:mac_addr:s'},
    ),
    ('GET /servers/detail', 'servers/0', _SHOWN),
    (
        'PUT /servers/{server_id}',
        'server',
        {
            1: _FIRST_PART,
            9: 'locked:b',
            19: 'description:s',
            26: 'tags:l',
            63: 'trusted_image_certificates:l',
            71: 'server_groups:l',
            73: 'locked_reason:n',
            75: ' '.join(
                word for word in f'{_SERVER} {_SHOWN[3]} {_SHOWN[16]}'.split() if word not in _FIRST_PART.split()
            ),
            96: 'pinned_availability_zone:sn',
            100: 'scheduler_hints:d',
        },
    ),
    ('POST /servers', '', {1: 'server:d'}),
    ('POST /servers', 'server', {1: 'OS-DCF:diskConfig:s adminPass:s id:s links:l security_groups:l'}),
    ('POST /servers', 'server/security_groups/0', {1: 'name:s'}),
    ('GET /flavors', '', {1: 'flavors:l flavors_links:l'}),
    ('GET /flavors', 'flavors/0', {1: 'id:s links:l name:s', 55: 'description:s'}),
    ('GET /flavors/{flavor_id}', 'flavor', _FLAVOR),
    ('GET /flavors/detail', 'flavors/0', _FLAVOR),
    ('GET /flavors/detail', '', {1: 'flavors:l flavors_links:l'}),
    ('POST /flavors', 'flavor', _MADE_FLAVOR),
    ('PUT /flavors/{flavor_id}', 'flavor', {1: _FLAVOR[1], **_FLAVOR}),
    ('GET /flavors/{flavor_id}/os-extra_specs', '', {1: 'extra_specs:d'}),
    ('POST /flavors/{flavor_id}/os-extra_specs', 'extra_specs', {1: 'hw:numa_nodes:s'}),
    ('GET /flavors/{flavor_id}/os-extra_specs/{key}', '', {1: 'pci_passthrough:alias:s'}),
    ('GET /flavors/{flavor_id}/os-flavor-access', 'flavor_access/0', {1: 'flavor_id:s tenant_id:s'}),
    ('POST /flavors/{flavor_id}/action addTenantAccess', 'flavor_access/0', {1: 'flavor_id:s tenant_id:s'}),
    ('POST /os-keypairs since 1', 'keypair', {1: f'{_KEY} private_key:s user_id:s'}),
    ('POST /os-keypairs since 2', 'keypair', {2: f'{_KEY} private_key:s type:s user_id:s', 92: '-private_key'}),
    ('GET /os-keypairs', 'keypairs/0/keypair', {1: _KEY, 2: 'type:s'}),
    ('GET /os-keypairs/{keypair_name}', 'keypair', {1: f'{_KEY} {_DATED} id:i user_id:s', 2: 'type:s'}),
    ('POST /os-aggregates', 'aggregate', {1: f'availability_zone:sn id:i name:s {_DATED}', 41: 'uuid:s'}),
    ('GET /os-aggregates', 'aggregates/0', _AGGREGATE),
    ('GET /os-aggregates/{aggregate_id}', 'aggregate', _AGGREGATE),
    ('PUT /os-aggregates/{aggregate_id}', 'aggregate', _AGGREGATE),
    ('POST /os-aggregates/{aggregate_id}/action add_host', 'aggregate', _AGGREGATE),
    ('POST /os-aggregates/{aggregate_id}/action remove_host', 'aggregate', _AGGREGATE),
    ('POST /os-aggregates/{aggregate_id}/action set_metadata', 'aggregate', _AGGREGATE),
    ('GET /os-availability-zone', 'availabilityZoneInfo/0', {1: 'hosts:n zoneName:s zoneState:d'}),
    ('GET /os-availability-zone', 'availabilityZoneInfo/0/zoneState', {1: 'available:b'}),
    (
        'GET /os-availability-zone/detail',
        'availabilityZoneInfo/2/hosts/gpu1/nova-compute',
        {1: 'active:b available:b updated_at:s'},
    ),
    ('GET /os-hypervisors', 'hypervisors/0', {1: 'hypervisor_hostname:s id:i state:s status:s', 53: 'id:s servers:l'}),
    ('GET /os-hypervisors', 'hypervisors/0/servers/0', {53: 'name:s uuid:s'}),
    ('GET /os-hypervisors/detail', 'hypervisors/0', _NODE),
    ('GET /os-hypervisors/detail', 'hypervisors/0/service', {1: 'disabled_reason:n host:s id:i', 53: 'id:s'}),
    ('GET /os-hypervisors/{hypervisor_id}', 'hypervisor', _NODE),
    (
        'GET /os-hypervisors/statistics',
        'hypervisor_statistics',
        {1: ' '.join(f'{name}:i' for name in _STATISTICS.split())},
    ),
    (
        'GET /os-hypervisors/{hypervisor_hostname_pattern}/search',
        'hypervisors/0',
        {1: 'hypervisor_hostname:s id:i state:s status:s'},
    ),
    (
        'GET /os-hypervisors/{hypervisor_hostname_pattern}/servers',
        'hypervisors/0',
        {1: 'hypervisor_hostname:s id:i state:s status:s servers:l'},
    ),
    ('GET /os-services', 'services/0', _SERVICE),
    ('PUT /os-services/{service_id}', 'service', _SERVICE),
    ('PUT /os-services/enable', 'service', {1: 'binary:s host:s status:s'}),
    ('PUT /os-services/disable', 'service', {1: 'binary:s host:s status:s'}),
    ('PUT /os-services/disable-log-reason', 'service', {1: 'binary:s host:s status:s disabled_reason:s'}),
    ('PUT /os-services/force-down', 'service', {11: 'binary:s host:s forced_down:b'}),
    ('POST /os-server-groups', 'server_group', _GROUP),
    ('GET /os-server-groups/{server_group_id}', 'server_group', _GROUP),
    ('GET /os-server-groups', 'server_groups/0', _GROUP),
    ('GET /os-quota-sets/{tenant_id}', 'quota_set', _quota('i')),
    ('GET /os-quota-sets/{tenant_id}/defaults', 'quota_set', _quota('i')),
    ('GET /os-quota-sets/{tenant_id}/detail', 'quota_set', _quota('d')),
    ('GET /os-quota-sets/{tenant_id}/detail', 'quota_set/cores', {1: 'in_use:i limit:i reserved:i'}),
    ('PUT /os-quota-sets/{tenant_id}', 'quota_set', _quota('i', without_id=True)),
    (
        'GET /os-quota-class-sets/{quota_class}',
        'quota_class_set',
        {
            1: ' '.join(
                f'{name}:i' for name in f'cores instances key_pairs metadata_items ram {_INJECTED} {_NETWORK}'.split()
            )
            + ' id:s',
            50: 'server_group_members:i server_groups:i ' + ' '.join(f'-{name}' for name in _NETWORK.split()),
            57: ' '.join(f'-{name}' for name in _INJECTED.split()),
        },
    ),
    ('GET /limits', 'limits', {1: 'absolute:d rate:l'}),
    ('GET /limits', 'limits/absolute', _LIMITS),
    ('GET /os-simple-tenant-usage', 'tenant_usages/0', {1: _USAGE}),
    ('GET /os-simple-tenant-usage', 'tenant_usages/0/server_usages/0', {1: _USED}),
    ('GET /os-simple-tenant-usage/{tenant_id}', 'tenant_usage', {1: _USAGE}),
    ('GET /servers/{server_id}/os-instance-actions', 'instanceActions/0', _ACTION),
    (
        'GET /servers/{server_id}/os-instance-actions/{request_id}',
        'instanceAction',
        {**_ACTION, 1: f'{_ACTION[1]} events:l'},
    ),
    (
        'GET /servers/{server_id}/os-instance-actions/{request_id}',
        'instanceAction/events/0',
        {1: 'event:s finish_time:s result:s start_time:s traceback:s', 62: 'host:s hostId:s', 84: 'details:s'},
    ),
    (
        'GET /servers/{server_id}/diagnostics since 48',
        '',
        {
            48: 'config_drive:b cpu_details:l disk_details:l driver:s hypervisor:s hypervisor_os:s memory_details:d '
            'nic_details:l num_cpus:i num_disks:i num_nics:i state:s uptime:i'
        },
    ),
    ('GET /servers/{server_id}/diagnostics since 48', 'cpu_details/0', {48: 'id:i time:i utilisation:i'}),
    ('GET /servers/{server_id}/diagnostics since 48', 'memory_details', {48: 'maximum:i used:i'}),
    (
        'GET /servers/{server_id}/diagnostics since 48',
        'disk_details/0',
        {48: 'errors_count:in read_bytes:in read_requests:in write_bytes:in write_requests:in'},
    ),
    (
        'GET /servers/{server_id}/diagnostics since 48',
        'nic_details/0',
        {
            48: 'mac_address:s '
            + ' '.join(
                f'{way}_{what}:in' for way in ('rx', 'tx') for what in ('drop', 'errors', 'octets', 'packets', 'rate')
            )
        },
    ),
    ('POST /servers/{server_id}/remote-consoles', 'remote_console', {6: 'protocol:s type:s url:s'}),
    (
        'GET /os-console-auth-tokens/{console_token}',
        'console',
        {31: 'instance_uuid:s host:s port:i internal_access_path:sn', 99: 'tls_port:in'},
    ),
    ('GET /servers/{server_id}/os-volume_attachments', 'volumeAttachments/0', _VOLUME),
    ('GET /servers/{server_id}/os-volume_attachments/{volume_id}', 'volumeAttachment', _VOLUME),
    ('GET /servers/{server_id}/os-interface', 'interfaceAttachments/0', _INTERFACE),
    ('GET /servers/{server_id}/os-interface/{port_id}', 'interfaceAttachment', _INTERFACE),
    ('POST /servers/{server_id}/os-interface', 'interfaceAttachment', _INTERFACE),
    ('GET /servers/{server_id}/ips', 'addresses/private/0', {1: 'addr:s version:i'}),
    ('GET /servers/{server_id}/topology', '', {78: 'nodes:l pagesize_kb:in'}),
    (
        'GET /servers/{server_id}/topology',
        'nodes/0',
        {78: 'cpu_pinning:d host_node:i memory_mb:i siblings:l vcpu_set:l'},
    ),
    ('GET /servers/{server_id}/os-server-password', '', {1: 'password:s'}),
    ('GET /servers/{server_id}/os-security-groups', '', {1: 'security_groups:l'}),
    ('GET /servers/{server_id}/metadata', '', {1: 'metadata:d'}),
    ('GET /servers/{server_id}/metadata/{key}', 'meta', {1: 'team:s'}),
    ('GET /servers/{server_id}/tags', '', {26: 'tags:l'}),
    ('GET /os-migrations', 'migrations/0', _MIGRATION),
    ('POST /os-server-external-events', 'events/0', {1: 'code:i name:s server_uuid:s status:s tag:s'}),
    ('GET /os-hosts', 'hosts/0', {1: 'host_name:s service:s zone:s'}),
]
_DISK = (
    'attachments:l availabilityZone:s createdAt:s displayDescription:sn displayName:s id:s metadata:d size:i '
    'snapshotId:sn status:s volumeType:s'
)
_SNAPSHOT = 'createdAt:s displayDescription:sn displayName:s id:s size:i status:s volumeId:s'
KEYS += [
    *(
        (f'GET /os-{noun}s{tail}', f'{noun}s/0', {1: keys})
        for noun, keys in (('volume', _DISK), ('snapshot', _SNAPSHOT))
        for tail in ('', '/detail')
    ),
    *(
        (f'{method} /os-{noun}s{tail}', noun, {1: keys})
        for noun, keys in (('volume', _DISK), ('snapshot', _SNAPSHOT))
        for method, tail in (('GET', f'/{{{noun}_id}}'), ('POST', ''))
    ),
    *(
        (f'{method} /os-{path}', f'{noun}{place}', {1: keys})
        for noun, path, one, keys in (
            ('floating_ip', 'floating-ips', 'floating_ip_id', 'fixed_ip:sn id:s instance_id:sn ip:s pool:s'),
            ('security_group', 'security-groups', 'security_group_id', 'description:s id:s name:s rules:l tenant_id:s'),
        )
        for method, path, place in (('GET', path, 's/0'), ('GET', f'{path}/{{{one}}}', ''), ('POST', path, ''))
    ),
    ('POST /os-assisted-volume-snapshots', 'snapshot', {1: 'id:s volumeId:s'}),
    (
        'POST /os-security-group-rules',
        'security_group_rule',
        {1: 'from_port:in group:d id:s ip_protocol:sn ip_range:d parent_group_id:s to_port:in'},
    ),
    ('GET /os-floating-ip-pools', 'floating_ip_pools/0', {1: 'name:s'}),
    ('GET /os-tenant-networks', 'networks/0', {1: 'cidr:s id:s label:s'}),
    ('GET /os-tenant-networks/{network_id}', 'network', {1: 'cidr:s id:s label:s'}),
]
# What only administrators see of a server at the newest version; the host name everybody sees.
_ADMINS = {
    word.rpartition(':')[0]
    for word in f'{_SERVER} {_SHOWN[3]} {_SHOWN[16]}'.split()
    if word.startswith('OS-EXT-SRV-ATTR:')
} - {'OS-EXT-SRV-ATTR:hostname'} | {'host_status'}
ROWS = {table.key(route): route for route in ROUTES}


def at(changes, version):
    """{key: types} of a version."""
    found: dict[str, str] = {}
    for since in sorted(changes):
        if since > version:
            break
        for word in changes[since].split():
            if word.startswith('-'):
                found.pop(word[1:])
            else:
                key, _, types = word.rpartition(':')
                found[key] = types
    return found


def reach(body, path):
    """The part of a body that a path leads to."""
    for step in filter(None, path.split('/')):
        body = body[int(step)] if isinstance(body, list) else body[step]
    return body


def typed(value, types):
    """Whether a value is of one of these types; a whole number may stand for a float, a boolean for no number."""
    kinds = tuple(TYPES[letter] for letter in types) + ((int,) if 'f' in types else ())
    return isinstance(value, kinds) and (not isinstance(value, bool) or 'b' in types)


@pytest.mark.parametrize(
    ('name', 'path', 'changes'),
    [row for row in KEYS if row[0] in ROWS],
    ids=[f'{row[0]} {row[1]}' for row in KEYS if row[0] in ROWS],
)
def test_keys_and_types(world, name, path, changes):
    route = ROWS[name]
    first = max(route.since, min(changes))
    for version in sorted({each for since in changes for each in (since - 1, since)} | {first, MAX}):
        if not first <= version <= route.until:
            continue
        response = examples.ask(world, route, version)
        counts.REQUESTS['body keys'] += 1
        found, wanted = reach(response.json, path), at(changes, version)
        if 'security_groups' not in found:
            # Servers without ports have none.
            wanted.pop('security_groups', None)
        assert set(found) == set(wanted), f'{name} at 2.{version}'
        for key, types in wanted.items():
            assert typed(found[key], types), f'{name} at 2.{version}: {key} is {found[key]!r}, not {types}'
        world.restore()


def test_what_users_see_of_a_server(world):
    seen = set(world.ok('GET', '/servers/{server}', role='member')['server'])
    whole = set(world.ok('GET', '/servers/{server}')['server'])
    assert whole - seen == _ADMINS
    assert 'OS-EXT-SRV-ATTR:hostname' in seen


@pytest.mark.parametrize(
    ('role', 'version', 'keys'),
    [
        ('member', 50, None),
        ('member', 51, 'event finish_time result start_time'),
        ('member', 104, 'event finish_time hostId result start_time'),
    ],
)
def test_what_users_see_of_events(world, role, version, keys):
    found = world.ok('GET', '/servers/{server}/os-instance-actions/{request_id}', role=role, version=version)[
        'instanceAction'
    ]
    assert ('events' in found) == (keys is not None)
    assert keys is None or set(found['events'][0]) == set(keys.split())


def test_the_table_has_no_row_twice():
    places = [(name, path) for name, path, _ in KEYS]
    assert len(places) == len(set(places))
    for (_, _, changes), version in itertools.product(KEYS, (1, MAX)):
        assert isinstance(at(changes, version), dict)
