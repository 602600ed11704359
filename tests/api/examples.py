"""One request of each route that succeeds: what the samples show, what bad input is made of, what callers try.

A route without an example fails ``test_route_table``. Bodies name all that can be said at the newest version that the
route has; what an older version doesn't know is left out of them (``table.fit``), and where an older version said it
differently there are several, each with the version that it begins with. Names in braces are the world's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kilonova.api.schemas.base import at
from kilonova.api.wsgi import Route
from tests.api import table
from tests.api.world import KEY, SECOND_IMAGE, World


@dataclass(frozen=True)
class Example:
    """``bodies``: (since, body); ``state``: columns of the server; ``prepare``: what else must be so before;
    ``names``: other things than usual in the path; ``needs``: rules beside the route's that this request needs;
    ``foreign``: the status that callers of other projects get, where the thing is a project's but no server;
    ``free``: variables of the path for which anything goes; ``loose``: those for which a wrong one may be a 400,
    as it must be a time, or agree with the body."""

    bodies: tuple[tuple[int, Any], ...] = ()
    query: str = ''
    state: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[World], None] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    foreign: int | None = None
    free: frozenset[str] = frozenset()
    loose: frozenset[str] = frozenset()
    status: int | None = None
    # Answers in versions where they have another status: (first, last, status).
    other: tuple[tuple[int, int, int], ...] = ()

    def body_at(self, route: Route, version: int) -> Any:
        """The body of a version; None where there is none."""
        if not self.bodies:
            return None
        body = [each for since, each in self.bodies if since <= version][-1]
        return table.fit(body, at(route.body, version)) if route.body is not None else body

    def status_at(self, route: Route, version: int) -> int:
        """The status that its answer has."""
        found = [status for first, last, status in self.other if first <= version <= last]
        return found[0] if found else self.status or route.status


def say(*bodies: Any, **more: Any) -> Example:
    """An example with a body, or with (since, body) pairs."""
    pairs = tuple(each if isinstance(each, tuple) else (1, each) for each in bodies)
    return Example(bodies=pairs, **more)


NOTHING = Example()
_KEY = frozenset(('key',))
_RENAMED = {
    'name': 'train-2',
    'description': 'inference',
    'accessIPv4': '192.0.2.21',
    'accessIPv6': '2001:db8::21',
    'OS-DCF:diskConfig': 'AUTO',
    'hostname': 'train-2',
    'pinned_availability_zone': None,
}
_CREATE = {
    'name': 'train-3',
    'imageRef': '{image}',
    'flavorRef': '1',
    'OS-DCF:diskConfig': 'AUTO',
    'metadata': {'team': 'vision'},
    'adminPass': 'correct horse',
    'description': 'training',
    'tags': ['gpu'],
    'min_count': 1,
    'max_count': 1,
    'user_data': 'IyEvYmluL3NoCg==',
    'config_drive': True,
    'accessIPv4': '192.0.2.22',
    'accessIPv6': '2001:db8::22',
    'availability_zone': 'nova',
    'security_groups': [{'name': 'default'}],
    'hostname': 'train-3',
    'key_name': 'mykey',
    'personality': [{'path': '/etc/motd', 'contents': 'aGVsbG8='}],
}
_HINTS = {'os:scheduler_hints': {'different_host': ['{second}']}}
_HOST = {'host': 'gpu2', 'binary': 'nova-compute'}

EXAMPLES: dict[str, Example] = {
    # servers
    'GET /servers': Example(query='limit=1'),
    'GET /servers/detail': Example(query='limit=1&name=train-1'),
    'POST /servers': say({'server': _CREATE, **_HINTS}, (37, {'server': {**_CREATE, 'networks': 'none'}, **_HINTS})),
    'GET /servers/{server_id}': NOTHING,
    'PUT /servers/{server_id}': say({'server': _RENAMED}),
    'DELETE /servers/{server_id}': NOTHING,
    # server actions
    'os-start': say({'os-start': None}, state={'vm_state': 'stopped', 'power_state': 4}),
    'os-stop': say({'os-stop': None}),
    'reboot': say({'reboot': {'type': 'HARD'}}),
    'pause': say({'pause': None}),
    'unpause': say({'unpause': None}, state={'vm_state': 'paused', 'power_state': 3}),
    'suspend': say({'suspend': None}),
    'resume': say({'resume': None}, state={'vm_state': 'suspended', 'power_state': 7}),
    'rescue': say({'rescue': {'adminPass': 'MySecretPass', 'rescue_image_ref': SECOND_IMAGE}}),
    'unrescue': say({'unrescue': None}, state={'vm_state': 'rescued'}),
    'changePassword': say({'changePassword': {'adminPass': 'MySecretPass'}}, prepare=World.with_agent),
    'trigger_crash_dump': say({'trigger_crash_dump': None}),
    'resize': say({'resize': {'flavorRef': '2', 'OS-DCF:diskConfig': 'AUTO'}}),
    'evacuate': say(
        {'evacuate': {'host': 'gpu2', 'adminPass': 'seekr3t', 'onSharedStorage': False}},
        (29, {'evacuate': {'host': 'gpu2', 'adminPass': 'seekr3t', 'force': False}}),
        prepare=World.on_a_dead_host,
    ),
    'rebuild': say(
        {
            'rebuild': {
                'imageRef': '{image}',
                'name': 'new name',
                'adminPass': 'seekr3t',
                'metadata': {'meta_var': 'meta_val'},
                'OS-DCF:diskConfig': 'AUTO',
            }
        }
    ),
    'confirmResize': say({'confirmResize': None}, prepare=World.resized),
    'revertResize': say({'revertResize': None}, prepare=World.resized),
    'migrate': say(
        {'migrate': None}, (56, {'migrate': {'host': 'gpu2'}}), needs=('os_compute_api:os-migrate-server:migrate:host',)
    ),
    'os-migrateLive': say(
        {'os-migrateLive': {'host': 'gpu2', 'block_migration': False, 'disk_over_commit': False}},
        (25, {'os-migrateLive': {'host': 'gpu2', 'block_migration': 'auto'}}),
        (30, {'os-migrateLive': {'host': 'gpu2', 'block_migration': 'auto', 'force': False}}),
        (68, {'os-migrateLive': {'host': 'gpu2', 'block_migration': 'auto'}}),
        needs=('os_compute_api:os-migrate-server:migrate_live:host',),
        prepare=World.plain,
    ),
    'injectNetworkInfo': say({'injectNetworkInfo': None}),
    'os-resetState': say({'os-resetState': {'state': 'active'}}, state={'vm_state': 'error'}),
    'createImage': say({'createImage': {'name': 'snapshot', 'metadata': {'purpose': 'backup'}}}),
    'restore': say({'restore': None}, state={'vm_state': 'soft-delete'}),
    'forceDelete': say({'forceDelete': None}, state={'vm_state': 'soft-delete'}),
    'createBackup': say(
        {'createBackup': {'name': 'nightly', 'backup_type': 'daily', 'rotation': 7, 'metadata': {'purpose': 'backup'}}}
    ),
    'shelve': say({'shelve': None}),
    'shelveOffload': say({'shelveOffload': None}, state={'vm_state': 'shelved', 'power_state': 4}),
    'unshelve': say(
        {'unshelve': None},
        (77, {'unshelve': {'availability_zone': 'nova'}}),
        (91, {'unshelve': {'availability_zone': 'nova', 'host': 'gpu1'}}),
        state={'vm_state': 'shelved_offloaded', 'power_state': 4, 'host': None, 'node': None},
        needs=('os_compute_api:os-shelve:unshelve_to_host',),
    ),
    'lock': say({'lock': None}, (73, {'lock': {'locked_reason': 'long run'}})),
    'unlock': say({'unlock': None}),
    'os-getConsoleOutput': say({'os-getConsoleOutput': {'length': 50}}),
    'os-getVNCConsole': say({'os-getVNCConsole': {'type': 'novnc'}}),
    'os-getSPICEConsole': say({'os-getSPICEConsole': {'type': 'spice-html5'}}),
    'os-getSerialConsole': say({'os-getSerialConsole': {'type': 'serial'}}),
    'os-getRDPConsole': say({'os-getRDPConsole': {'type': 'rdp-html5'}}, free=frozenset(('server_id',))),
    'POST /servers/{server_id}/remote-consoles': say(
        (6, {'remote_console': {'protocol': 'vnc', 'type': 'novnc'}}),
        (8, {'remote_console': {'protocol': 'serial', 'type': 'serial'}}),
        (99, {'remote_console': {'protocol': 'spice', 'type': 'spice-direct'}}),
    ),
    'GET /os-console-auth-tokens/{console_token}': Example(other=((1, 30, 401),)),
    # parts of servers
    'GET /servers/{server_id}/metadata': NOTHING,
    'POST /servers/{server_id}/metadata': say({'metadata': {'queue': 'night'}}),
    'PUT /servers/{server_id}/metadata': say({'metadata': {'queue': 'night'}}),
    'GET /servers/{server_id}/metadata/{key}': Example(names={'key': 'team'}),
    'PUT /servers/{server_id}/metadata/{key}': say({'meta': {'team': 'speech'}}, names={'key': 'team'}, loose=_KEY),
    'DELETE /servers/{server_id}/metadata/{key}': Example(names={'key': 'team'}),
    'GET /servers/{server_id}/tags': NOTHING,
    'PUT /servers/{server_id}/tags': say({'tags': ['day', 'gpu']}),
    'DELETE /servers/{server_id}/tags': NOTHING,
    'GET /servers/{server_id}/tags/{tag}': NOTHING,
    'PUT /servers/{server_id}/tags/{tag}': Example(names={'tag': 'day'}, status=201, free=frozenset(('tag',))),
    'DELETE /servers/{server_id}/tags/{tag}': NOTHING,
    'GET /servers/{server_id}/ips': NOTHING,
    'GET /servers/{server_id}/ips/{network_label}': NOTHING,
    'GET /servers/{server_id}/os-interface': NOTHING,
    'GET /servers/{server_id}/os-interface/{port_id}': NOTHING,
    'POST /servers/{server_id}/os-interface': say(
        {'interfaceAttachment': {'net_id': '{network}', 'fixed_ips': [{'ip_address': '192.0.2.77'}]}}
    ),
    'DELETE /servers/{server_id}/os-interface/{port_id}': NOTHING,
    'GET /servers/{server_id}/os-security-groups': Example(prepare=World.grouped),
    'addSecurityGroup': say({'addSecurityGroup': {'name': '{trusted}'}}, prepare=World.grouped),
    'removeSecurityGroup': say({'removeSecurityGroup': {'name': '{group}'}}, prepare=World.grouped),
    'GET /servers/{server_id}/os-volume_attachments': Example(query='limit=1'),
    'GET /servers/{server_id}/os-volume_attachments/{volume_id}': NOTHING,
    'POST /servers/{server_id}/os-volume_attachments': say(
        {
            'volumeAttachment': {
                'volumeId': '{free_volume}',
                'device': '/dev/vdc',
                'tag': 'scratch',
                'delete_on_termination': True,
            }
        },
        other=((101, 104, 202),),
    ),
    'PUT /servers/{server_id}/os-volume_attachments/{volume_id} since 1': say(
        {'volumeAttachment': {'volumeId': '{free_volume}', 'device': '/dev/vdb'}}, prepare=World.migrating
    ),
    'PUT /servers/{server_id}/os-volume_attachments/{volume_id} since 85': say(
        {
            'volumeAttachment': {
                'volumeId': '{volume}',
                'device': '/dev/vdb',
                'tag': 'data',
                'delete_on_termination': True,
                'id': '{volume}',
                'serverId': '{server}',
            }
        }
    ),
    'DELETE /servers/{server_id}/os-volume_attachments/{volume_id}': NOTHING,
    'GET /servers/{server_id}/topology': NOTHING,
    'GET /servers/{server_id}/diagnostics since 1': NOTHING,
    'GET /servers/{server_id}/diagnostics since 48': NOTHING,
    'GET /servers/{server_id}/os-server-password': NOTHING,
    'DELETE /servers/{server_id}/os-server-password': NOTHING,
    'GET /servers/{server_id}/migrations': Example(prepare=World.moving),
    'GET /servers/{server_id}/migrations/{migration_id}': Example(prepare=World.moving),
    'DELETE /servers/{server_id}/migrations/{migration_id}': Example(prepare=World.aborting),
    'POST /servers/{server_id}/migrations/{migration_id}/action force_complete': say(
        {'force_complete': None}, loose=frozenset(('migration_id',)), prepare=World.forcing
    ),
    'POST /os-server-external-events': say(
        {'events': [{'name': 'network-changed', 'server_uuid': '{server}', 'status': 'completed', 'tag': 'port'}]},
        (76, {'events': [{'name': 'power-update', 'server_uuid': '{server}', 'tag': 'POWER_OFF'}]}),
    ),
    # stories of servers
    'GET /servers/{server_id}/os-instance-actions': Example(query='limit=1'),
    'GET /servers/{server_id}/os-instance-actions/{request_id}': NOTHING,
    # flavors
    'GET /flavors': Example(query='limit=1'),
    'GET /flavors/detail': Example(query='limit=1'),
    'POST /flavors': say(
        {
            'flavor': {
                'name': 'gpu.4',
                'id': '4',
                'ram': 8192,
                'vcpus': 8,
                'disk': 40,
                'OS-FLV-EXT-DATA:ephemeral': 10,
                'swap': 512,
                'rxtx_factor': 2.0,
                'os-flavor-access:is_public': False,
                'description': '4 GPUs',
            }
        }
    ),
    'GET /flavors/{flavor_id}': NOTHING,
    'PUT /flavors/{flavor_id}': say({'flavor': {'description': 'one GPU'}}),
    'DELETE /flavors/{flavor_id}': NOTHING,
    'GET /flavors/{flavor_id}/os-extra_specs': NOTHING,
    'POST /flavors/{flavor_id}/os-extra_specs': say({'extra_specs': {'hw:numa_nodes': '1'}}),
    'GET /flavors/{flavor_id}/os-extra_specs/{key}': NOTHING,
    'PUT /flavors/{flavor_id}/os-extra_specs/{key}': say({'pci_passthrough:alias': 'gpu:2'}, loose=_KEY),
    'DELETE /flavors/{flavor_id}/os-extra_specs/{key}': NOTHING,
    'GET /flavors/{flavor_id}/os-flavor-access': Example(names={'flavor_id': 'private'}),
    'POST /flavors/{flavor_id}/action addTenantAccess': say(
        {'addTenantAccess': {'tenant': '{project}'}}, names={'flavor_id': 'private'}
    ),
    'POST /flavors/{flavor_id}/action removeTenantAccess': say(
        {'removeTenantAccess': {'tenant': '{other_project}'}}, names={'flavor_id': 'private'}
    ),
    # services
    'GET /os-services': NOTHING,
    'PUT /os-services/enable': say(_HOST),
    'PUT /os-services/disable': say(_HOST),
    'PUT /os-services/disable-log-reason': say({**_HOST, 'disabled_reason': 'new cards'}),
    'PUT /os-services/force-down since 11': say({**_HOST, 'forced_down': True}),
    'PUT /os-services/{service_id} since 53': say(
        {'status': 'disabled', 'disabled_reason': 'new cards', 'forced_down': True}
    ),
    'DELETE /os-services/{service_id}': NOTHING,
    # hypervisors
    # A full page with both: one has servers, the other none.
    'GET /os-hypervisors': Example(query='limit=2&with_servers=true'),
    'GET /os-hypervisors/detail': Example(query='limit=1'),
    'GET /os-hypervisors/statistics': NOTHING,
    'GET /os-hypervisors/{hypervisor_id}': NOTHING,
    'GET /os-hypervisors/{hypervisor_id}/uptime': NOTHING,
    'GET /os-hypervisors/{hypervisor_hostname_pattern}/search': NOTHING,
    'GET /os-hypervisors/{hypervisor_hostname_pattern}/servers': NOTHING,
    # hosts, as they were
    'GET /os-hosts': NOTHING,
    'GET /os-hosts/{host_name}': NOTHING,
    'PUT /os-hosts/{host_name}': say({'status': 'disable'}),
    **{f'GET /os-hosts/{{host_name}}/{verb}': NOTHING for verb in ('startup', 'shutdown', 'reboot')},
    # moves
    'GET /os-migrations': Example(query='limit=1', needs=('os_compute_api:os-migrations:index:all_projects',)),
    # aggregates and zones
    'GET /os-aggregates': NOTHING,
    'POST /os-aggregates': say({'aggregate': {'name': 'rack3', 'availability_zone': 'az3'}}),
    'GET /os-aggregates/{aggregate_id}': NOTHING,
    'PUT /os-aggregates/{aggregate_id}': say({'aggregate': {'name': 'row1', 'availability_zone': 'nova'}}),
    'DELETE /os-aggregates/{aggregate_id}': Example(names={'aggregate_id': '{empty_aggregate}'}),
    'POST /os-aggregates/{aggregate_id}/action add_host': say(
        {'add_host': {'host': 'gpu2'}}, names={'aggregate_id': '{empty_aggregate}'}
    ),
    'POST /os-aggregates/{aggregate_id}/action remove_host': say({'remove_host': {'host': 'gpu1'}}),
    'POST /os-aggregates/{aggregate_id}/action set_metadata': say(
        {'set_metadata': {'metadata': {'gpu': None, 'ssd': 'true'}}}
    ),
    'GET /os-availability-zone': NOTHING,
    'GET /os-availability-zone/detail': NOTHING,
    # server groups
    'GET /os-server-groups': NOTHING,
    'POST /os-server-groups': say(
        {'server_group': {'name': 'train', 'policies': ['anti-affinity']}},
        (64, {'server_group': {'name': 'train', 'policy': 'anti-affinity', 'rules': {'max_server_per_host': 2}}}),
    ),
    'GET /os-server-groups/{server_group_id}': Example(foreign=404),
    'DELETE /os-server-groups/{server_group_id}': Example(foreign=404),
    # limits and quotas
    'GET /limits': NOTHING,
    'GET /os-quota-sets/{tenant_id}': NOTHING,
    'GET /os-quota-sets/{tenant_id}/detail': NOTHING,
    'GET /os-quota-sets/{tenant_id}/defaults': NOTHING,
    'PUT /os-quota-sets/{tenant_id}': say(
        {
            'quota_set': {
                'instances': 20,
                'cores': 40,
                'ram': 102400,
                'key_pairs': 50,
                'metadata_items': 64,
                'server_groups': 5,
                'server_group_members': 5,
                'injected_files': 3,
                'injected_file_content_bytes': 4096,
                'injected_file_path_bytes': 128,
                'force': True,
            }
        }
    ),
    'DELETE /os-quota-sets/{tenant_id}': NOTHING,
    'GET /os-quota-class-sets/{quota_class}': Example(free=frozenset(('quota_class',))),
    'PUT /os-quota-class-sets/{quota_class}': say(
        {'quota_class_set': {'instances': 20, 'cores': 40, 'server_groups': 5, 'server_group_members': 5}},
        free=frozenset(('quota_class',)),
    ),
    'GET /os-simple-tenant-usage': Example(
        query='start=2025-11-21T00:00:00&end=2025-11-22T00:00:00&detailed=1&limit=1'
    ),
    'GET /os-simple-tenant-usage/{tenant_id}': Example(
        query='start=2025-11-21T00:00:00&end=2025-11-22T00:00:00&limit=1'
    ),
    'GET /os-instance_usage_audit_log': NOTHING,
    'GET /os-instance_usage_audit_log/{before_timestamp}': Example(loose=frozenset(('before_timestamp',))),
    # key pairs
    'GET /os-keypairs': Example(query='limit=1'),
    'POST /os-keypairs since 1': say({'keypair': {'name': 'new'}}),
    'POST /os-keypairs since 2': say(
        {'keypair': {'name': 'new', 'type': 'ssh'}},
        (92, {'keypair': {'name': 'new', 'type': 'ssh', 'public_key': KEY}}),
    ),
    'GET /os-keypairs/{keypair_name}': NOTHING,
    'DELETE /os-keypairs/{keypair_name} since 1': NOTHING,
    'DELETE /os-keypairs/{keypair_name} since 2': NOTHING,
    # images and extensions
    'GET /images': Example(query='limit=1'),
    'GET /images/detail': Example(query='limit=1'),
    'GET /images/{image_id}': NOTHING,
    'DELETE /images/{image_id}': NOTHING,
    'GET /images/{image_id}/metadata': NOTHING,
    'POST /images/{image_id}/metadata': say({'metadata': {'os_distro': 'cirros'}}),
    'PUT /images/{image_id}/metadata': say({'metadata': {'os_distro': 'cirros'}}),
    'GET /images/{image_id}/metadata/{key}': Example(names={'key': 'hw_disk_bus'}),
    'PUT /images/{image_id}/metadata/{key}': say(
        {'meta': {'hw_disk_bus': 'scsi'}}, names={'key': 'hw_disk_bus'}, loose=_KEY
    ),
    'DELETE /images/{image_id}/metadata/{key}': Example(names={'key': 'hw_disk_bus'}),
    # volumes and snapshots, as they were
    'GET /os-volumes': Example(query='limit=1&offset=1'),
    'GET /os-volumes/detail': Example(query='limit=1&offset=1'),
    'GET /os-volumes/{volume_id}': Example(foreign=404),
    'POST /os-volumes': say(
        {
            'volume': {
                'size': 10,
                'display_name': 'data',
                'display_description': 'training data',
                'metadata': {'team': 'vision'},
                'volume_type': 'plain',
                'availability_zone': 'nova',
                'snapshot_id': None,
            }
        }
    ),
    'DELETE /os-volumes/{volume_id}': Example(names={'volume_id': '{free_volume}'}, foreign=404),
    'GET /os-snapshots': Example(query='limit=1&offset=0'),
    'GET /os-snapshots/detail': Example(query='limit=1&offset=0'),
    'GET /os-snapshots/{snapshot_id}': Example(foreign=404),
    'POST /os-snapshots': say(
        {
            'snapshot': {
                'volume_id': '{free_volume}',
                'display_name': 'before',
                'display_description': 'before the training',
                'force': True,
            }
        },
        foreign=404,
    ),
    'DELETE /os-snapshots/{snapshot_id}': Example(foreign=404),
    # snapshots of volumes that servers have
    'POST /os-assisted-volume-snapshots': say(
        {
            'snapshot': {
                'volume_id': '{volume}',
                'create_info': {
                    'snapshot_id': '{snapshot_id}',
                    'type': 'qcow2',
                    'new_file': 'volume-1.snapshot',
                    'id': '{snapshot_id}',
                },
            }
        },
        prepare=World.snapshotting,
        state={'locked': True},
    ),
    'DELETE /os-assisted-volume-snapshots/{snapshot_id}': Example(
        query='delete_info=%7B%22volume_id%22:%22{volume}%22,%22type%22:%22qcow2%22,%22file_to_merge%22:null,'
        '%22merge_target_file%22:null%7D',
        prepare=World.deleting_a_snapshot,
        state={'locked': True},
        loose=frozenset(('snapshot_id',)),
    ),
    # networks, security groups and floating IPs, as they were
    'GET /os-networks': NOTHING,
    'GET /os-networks/{network_id}': Example(foreign=404),
    'GET /os-tenant-networks': NOTHING,
    'GET /os-tenant-networks/{network_id}': Example(foreign=404),
    'GET /os-security-groups': Example(query='limit=1&offset=1&all_tenants=1'),
    'GET /os-security-groups/{security_group_id}': Example(foreign=404),
    'POST /os-security-groups': say({'security_group': {'name': 'web', 'description': 'web servers'}}),
    'PUT /os-security-groups/{security_group_id}': say(
        {'security_group': {'name': 'web', 'description': 'web servers'}},
        names={'security_group_id': '{trusted}'},
        foreign=404,
    ),
    'DELETE /os-security-groups/{security_group_id}': Example(names={'security_group_id': '{trusted}'}, foreign=404),
    'POST /os-security-group-rules': say(
        {
            'security_group_rule': {
                'parent_group_id': '{trusted}',
                'ip_protocol': 'tcp',
                'from_port': 80,
                'to_port': '443',
                'cidr': None,
                'group_id': '{group}',
            }
        }
    ),
    'DELETE /os-security-group-rules/{rule_id}': Example(foreign=404),
    'GET /os-floating-ip-pools': NOTHING,
    'GET /os-floating-ips': NOTHING,
    'GET /os-floating-ips/{floating_ip_id}': Example(foreign=404),
    'POST /os-floating-ips': say({'pool': 'public'}),
    'DELETE /os-floating-ips/{floating_ip_id}': Example(foreign=404),
    'addFloatingIp': say({'addFloatingIp': {'address': '198.51.100.7', 'fixed_address': '192.0.2.30'}}),
    'removeFloatingIp': say({'removeFloatingIp': {'address': '198.51.100.7'}}),
    'addFixedIp': say({'addFixedIp': {'networkId': '{network}'}}),
    'removeFixedIp': say({'removeFixedIp': {'address': '192.0.2.30'}}),
    'GET /extensions': NOTHING,
    'GET /extensions/{alias}': NOTHING,
}
# Identifiers that older versions wrote as numbers: (path's variable, first version of the uuid, the number's name).
NUMBERS = {'service_id': (53, 'gpu2_number'), 'hypervisor_id': (53, 'gpu1_number')}


def of(route: Route) -> Example | None:
    """The example of a route; an alias has that of its newer path, a path that is gone needs none."""
    if table.is_gone(route):
        return Example(bodies=((1, {route.action: None}),) if route.action else ())
    name = table.key(route)
    short = route.action if table.twin(route.path) == '/servers/{server_id}/action' else None
    found = EXAMPLES.get(name) or EXAMPLES.get(short or '')
    if found is None and table.twin(route.path) != route.path:
        return EXAMPLES.get(name.replace(route.path, table.twin(route.path)))
    return found


def path_of(world: World, route: Route, example: Example, version: int) -> str:
    """The path of an example, its query included."""
    path = route.path
    for name, (since, number) in NUMBERS.items():
        if version < since and name not in example.names:
            path = path.replace(f'{{{name}}}', f'{{{number}}}')
    for name, value in example.names.items():
        path = path.replace(f'{{{name}}}', value)
    known = '&'.join(
        pair
        for pair in example.query.split('&')
        if any(prop.name == pair.partition('=')[0] and prop.holds(version) for prop in route.query.props)
    )
    return world.fill(path) + (f'?{world.fill(known)}' if known else '')


def ready(world: World, example: Example) -> None:
    """What must be so before an example is asked for."""
    if example.state:
        world.become(**example.state)
    if example.prepare:
        example.prepare(world)


def ask(
    world: World, route: Route, version: int, *, example: Example | None = None, is_ready: bool = False, **who: Any
) -> Any:
    """The answer to a route's example."""
    example = example or of(route) or NOTHING
    if not is_ready:
        ready(world, example)
    body = world.fill(example.body_at(route, version))
    return world.request(route.method, path_of(world, route, example, version), body, version=version, **who)
