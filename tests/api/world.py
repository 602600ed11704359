"""A site with something of each noun in it, whose databases can be put back to how they were.

    world.request('GET', '/servers/{server_id}', role='reader')      # names in braces are the world's
    world.changed()                                                  # the databases that hold something else
    world.restore()

The databases are real (SQLite), the daemons behind the API are replaced by what answers as they would; who asks is
said by the headers that keystonemiddleware writes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pathlib
import re
import sqlite3
from dataclasses import replace
from typing import Any
from unittest import mock
from urllib.parse import quote

import webob

from kilonova import objects
from kilonova.api import app as api_app
from kilonova.api.services.backend import ApiOptions
from kilonova.db.queries import (
    aggregates,
    cells,
    compute_nodes,
    console_tokens,
    instances,
    migrations,
    operations,
    services,
    volumes,
)
from kilonova.errors import ImageNotFound
from kilonova.objects.vif import Vif, VifAddress, VifSubnet
from kilonova.objects.volume import AttachedVolume
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_vifs
from tests.unit.api import conftest as site_module
from tests.unit.api.conftest import IMAGE, Recorder, Site, moment

PROJECT, OTHER_PROJECT = '6f70656e737461636b20342065766572', '7c1d7eacb1a24a3e97d22f0f7cd1a5ae'
USER, OTHER_USER, ADMIN = (
    '3f8d1b2c6a7e4f50918273645a5b6c7d',
    '0b1e2d3c4f5a69788796a5b4c3d2e1f0',
    '9d2c4b6a8f1e30527496b8dafc1e3052',
)
# What Keystone says of each kind of caller: user, project, roles (those that a role implies included).
CALLERS = {
    'admin': (ADMIN, PROJECT, 'admin,manager,member,reader'),
    'manager': (USER, PROJECT, 'manager,member,reader'),
    'member': (USER, PROJECT, 'member,reader'),
    'reader': (USER, PROJECT, 'reader'),
    'service': ('5e1f00d5c0ffee005e1f00d5c0ffee00', '5e1f00d5c0ffee005e1f00d5c0ffee01', 'service'),
    'nothing': (USER, PROJECT, ''),
    'stranger': (OTHER_USER, OTHER_PROJECT, 'manager,member,reader'),
    'foreign admin': (OTHER_USER, OTHER_PROJECT, 'admin,manager,member,reader'),
}
KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKzXn1cYbq7d8L7bJXU3hEJ1mQ2sW0o5cRkz8m4Kf1yQ bob@example'
# Volumes: the server's, and a free one.
VOLUME, FREE = '0fffffff-eeee-4fff-8fff-000000000005', '0fffffff-eeee-4fff-8fff-000000000006'
ATTACHMENT = '0fffffff-eeee-4fff-8fff-000000000007'
SNAPSHOT = '0fffffff-eeee-4fff-8fff-00000000000a'
# A network of the outside, a floating IP of it that the server has, and another; a rule of the other group.
OUTSIDE, FLOATING = '0fffffff-eeee-4fff-8fff-00000000000b', '0fffffff-eeee-4fff-8fff-00000000000c'
RULE = '0fffffff-eeee-4fff-8fff-00000000000d'
# What Neutron's answers become on the way to a server's row.
PORT = '0fffffff-eeee-4fff-8fff-000000000001'
ATTACHED = '0fffffff-eeee-4fff-8fff-000000000004'
# The project's security groups: default, which the server has, and another.
GROUP, TRUSTED = '0fffffff-eeee-4fff-8fff-000000000008', '0fffffff-eeee-4fff-8fff-000000000009'
VIF = Vif(
    id=PORT,
    mac='fa:16:3e:00:00:01',
    network_id='0fffffff-eeee-4fff-8fff-000000000002',
    label='private',
    project_id=PROJECT,
    type='ovs',
    security_groups=('default',),
    subnets=(VifSubnet('192.0.2.0/24', 4, addresses=(VifAddress('192.0.2.30', ('198.51.100.7',)),)),),
)
NODE = {
    'vcpus': 32,
    'memory_mb': 131072,
    'local_gb': 1000,
    'vcpus_used': 2,
    'memory_mb_used': 2048,
    'local_gb_used': 20,
    'hypervisor_type': 'QEMU',
    'hypervisor_version': 8002002,
    'cpu_info': json.dumps({'arch': 'x86_64', 'model': 'Nehalem', 'topology': {'cores': 8, 'threads': 2}}),
    'free_ram_mb': 129024,
    'free_disk_gb': 980,
    'current_workload': 0,
    'running_vms': 1,
    'disk_available_least': 900,
    'host_ip': '192.0.2.10',
}
UNKNOWN = '0fffffff-ffff-4fff-8fff-ffffffffffff'
SECOND_IMAGE = '0fffffff-eeee-4fff-8fff-000000000003'
_NAMED = re.compile(r'\{(\w+)\}')


class Answering(Recorder):
    """A client of daemons: notes each call and gives what ``replies`` holds for its name, called if it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == 'replies':
            raise AttributeError(name)
        note = super().__getattr__(name)

        def call(ctxt: Any, **kwargs: Any) -> Any:
            note(ctxt, **kwargs)
            reply = self.replies.get(name)
            return reply(**kwargs) if callable(reply) else reply

        return call


class Images:
    """The image service, as far as the API asks it: a handful of records that can be put back."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.restore()

    def restore(self) -> None:
        """Two public images with a property."""
        self.kept = {
            identifier: {
                'id': identifier,
                'name': name,
                'status': 'active',
                'disk_format': 'qcow2',
                'container_format': 'bare',
                'size': 1000,
                'min_disk': 0,
                'min_ram': 0,
                'visibility': 'public',
                'protected': False,
                'tags': [],
                'owner': PROJECT,
                'hw_disk_bus': 'virtio',
                'file': f'/v2/images/{identifier}/file',
                'schema': '/v2/schemas/image',
                'checksum': None,
                'created_at': '2025-11-21T09:00:00Z',
                'updated_at': '2025-11-21T09:00:00Z',
            }
            for identifier, name in ((IMAGE, 'cirros'), (SECOND_IMAGE, 'debian'))
        }

    def get(self, image_id: str, ctxt: Any = None) -> dict[str, Any]:
        if image_id not in self.kept:
            raise ImageNotFound(image_id=image_id)
        return dict(self.kept[image_id])

    def find(self, query: Any, limit: int, ctxt: Any = None) -> list[dict[str, Any]]:
        return [dict(record) for record in self.kept.values()][:limit]

    def create(self, record: dict[str, Any], ctxt: Any = None) -> None:
        self.kept[record['id']] = record

    def update(self, image_id: str, changes: Any, ctxt: Any = None) -> None:
        self.get(image_id)

    def delete(self, image_id: str, ctxt: Any = None) -> None:
        self.kept.pop(image_id, None)

    def url(self, image_id: str, ctxt: Any = None) -> str:
        return f'http://localhost:9292/images/{image_id}'


def diagnostics(**_: Any) -> Any:
    """What a host says of a guest."""
    return objects.Diagnostics(
        state='running',
        driver='libvirt',
        hypervisor='qemu',
        hypervisor_os='linux',
        uptime=4711,
        config_drive=True,
        num_cpus=1,
        num_nics=1,
        num_disks=1,
        memory_details=objects.MemoryDiagnostics(maximum=2048, used=1024),
        cpu_details=[objects.CpuDiagnostics(id=0, time=17300000000, utilisation=15)],
        nic_details=[objects.NicDiagnostics(mac_address='fa:16:3e:00:00:01', rx_octets=2070139, rx_errors=0)],
        disk_details=[objects.DiskDiagnostics(read_bytes=262144, read_requests=112)],
    )


def console(console_type: str, **_: Any) -> Any:
    """Where a host says that a guest's console is."""
    bases = {'novnc': 'http://localhost:6080/vnc_auto.html', 'serial': 'ws://localhost:6083/'}
    return objects.ConsoleOffer(
        console_type=console_type,
        host='192.0.2.10',
        port=5900,
        tls_port=None,
        access_url_base=bases.get(console_type, 'http://localhost:6082/spice_auto.html'),
    )


# What the daemons answer to calls.
REPLIES = {
    **{f'get_{protocol}_console': console for protocol in ('vnc', 'spice', 'serial')},
    'live_migration_force_complete': None,
    'get_console_output': 'login:\n',
    'get_instance_diagnostics': diagnostics,
    'get_host_uptime': ' 10:00:00 up 1 day,  2:03,  0 users,  load average: 0.00, 0.01, 0.05',
    'get_diagnostics': {
        'cpu0_time': 17300000000,
        'memory': 524288,
        'vda_errors': -1,
        'vda_read': 262144,
        'vnet1_rx': 2070139,
        'vnet1_tx': 140208,
    },
}


def _digest(connection: sqlite3.Connection) -> str:
    """Of all rows of a database."""
    found = hashlib.sha256()
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid'):
            found.update(repr((table, row)).encode())
    return found.hexdigest()


class World(Site):
    """See the module. ``names``: what stands in braces in paths and bodies."""

    neutron: FakeNeutron

    def __init__(self, directory: pathlib.Path, templates: pathlib.Path, **options: Any) -> None:
        neutron, self.cinder = FakeNeutron(hosts={'gpu1'}), FakeCinder()
        neutron.add_network(VIF.label, PROJECT, id=VIF.network_id, cidr=VIF.subnets[0].cidr)
        neutron.add_group(
            'default',
            PROJECT,
            {'remote_group_id': GROUP},
            {'protocol': 'tcp', 'port_range_min': 22, 'port_range_max': 22},
            id=GROUP,
        )
        neutron.add_group('trusted', PROJECT, {'id': RULE, 'protocol': 'icmp'}, id=TRUSTED)
        neutron.add_network(
            'public', ADMIN, id=OUTSIDE, cidr='198.51.100.0/28', **{'router:external': True, 'shared': True}
        )
        for volume in (VOLUME, FREE):
            self.cinder.add_volume(
                PROJECT, id=volume, size=10, name='data', description='training data', metadata={'team': 'vision'}
            )
        self.cinder.add_snapshot(VOLUME, 'before', id=SNAPSHOT, description='before the training')
        for fake in (neutron, self.cinder):
            fake.users['stranger'] = OTHER_PROJECT
        with (
            mock.patch.object(site_module, 'Recorder', Answering),
            mock.patch.object(site_module, 'Images', Images),
            mock.patch.object(api_app.auth_token, 'AuthProtocol', lambda app, conf: app),
            # Random requests queue behind operations that never end here.
            mock.patch.object(ApiOptions, 'answer_seconds', 5),
        ):
            # Nobody reports any more once it stands, however long a file's tests take.
            super().__init__(
                directory,
                templates,
                neutron=neutron,
                cinder=self.cinder,
                **{'api__auth_strategy': 'keystone', 'service_down_time': 86400, **options},
            )
        self.names: dict[str, str] = {
            'tenant_id': PROJECT,
            'project': PROJECT,
            'other_project': OTHER_PROJECT,
            'user': USER,
            'other_user': OTHER_USER,
            'image': IMAGE,
            'unknown': UNKNOWN,
        }
        self.requests = 0
        self.compute.replies.update(REPLIES)
        self.conductor.replies['run_operation'] = self._run_operation
        self._populate()
        self._files = {
            path.stem: sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for path in sorted(directory.glob('*.db'))
        }
        self._saved: dict[str, sqlite3.Connection] = {}
        self._seen: dict[str, int] = {}
        self._touched: set[str] = set()
        self._base: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        self.save()

    def close(self) -> None:
        """Nothing of it stays open."""
        for connection in (*self._files.values(), *self._saved.values()):
            connection.close()
        self.databases.dispose()

    # -- requests -------------------------------------------------------------------------------------------------
    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str = 'admin',
        user: str | None = None,
        project: str | None = None,
        version: str | int | None = '2.104',
        mount: str = '/v2.1',
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> webob.Response:
        """One request of one of CALLERS; ``user`` admin or another instead, as a Site has them."""
        if user not in (None, 'admin') and role == 'admin':
            role = 'member'
        who, where, roles = CALLERS[role]
        request = webob.Request.blank(mount + self.fill(path), method=method)
        request.headers.update(
            {
                'X-User-Id': who,
                'X-Project-Id': project or where,
                'X-Roles': roles,
                'X-User-Name': 'bob',
                'X-Project-Name': 'demo',
                'X-Auth-Token': 'stranger' if role == 'stranger' else 'token',
                'X-Identity-Status': 'Confirmed',
            }
        )
        if version is not None:
            version = f'2.{version}' if isinstance(version, int) else version
            request.headers['OpenStack-API-Version'] = f'compute {version}'
        if body is not None or raw is not None:
            request.content_type = 'application/json'
            request.body = raw if raw is not None else json.dumps(body).encode()
        for name, value in (headers or {}).items():
            if value is None:
                request.headers.pop(name, None)
            else:
                request.headers[name] = value
        self.requests += 1
        return request.get_response(self.app)

    def fill(self, value: Any) -> Any:
        """``value`` with the names in braces replaced; those that nobody knows stay."""
        if isinstance(value, str):
            return _NAMED.sub(
                lambda found: quote(self.names[found[1]], safe='/') if found[1] in self.names else found[0], value
            )
        if isinstance(value, dict):
            return {self.fill(key): self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value

    # -- the databases --------------------------------------------------------------------------------------------
    def save(self) -> None:
        """What ``restore`` goes back to."""
        for name, connection in self._files.items():
            self._saved[name] = sqlite3.connect(':memory:', check_same_thread=False)
            connection.backup(self._saved[name])
            connection.execute('PRAGMA synchronous = OFF')
            self._base[name] = _digest(connection)
        self._marks = dict(self._base)
        self._kept = copy.deepcopy(self._of_others())
        self._look()

    def _of_others(self) -> list[dict[str, Any]]:
        """What the network and the volume service have."""
        neutron = self.neutron
        return [self.cinder.volumes, self.cinder.snapshots, neutron.ports, neutron.security_groups, neutron.floatingips]

    def _look(self) -> set[str]:
        found = {
            name: connection.execute('PRAGMA data_version').fetchone()[0] for name, connection in self._files.items()
        }
        different = {name for name, number in found.items() if self._seen.get(name) != number}
        self._seen = found
        return different

    def mark(self) -> None:
        """What ``changed`` compares with from now on."""
        for name in self._look() | self._touched:
            self._marks[name] = _digest(self._files[name])
            if self._marks[name] != self._base[name]:
                # Nothing may change it further; it is to be put back all the same.
                self._touched.add(name)

    def changed(self) -> set[str]:
        """The databases that hold something else than at the last mark. A transaction that locked and changed nothing
        is no change."""
        found = {name for name in self._look() if _digest(self._files[name]) != self._marks[name]}
        self._touched |= found
        return found

    def restore(self, names: set[str] | None = None) -> None:
        """Put the databases (those that changed, or ``names``) back."""
        for name in (self._look() if names is None else names) | self._touched:
            self._saved[name].backup(self._files[name])
        self._touched.clear()
        self._marks = dict(self._base)
        self._look()
        self.images.restore()
        for now, kept in zip(self._of_others(), self._kept, strict=True):
            if now != kept:
                now.clear()
                now.update(copy.deepcopy(kept))
        for client in (self.conductor, self.compute):
            client.calls.clear()

    def difference(self) -> dict[str, int]:
        """How many rows more (or fewer) each table has than it was saved with."""
        found = {}
        for name, connection in self._files.items():
            tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                count = f'SELECT count(*) FROM "{table}"'
                more = connection.execute(count).fetchone()[0] - self._saved[name].execute(count).fetchone()[0]
                if more:
                    found[f'{name}.{table}'] = more
        return found

    def _run_operation(self, operation: str) -> None:
        """An attach is done at once: the request waits for its end. ATTACHED is the port."""
        with self.cell1.write() as conn:
            row = operations.get(conn, operation)
            if row is None or row.kind not in ('attach_interface', 'attach_volume'):
                return
            if row.kind == 'attach_interface':
                put_vifs(conn, row.instance_uuid, [VIF, replace(VIF, id=ATTACHED)])
            else:
                volumes.change(conn, row.args['row'], None, {'attachment_id': ATTACHMENT, 'device_name': '/dev/vdc'})
            operations.end(conn, row.uuid, row.instance_uuid)

    # -- things ---------------------------------------------------------------------------------------------------
    def _populate(self) -> None:
        self._hosts()
        self._flavors()
        for role in CALLERS:
            self.request(
                'POST', '/os-keypairs', {'keypair': {'name': 'mykey', 'public_key': KEY, 'type': 'ssh'}}, role=role
            )
        for role, name in (('admin', 'spare'), ('stranger', 'theirs')):
            self.ok('POST', '/os-keypairs', {'keypair': {'name': name, 'public_key': KEY, 'type': 'ssh'}}, role=role)
        self._groups()
        self._servers()
        self._details()
        self._moves()

    def _hosts(self) -> None:
        """gpu1 and gpu2 in cell1 (gpu2 in the zone az2), a conductor."""
        for number, host in enumerate(('gpu1', 'gpu2'), start=1):
            uuid = f'{number:08d}-aaaa-4bbb-8ccc-000000000000'
            with self.cell1.write() as conn:
                service = services.get_or_create(conn, host, 'nova-compute', 'compute')
                services.report(conn, service['id'])
                compute_nodes.get_or_create(conn, {**NODE, 'uuid': uuid, 'host': host, 'hypervisor_hostname': host})
            with self.databases.api().write() as conn:
                cells.map_hosts(conn, self.cell1.cell.id, [host])
            self.names.update(
                {f'{host}_service': service['uuid'], f'{host}_number': str(service['id']), f'{host}_node': uuid}
            )
        self.names.update(
            service_id=self.names['gpu2_service'],
            hypervisor_id=self.names['gpu1_node'],
            hypervisor_hostname_pattern='gpu1',
            host_name='gpu1',
            keypair_name='mykey',
            image_id=IMAGE,
            tag='gpu',
            network_label='private',
            port_id=PORT,
            quota_class='default',
            network=VIF.network_id,
            group=GROUP,
            trusted=TRUSTED,
            volume_id=VOLUME,
            network_id=VIF.network_id,
            security_group_id=GROUP,
            rule_id=RULE,
            floating_ip_id=FLOATING,
            volume=VOLUME,
            free_volume=FREE,
            snapshot_id=SNAPSHOT,
            alias='os-keypairs',
            migration_id='0',
            before_timestamp='2025-11-22 00:00:00',
        )
        with self.cell1.write() as conn:
            services.get_or_create(conn, 'controller', 'nova-conductor', 'conductor')
        with self.databases.api().write() as conn:
            for name, host, more in (('rack1', 'gpu1', {}), ('rack2', 'gpu2', {'availability_zone': 'az2'})):
                aggregate = aggregates.create(conn, name, {'gpu': 'true', **more})
                aggregates.add_host(conn, aggregate['id'], host)
                self.names[name] = str(aggregate['id'])
            empty = aggregates.create(conn, 'empty', {})
        self.names.update(aggregate_id=self.names['rack1'], empty_aggregate=str(empty['id']))

    def _flavors(self) -> None:
        """Two that everybody may use, and a private one that another project may use."""
        for identifier, size in (('1', 1), ('2', 2)):
            self.flavor(
                {'pci_passthrough:alias': f'gpu:{size}'},
                id=identifier,
                name=f'gpu.{size}',
                ram=2048 * size,
                vcpus=2 * size,
                disk=20,
                description=f'{size} GPU',
            )
        self.flavor(
            id='private', name='gpu.private', ram=1024, vcpus=1, disk=10, **{'os-flavor-access:is_public': False}
        )
        self.ok('POST', '/flavors/private/action', {'addTenantAccess': {'tenant': OTHER_PROJECT}})
        self.names.update(flavor_id='1', flavor='1', larger='2', private='private', key='pci_passthrough:alias')

    def _groups(self) -> None:
        """One with a server, and a stranger's."""
        for name, role in (('spread', 'member'), ('theirs', 'stranger')):
            body = {'server_group': {'name': name, 'policy': 'anti-affinity', 'rules': {'max_server_per_host': 3}}}
            self.names[f'{name}_group'] = self.ok('POST', '/os-server-groups', body, role=role)['server_group']['id']
        self.names['server_group_id'] = self.names['spread_group']

    def _servers(self) -> None:
        """One server that says all that can be said, a second one (stopped), a stranger's, and a waiting one."""
        full = {
            'name': 'train-1',
            'metadata': {'team': 'vision'},
            'tags': ['gpu', 'night'],
            'description': 'training',
            'accessIPv4': '192.0.2.20',
            'accessIPv6': '2001:db8::20',
            'user_data': 'IyEvYmluL3NoCg==',
            'hostname': 'train-1',
            'config_drive': True,
            'key_name': 'mykey',
        }
        values = {'host': 'gpu1', 'node': 'gpu1', 'root_device_name': '/dev/vda', 'availability_zone': 'nova'}
        # Of servers of the same second, lists would show the one with the least uuid first.
        made = [{**values, 'created_at': moment(2025, 11, 21, 9, number)} for number in range(3)]
        server = self._server('member', '1', full, {'group': self.names['spread_group']}, **made[0])
        second = self._server(
            'member', '1', {'name': 'train-2'}, **{**made[1], 'vm_state': 'stopped', 'power_state': 4}
        )
        other = self._server('stranger', '1', {'name': 'other', 'tags': ['theirs']}, **made[2])
        body = {'server': {'name': 'waiting', 'flavorRef': '1', 'imageRef': IMAGE, 'networks': 'none'}}
        waiting = self.ok('POST', '/servers', body, role='member')['server']['id']
        self.names.update(server_id=server, server=server, second=second, other_server=other, waiting=waiting)
        with self.cell1.write() as conn:
            for number, name in enumerate(('create', 'stop', 'resize')):
                at = moment(2025, 11, 21, 10, number)
                instances.start_action(
                    conn,
                    server,
                    {
                        'action': name,
                        'request_id': f'req-0000000{number}-1111-4222-8333-444444444444',
                        'user_id': USER,
                        'project_id': PROJECT,
                        'created_at': at,
                        'updated_at': at,
                        'start_time': at,
                    },
                )
            self.names['request_id'] = 'req-00000002-1111-4222-8333-444444444444'
            instances.add_events(
                conn,
                server,
                self.names['request_id'],
                [
                    {
                        'event': 'compute_prep_resize',
                        'result': 'Error',
                        'host': 'gpu2',
                        'start_time': at,
                        'finish_time': at,
                        'details': 'Insufficient compute resources',
                        'traceback': 'Traceback …',
                    }
                ],
            )

    def _details(self) -> None:
        """What a host and a network service would have written of the server."""
        server = self.names['server']
        topology = objects.InstanceNUMATopology(
            instance_uuid=server,
            cells=[
                objects.InstanceNUMACell(
                    id=0,
                    cpuset=set(),
                    pcpuset={0, 1},
                    memory=2048,
                    pagesize=4,
                    cpu_topology=None,
                    cpu_pinning_raw={'0': 4, '1': 5},
                    cpu_policy='dedicated',
                    cpu_thread_policy=None,
                )
            ],
        )
        with self.cell1.write() as conn:
            trusted = objects.TrustedCerts(ids=['0b5d2c72-12cc-4ba6-a8d7-3ff5cc1d8cb8'])
            instances.update_extra(
                conn,
                server,
                {'numa_topology': topology.to_json(), 'trusted_certs': json.dumps(trusted.obj_to_primitive())},
            )
            instances.set_system_metadata(conn, server, {'password_0': 'c2VjcmV0'})
            put_vifs(conn, server, [VIF])
            volumes.add(
                conn,
                server,
                {
                    **volumes.new_row(VOLUME, size=10, connection_info='{}', tag='data', volume_type='plain'),
                    'device_name': '/dev/vdb',
                    'attachment_id': ATTACHMENT,
                },
            )
        self.neutron.add_port(VIF.network_id, PROJECT, id=ATTACHED, mac_address='fa:16:3e:00:00:02')
        self.neutron.add_port(
            VIF.network_id,
            PROJECT,
            id=PORT,
            mac_address=VIF.mac,
            device_id=server,
            device_owner='compute:nova',
            fixed_ips=[{'ip_address': '192.0.2.30'}],
            **{'binding:host_id': 'gpu1'},
        )
        for identifier, address, leads_to in (
            (FLOATING, '198.51.100.7', (PORT, '192.0.2.30')),
            (UNKNOWN.replace('f', 'e'), '198.51.100.8', (None, None)),
        ):
            self.neutron.floatingips[identifier] = {
                'id': identifier,
                'floating_ip_address': address,
                'port_id': leads_to[0],
                'fixed_ip_address': leads_to[1],
                'floating_network_id': OUTSIDE,
                'project_id': PROJECT,
                'tenant_id': PROJECT,
            }
        self.names['console_token'] = console_tokens.add(
            self.cell1,
            {'console_type': 'novnc', 'host': '192.0.2.10', 'port': 5900},
            compute_host='gpu1',
            instance_uuid=server,
            lifetime=86400 * 365,
        )

    def _server(
        self, role: str, flavor: str, create: dict[str, Any], hints: dict[str, Any] | None = None, **values: Any
    ) -> str:
        body = {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none', **create}
        asked = {'server': body, 'os:scheduler_hints': hints or {}}
        uuid = self.ok('POST', '/servers', asked, role=role)['server']['id']
        given = {'vm_state': 'active', 'launched_at': moment(2025, 11, 21, 10), 'power_state': 1, **values}
        return self.hand_over(uuid, self.cell1, **given)

    def _moves(self) -> None:
        with self.cell1.write() as conn:
            for number, name in enumerate(('server', 'other_server')):
                at = moment(2025, 11, 21, 11, number)
                migrations.create(
                    conn,
                    {
                        'uuid': f'{number:08d}-dddd-4eee-8fff-000000000000',
                        'instance_uuid': self.names[name],
                        'status': 'confirmed',
                        'migration_type': 'resize',
                        'source_compute': 'gpu2',
                        'dest_compute': 'gpu1',
                        'source_node': 'gpu2',
                        'dest_node': 'gpu1',
                        'dest_host': '192.0.2.10',
                        'old_instance_type_id': 2,
                        'new_instance_type_id': 1,
                        'project_id': (PROJECT, OTHER_PROJECT)[number],
                        'user_id': (USER, OTHER_USER)[number],
                        'created_at': at,
                        'updated_at': at,
                    },
                )

    def moving(self) -> None:
        """The server is migrated live."""
        with self.cell1.write() as conn:
            row = migrations.create(
                conn,
                {
                    'uuid': '77777777-dddd-4eee-8fff-000000000000',
                    'instance_uuid': self.names['server'],
                    'status': 'running',
                    'migration_type': 'live-migration',
                    'source_compute': 'gpu1',
                    'dest_compute': 'gpu2',
                    'source_node': 'gpu1',
                    'dest_node': 'gpu2',
                    'dest_host': '192.0.2.11',
                    'old_instance_type_id': 1,
                    'new_instance_type_id': 1,
                    'project_id': PROJECT,
                    'user_id': USER,
                    'memory_total': 2147483648,
                    'memory_processed': 1073741824,
                    'memory_remaining': 1073741824,
                    'disk_total': 0,
                    'disk_processed': 0,
                    'disk_remaining': 0,
                    'created_at': moment(2025, 11, 21, 13),
                    'updated_at': moment(2025, 11, 21, 13),
                },
            )
        self.names['migration_id'] = str(row['id'])

    def aborting(self) -> None:
        """The same, and the operation of it that can be cancelled."""
        self.moving()
        self.become(task_state='migrating')
        with self.cell1.write() as conn:
            operations.insert(
                conn,
                [
                    operations.OperationRow(
                        uuid='77777777-dddd-4eee-8fff-000000000001',
                        kind='live_migrate',
                        instance_uuid=self.names['server'],
                    )
                ],
            )

    def forcing(self) -> None:
        """The same, of which nothing is asked but the host."""
        self.moving()
        self.become(task_state='migrating')

    def become(self, **columns: Any) -> None:
        """Columns of the server's row, whatever they were."""
        names = ', '.join(f'{name} = ?' for name in columns)
        # What this connection writes it doesn't see as a change.
        self._touched.add('cell1')
        self._files['cell1'].execute(
            f'UPDATE instances SET {names} WHERE uuid = ?', (*columns.values(), self.names['server'])
        )

    def plain(self) -> None:
        """Nothing holds the server to its host."""
        with self.cell1.write() as conn:
            instances.update_extra(conn, self.names['server'], {'pci_requests': None, 'numa_topology': None})

    def with_agent(self) -> None:
        """The server's image says that its guests have QEMU's agent."""
        with self.cell1.write() as conn:
            instances.set_system_metadata(conn, self.names['server'], {'image_hw_qemu_guest_agent': 'yes'})

    def grouped(self) -> None:
        """The server's port has the project's default group, and no other."""
        self.neutron.ports[PORT]['security_groups'] = [GROUP]

    def migrating(self) -> None:
        """Cinder moves the server's volume to the one that nobody has."""
        for volume, said in ((VOLUME, 'migrating'), (FREE, f'target:{VOLUME}')):
            self.cinder.volumes[volume]['os-vol-mig-status-attr:migstat'] = said

    def snapshotting(self, status: str = 'creating') -> None:
        """The server's volume is a file of a share, and Cinder has begun a snapshot of it."""
        self.cinder.snapshots[SNAPSHOT]['status'] = status
        server = self.names['server']
        with self.cell1.write() as conn:
            (row,) = volumes.of_servers(conn, [server])[server]
            text = AttachedVolume.read(row).connection_info(
                server, 'gpu1', {'driver_volume_type': 'nfs', 'name': 'volume-1', 'format': 'raw'}
            )
            volumes.change(conn, row['uuid'], ATTACHMENT, {'connection_info': text})

    def deleting_a_snapshot(self) -> None:
        """It deletes it."""
        self.snapshotting('deleting')

    def on_a_dead_host(self) -> None:
        """The server's host is off, and its service forced down."""
        self._touched.add('cell1')
        self._files['cell1'].execute("UPDATE services SET forced_down = 1 WHERE host = 'gpu1'")

    def resized(self) -> None:
        """The server waits for confirmResize or revertResize."""
        self.become(vm_state='resized', host='gpu2', node='gpu2')
        with self.cell1.write() as conn:
            migrations.create(
                conn,
                {
                    'uuid': '99999999-dddd-4eee-8fff-000000000000',
                    'instance_uuid': self.names['server'],
                    'status': 'finished',
                    'migration_type': 'resize',
                    'source_compute': 'gpu1',
                    'dest_compute': 'gpu2',
                    'source_node': 'gpu1',
                    'dest_node': 'gpu2',
                    'dest_host': '192.0.2.11',
                    'old_instance_type_id': 1,
                    'new_instance_type_id': 2,
                    'project_id': PROJECT,
                    'user_id': USER,
                    'created_at': moment(2025, 11, 21, 12),
                    'updated_at': moment(2025, 11, 21, 12),
                },
            )
