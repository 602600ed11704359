"""What an audit finds; the amounts that it expects are those that the scheduler asks Placement for."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import objects
from kilonova.conductor.audit import allocations as audit_allocations
from kilonova.conductor.audit import compare as audit
from kilonova.db.models.cell import ComputeNode, PciDevice
from kilonova.db.queries import (
    build_requests,
    compute_nodes,
    instance_mappings,
    instances,
    migrations,
    operations,
    request_specs,
)
from kilonova.errors import Unanswered
from kilonova.scheduler.placement import query
from kilonova.virt.hardware import constraints
from tests.fixtures import placement as placement_fixture
from tests.fixtures.servers import put_server, set_state
from tests.unit.conductor.site import HOSTS, LARGE, MIGRATION, SERVER, SMALL, Site
from tests.unit.db.rows import device
from tests.unit.scheduler.builders import pools, spec, uuid

DEDICATED = {'hw:cpu_policy': 'dedicated'}
MIXED = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-2'}
FLAVORS = [
    {},
    {'resources:VCPU': '2'},
    {'resources:VCPU': '0'},
    {'resources:VCPU': 'many'},
    {'resources1:VCPU': '2'},
    {'resources:VCPU': '2', 'resources_more:VCPU': '3'},
    {'resources:DISK_GB': '0', 'resources:MEMORY_MB': '1024'},
    {'resources_disks:DISK_GB': '5'},
    {'resources:CUSTOM_BAREMETAL': '1', 'resources:VCPU': '0'},
    {'resources:PCPU': '4'},
    {'resources_cpus:PCPU': '4'},
    {'resources_cpus:VCPU': '1', **DEDICATED},
    {'resources:VCPU': '3', **DEDICATED},
    DEDICATED,
    MIXED,
    {**DEDICATED, 'hw:emulator_threads_policy': 'isolate'},
    {**MIXED, 'hw:emulator_threads_policy': 'isolate'},
    {**DEDICATED, 'hw:emulator_threads_policy': 'share'},
    {'hw:numa_nodes': '2'},
    {'hw:numa_nodes': '3'},
    {'hw:mem_page_size': 'large'},
    {'hw:cpu_policy': 'mixed'},
    {'hw:mem_encryption': 'true', 'hw:pmem': '6GB'},
    {'trait:HW_CPU_X86_VMX': 'required'},
]


def asked(request, **how):
    found = query.build(request, max_results=1, **how).resources()
    return {name: amount for name, amount in found.items() if name in audit_allocations.CLASSES}


@pytest.mark.parametrize('pinning', [True, False])
@pytest.mark.parametrize('from_volume', [True, False])
@pytest.mark.parametrize('extra_specs', FLAVORS)
def test_amounts_are_what_the_scheduler_asks_for(extra_specs, from_volume, pinning):
    request = spec(extra_specs, flavor_values={'ephemeral_gb': 4, 'swap': 1500}, is_bfv=from_volume)
    assert audit_allocations.amounts(request.flavor, None, from_volume=from_volume, pinning=pinning) == asked(
        request, pinning=pinning
    )


def test_dedicated_cpus_that_the_image_asks_for():
    """The flavor says nothing of them: the server's place does."""
    image = {'id': uuid(), 'properties': {'hw_cpu_policy': 'dedicated'}}
    request = spec(image=image)
    request.numa_topology = constraints.of(request.flavor, request.image.properties)
    assert (
        audit_allocations.amounts(request.flavor, request.numa_topology)
        == asked(request)
        == {'PCPU': 8, 'MEMORY_MB': 32768, 'DISK_GB': 16}
    )


# --- looks at a cloud ------------------------------------------------------------------------------------------------
MOVED, MOVE, GPU = uuid('moved server'), MIGRATION, 'CUSTOM_PCI_10DE_13F1'
SIZES = {'VCPU': 1, 'MEMORY_MB': 32768, 'DISK_GB': 16}
ADDRESS, OTHER, FREE = '0000:0a:00.0', '0000:0b:00.0', '0000:0c:00.0'


class Sound:
    """A cloud where all agrees: a server with a device on gpu1, one that was resized from gpu1 to gpu2 with a device at
    each end. ``views`` are what hosts show."""

    def __init__(self, site: Site) -> None:
        self.site, self.pauses = site, []
        self.between: Callable[[], None] = lambda: None
        site.in_placement('sound', self.hold_all)
        self.views = {host: {'domains': [], 'directories': [], 'missing_devices': []} for host in HOSTS}
        site.answers['describe_host'] = lambda sent: self.views[sent.server]
        site.put('active')
        self.device('gpu1', ADDRESS, SERVER)
        self.shows('gpu1', SERVER, ADDRESS)
        self.moved()
        for host in ('gpu1', 'gpu2'):
            self.device(host, FREE, None)
            with site.cell.write() as conn:
                (node,) = compute_nodes.by_host(conn, host)
                compute_nodes.update(conn, node['id'], {'pci_stats': pools(FREE)})
        with site.api.write() as conn:
            instance_mappings.create(
                conn,
                [
                    {
                        'instance_uuid': server,
                        'project_id': 'demo',
                        'user_id': 'alice',
                        'cell_id': 2,
                        'queued_for_delete': False,
                    }
                    for server in (SERVER, MOVED)
                ],
            )

    def hold_all(self) -> None:
        for number, host in enumerate(('gpu1', 'gpu2'), 1):
            self.site.placement.host(
                f'node{number}',
                vcpus=9,
                memory_mb=99999,
                disk_gb=99,
                uuid=uuid(host),
                pci={f'node{number}_{address.upper()}': GPU for address in (ADDRESS, OTHER, FREE)},
            )
        self.site.placement.host('node3', uuid=uuid('gpu3'))
        self.hold(SERVER, 'gpu1', ADDRESS, 1)
        self.hold(MOVE, 'gpu1', OTHER, 1)
        self.hold(MOVED, 'gpu2', OTHER, 2)

    def moved(self) -> None:
        site = self.site
        here, there = ([objects.PciDevice(address=OTHER, request_id=None)] for _ in '12')
        context = objects.MigrationContext(
            instance_uuid=MOVED,
            migration_id=1,
            old_pci_devices=objects.PciDeviceList(objects=here),
            new_pci_devices=objects.PciDeviceList(objects=there),
            old_numa_topology=None,
            new_numa_topology=None,
        )
        made = site.instance(
            flavor=LARGE, old_flavor=SMALL, new_flavor=LARGE, migration_context=context, host='gpu2', node='node2'
        )
        made.uuid = MOVED
        rows = made.to_rows()
        with site.cell.write() as conn:
            put_server(conn, rows.values, rows.extra, {}, {})
            set_state(conn, MOVED, vm_state='resized', task_state=None)
            migrations.create(
                conn,
                {
                    'uuid': MOVE,
                    'instance_uuid': MOVED,
                    'status': 'finished',
                    'migration_type': 'resize',
                    'source_compute': 'gpu1',
                    'source_node': 'node1',
                    'dest_compute': 'gpu2',
                    'dest_node': 'node2',
                    'old_instance_type_id': 1,
                    'new_instance_type_id': 2,
                },
            )
        with site.api.write() as conn:
            request_specs.create(conn, [(MOVED, site.spec(LARGE).to_json())])
        for host in ('gpu1', 'gpu2'):
            self.device(host, OTHER, MOVED)
        self.shows('gpu2', MOVED, OTHER)
        self.views['gpu1']['directories'].append(f'{MOVED}_resize')

    def shows(self, host: str, server: str, *devices: str, state: int = 1) -> None:
        self.views[host]['domains'].append({'uuid': server, 'state': state, 'hostdevs': list(devices)})
        self.views[host]['directories'].append(server)

    def device(self, host: str, address: str, owner: str | None) -> None:
        with self.site.cell.write() as conn:
            (node,) = compute_nodes.by_host(conn, host)
            conn.execute(
                PciDevice.__table__.insert(),
                {
                    **device(address),
                    'compute_node_id': node['id'],
                    'dev_id': address,
                    'deleted': 0,
                    'status': 'allocated' if owner else 'available',
                    'instance_uuid': owner,
                    'request_id': None,
                },
            )

    def hold(self, consumer: str, host: str, address: str | None, vcpus: int, **more: int) -> None:
        """In place of what it holds."""
        client = self.site.placement.client
        amounts = {'VCPU': vcpus, 'MEMORY_MB': 32768, 'DISK_GB': 16, **more}
        held = {uuid(host): {'resources': {name: amount for name, amount in amounts.items() if amount}}}
        if address:
            held[self.provider(host, address)] = {'resources': {GPU: 1}}
        client.delete_allocations(consumer)
        client.claim(consumer, held, project_id='demo', user_id='alice')

    def provider(self, host: str, address: str) -> str:
        found: str = next(
            one['uuid']
            for one in self.site.placement.client.list_providers(in_tree=uuid(host))
            if one['name'].lower().endswith(address)
        )
        return found

    def write(self, table: Any, where: Any, **values: Any) -> None:
        with self.site.cell.write() as conn:
            assert conn.execute(table.update().where(where).values(**values)).rowcount == 1

    def server(self, server: str = SERVER, **values: Any) -> None:
        self.write(instances.instances, instances.instances.c.uuid == server, **values)

    def devices(self, host: str, at: str, **values: Any) -> None:
        table = PciDevice.__table__
        with self.site.cell.read() as conn:
            (node,) = compute_nodes.by_host(conn, host)
        self.write(table, sa.and_(table.c.compute_node_id == node['id'], table.c.address == at), **values)

    def forget_old_flavor(self) -> None:
        made = self.site.instance(flavor=LARGE, new_flavor=LARGE)
        with self.site.cell.write() as conn:
            instances.update_extra(conn, MOVED, made.extra_values(['flavor']))

    def forget_context(self) -> None:
        with self.site.cell.write() as conn:
            instances.update_extra(conn, MOVED, {'migration_context': None})

    def operation(self, kind: str, server: str = SERVER, **values: Any) -> None:
        row = operations.OperationRow.new(self.site.ctxt, kind, server)
        with self.site.cell.write() as conn:
            operations.insert(conn, [replace(row, **values)])

    def look(self, compute: Any = True, down_time: float | None = None) -> audit.AuditReport:
        def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            self.between()

        env: Any = self.site.env
        return audit.Audit(
            self.site.databases,
            env.cells,
            placement_fixture.Reader(),  # type: ignore[arg-type]
            env.compute if compute else None,
            self.site.ctxt,
            pause,
            down_time,
        ).run()


@pytest.fixture
def sound(site: Site) -> Sound:
    return Sound(site)


def test_nothing_disagrees(sound: Sound) -> None:
    report = sound.look()
    assert report == audit.AuditReport([], [], [], {'servers': 2, 'devices': 5})
    assert report.exit_code == 0 and sound.pauses == []
    assert sorted(sound.site.asked()) == [f'{host} describe_host' for host in HOSTS]


def domain(sound: Sound, host: str) -> dict[str, Any]:
    found: dict[str, Any] = sound.views[host]['domains'][0]
    return found


def forget_spec(sound: Sound) -> None:
    with sound.site.api.write() as conn:
        request_specs.destroy(conn, SERVER)


def unmapped(sound: Sound) -> None:
    with sound.site.api.write() as conn:
        conn.execute(
            instance_mappings.instance_mappings.update()
            .where(instance_mappings.instance_mappings.c.instance_uuid == SERVER)
            .values(cell_id=None)
        )


def build_request(sound: Sound) -> None:
    made = sound.site.instance()
    with sound.site.api.write() as conn:
        build_requests.create(conn, [{'instance_uuid': SERVER, 'project_id': 'demo', 'instance': made.to_json()}])


def nowhere(sound: Sound) -> None:
    sound.server(host=None, node=None, vm_state='shelved_offloaded')
    sound.devices('gpu1', ADDRESS, instance_uuid=None, status='removed')
    sound.views['gpu1']['domains'].clear()
    sound.views['gpu1']['directories'].remove(SERVER)


# What is changed, and what disagrees then.
WRONG: dict[str, tuple[Callable[[Sound], Any], list[str]]] = {
    'build request': (build_request, [f'database: server {SERVER} has a build request and no operation']),
    'no cell': (unmapped, [f'database: server {SERVER} has a mapping without a cell and no operation']),
    'task state': (
        lambda sound: sound.server(task_state='rebooting'),
        [f'database: server {SERVER} is rebooting and no operation works on it'],
    ),
    'no task state': (
        lambda sound: sound.operation('stop'),
        [f'database: operation stop works on server {SERVER}, which has no task state'],
    ),
    'a move without work': (
        lambda sound: sound.write(migrations.migrations, migrations.migrations.c.uuid == MOVE, status='migrating'),
        [
            f'database: migration {MOVE} is migrating and no operation works on it',
            f'database: server {MOVED} is resized and no move of it waits to be confirmed',
        ][:1],
    ),
    'rows': (forget_spec, [f'database: server {SERVER} has no request spec']),
    'claimed without an owner': (
        lambda sound: sound.devices('gpu1', FREE, status='claimed'),
        [
            f'database: device gpu1 {FREE} is claimed, but no server owns it',
            'database: node1 offers 1 devices, its rows say that 0 are available',
        ],
    ),
    'allocated without an owner': (
        lambda sound: sound.devices('gpu1', FREE, status='allocated'),
        [
            f'database: device gpu1 {FREE} is allocated, but no server owns it',
            'database: node1 offers 1 devices, its rows say that 0 are available',
        ],
    ),
    'available with an owner': (
        lambda sound: sound.devices('gpu1', ADDRESS, status='available'),
        [
            f'database: device gpu1 {ADDRESS} is available and has owner {SERVER}',
            'database: node1 offers 1 devices, its rows say that 2 are available',
        ],
    ),
    'claimed without work': (
        lambda sound: sound.devices('gpu1', ADDRESS, status='claimed'),
        [f'database: device gpu1 {ADDRESS} is claimed by {SERVER} and no operation works on it'],
    ),
    'of a server that is elsewhere': (
        lambda sound: sound.devices('gpu2', FREE, status='allocated', instance_uuid=SERVER),
        [
            f'database: device gpu2 {FREE} belongs to server {SERVER}, which is not on this host',
            'database: node2 offers 1 devices, its rows say that 0 are available',
        ],
    ),
    'of a server that is gone': (
        lambda sound: sound.devices('gpu2', FREE, status='allocated', instance_uuid=uuid('gone')),
        [
            f'database: device gpu2 {FREE} belongs to server {uuid("gone")}, which is not on this host',
            'database: node2 offers 1 devices, its rows say that 0 are available',
        ],
    ),
    'unplugged': (
        lambda sound: sound.views['gpu1']['missing_devices'].append(ADDRESS),
        [f'host: gpu1 no longer has device {ADDRESS}, which server {SERVER} holds'],
    ),
    'a guest of no server': (
        lambda sound: sound.views['gpu3']['domains'].append({'uuid': uuid('gone'), 'state': 1, 'hostdevs': []}),
        [f'libvirt: gpu3 has domain {uuid("gone")}, which is not a server of this host'],
    ),
    'a guest of another host': (
        lambda sound: sound.views['gpu3']['domains'].append({'uuid': MOVED, 'state': 1, 'hostdevs': []}),
        [f'libvirt: gpu3 has domain {MOVED}, which is not a server of this host'],
    ),
    'a guest with other devices': (
        lambda sound: domain(sound, 'gpu1').update(hostdevs=[FREE, ADDRESS]),
        [f'libvirt: domain {SERVER} on gpu1 has devices {[ADDRESS, FREE]}, its rows say {[ADDRESS]}'],
    ),
    'a device of two': (
        lambda sound: sound.views['gpu1']['domains'].append({'uuid': MOVED, 'state': 1, 'hostdevs': [ADDRESS]}),
        [f'libvirt: gpu1 device {ADDRESS} is in 2 domains: {SERVER}, {MOVED}'],
    ),
    'files of no server': (
        lambda sound: sound.views['gpu3']['directories'].append(uuid('gone')),
        [f'files: gpu3 has directory {uuid("gone")}, which belongs to no server of this host'],
    ),
    'files of another host': (
        lambda sound: sound.views['gpu3']['directories'].append(SERVER),
        [f'files: gpu3 has directory {SERVER}, which belongs to no server of this host'],
    ),
    'files of another kind': (
        lambda sound: sound.views['gpu1']['directories'].append(f'{SERVER}_del'),
        [f'files: gpu1 has directory {SERVER}_del, which belongs to no server of this host'],
    ),
    'disks put aside': (
        lambda sound: sound.views['gpu1']['directories'].append(f'{SERVER}_resize'),
        [f'files: gpu1 has directory {SERVER}_resize, which no move needs'],
    ),
    'disks put aside elsewhere': (
        lambda sound: sound.views['gpu2']['directories'].append(f'{MOVED}_resize'),
        [f'files: gpu2 has directory {MOVED}_resize, which no move needs'],
    ),
    'no directory': (
        lambda sound: sound.views['gpu1']['directories'].remove(SERVER),
        [f'files: server {SERVER} has no directory on gpu1'],
    ),
    'off': (
        lambda sound: domain(sound, 'gpu1').update(state=5),
        [f'libvirt: server {SERVER} is active, its guest on gpu1 is not running'],
    ),
    'gone': (
        lambda sound: sound.views['gpu1']['domains'].clear(),
        [f'libvirt: server {SERVER} is active, its guest on gpu1 is not running'],
    ),
    **{
        f'running and {state}': (
            lambda sound, state=state: sound.server(vm_state=state),
            [f'libvirt: server {SERVER} is {state}, its guest on gpu1 is running'],
        )
        for state in ('stopped', 'soft-delete', 'shelved')
    },
    'nowhere with an allocation': (
        lambda sound: (nowhere(sound), sound.hold(SERVER, 'gpu1', None, 1)),
        [f'Placement: server {SERVER} has no host and holds {uuid("gpu1")} {SIZES}'],
    ),
    'nothing held': (
        lambda sound: sound.site.placement.client.delete_allocations(SERVER),
        [f'Placement: server {SERVER} is on gpu1 and holds nothing'],
    ),
    'nothing held by a move': (
        lambda sound: sound.site.placement.client.delete_allocations(MOVE),
        [f'Placement: move {MOVE} is on gpu1 and holds nothing'],
    ),
    'held elsewhere': (
        lambda sound: sound.hold(SERVER, 'gpu2', None, 1),
        [
            f'Placement: server {SERVER} is on gpu1 and holds {uuid("gpu2")} elsewhere',
            f'Placement: server {SERVER} holds devices [], its rows say {[ADDRESS]}',
        ],
    ),
    'too much': (
        lambda sound: sound.hold(SERVER, 'gpu1', ADDRESS, 2, DISK_GB=15),
        [f'Placement: server {SERVER} holds VCPU 2, DISK_GB 15, its flavor says VCPU 1, DISK_GB 16'],
    ),
    'the new flavor for the old end': (
        lambda sound: sound.hold(MOVE, 'gpu1', OTHER, 2),
        [f'Placement: move {MOVE} holds VCPU 2, its flavor says VCPU 1'],
    ),
    # It is of the present one then.
    'a move without its old flavor': (
        lambda sound: sound.forget_old_flavor(),
        [
            f'database: server {MOVED} has old flavor None, its move {MOVE} says 1',
            f'Placement: move {MOVE} holds VCPU 1, its flavor says VCPU 2',
        ],
    ),
    'another device': (
        lambda sound: sound.hold(SERVER, 'gpu1', FREE, 1),
        [f'Placement: server {SERVER} holds devices {[FREE]}, its rows say {[ADDRESS]}'],
    ),
    'no device': (
        lambda sound: sound.hold(MOVED, 'gpu2', None, 2),
        [f'Placement: server {MOVED} holds devices [], its rows say {[OTHER]}'],
    ),
    'an unknown consumer': (
        lambda sound: sound.hold(uuid('gone'), 'gpu3', None, 1),
        [f'Placement: consumer {uuid("gone")} holds {uuid("gpu3")} {SIZES} and is not a server or a move'],
    ),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_disagrees(sound: Sound, name: str) -> None:
    change, lines = WRONG[name]
    change(sound)
    report = sound.look()
    assert sorted(report.disagreements) == sorted(lines)
    # It was looked at twice.
    assert report.exit_code == 1 and report.silent == [] and sound.pauses == [audit.PAUSE]


FINE: dict[str, Callable[[Sound], Any]] = {
    'an unknown server': lambda sound: sound.operation('stop', uuid('gone')),
    'a build': lambda sound: (sound.operation('boot'), sound.server(vm_state='building')),
    'a release': lambda sound: sound.operation('release', slot='x'),
    'a crash dump': lambda sound: sound.operation('trigger_crash_dump'),
    'a confirm': lambda sound: sound.operation('confirm', MOVED),
    'a cancelled row': lambda sound: sound.operation('stop', cancelled=True),
    'what a row works on': lambda sound: (
        sound.operation('reboot'),
        sound.server(task_state='rebooting'),
        domain(sound, 'gpu1').update(state=5),
        sound.views['gpu1']['directories'].remove(SERVER),
        forget_spec(sound),
        sound.devices('gpu1', ADDRESS, status='claimed'),
        sound.site.placement.client.delete_allocations(SERVER),
        sound.views['gpu1']['missing_devices'].append(ADDRESS),
    ),
    'devices of a row': lambda sound: (
        sound.operation('reboot'),
        sound.server(task_state='rebooting'),
        domain(sound, 'gpu1').update(hostdevs=[OTHER]),
        sound.views['gpu1']['domains'].append({'uuid': SERVER, 'state': 1, 'hostdevs': [OTHER]}),
        sound.views['gpu3']['domains'].append({'uuid': SERVER, 'state': 1, 'hostdevs': []}),
        sound.views['gpu3']['directories'].append(SERVER),
    ),
    'a move under way': lambda sound: (
        sound.operation('resize', MOVED),
        sound.server(MOVED, task_state='resize_finish', vm_state='active'),
        sound.write(migrations.migrations, migrations.migrations.c.uuid == MOVE, status='migrating'),
    ),
    'an old end that still runs': lambda sound: sound.views['gpu1']['domains'].append(
        {'uuid': MOVED, 'state': 5, 'hostdevs': [OTHER]}
    ),
    'an error without anything': lambda sound: (
        sound.server(vm_state='error'),
        sound.views['gpu1']['directories'].remove(SERVER),
        sound.views['gpu1']['domains'].clear(),
    ),
    'paused': lambda sound: (sound.server(vm_state='paused'), domain(sound, 'gpu1').update(state=3)),
    'off': lambda sound: (sound.server(vm_state='stopped'), domain(sound, 'gpu1').update(state=5)),
    'off without a domain': lambda sound: (sound.server(vm_state='stopped'), sound.views['gpu1']['domains'].clear()),
    'nowhere': lambda sound: (nowhere(sound), sound.site.placement.client.delete_allocations(SERVER)),
    'a compute that does not say what is missing': lambda sound: sound.views['gpu1'].pop('missing_devices'),
}


@pytest.mark.parametrize('name', FINE)
def test_what_is_fine(sound: Sound, name: str) -> None:
    FINE[name](sound)
    report = sound.look()
    assert report.disagreements == [] and report.exit_code == 0


def test_what_is_passed_over_hides_nothing(sound: Sound) -> None:
    """Behind the server that a row works on the others are looked at."""
    gone, where = uuid('gone'), 'gpu1'
    sound.operation('release', slot='x')
    sound.operation('reboot')
    sound.server(task_state='rebooting')
    sound.operation('stop', MOVED)
    sound.views[where]['domains'][1:] = [
        {'uuid': SERVER, 'state': 1, 'hostdevs': []},
        {'uuid': gone, 'state': 1, 'hostdevs': []},
    ]
    sound.views[where]['directories'].append(gone)
    sound.devices(where, FREE, instance_uuid=gone, status='allocated')
    with sound.site.cell.write() as conn:
        rows = sound.site.instance(host='gpu3', node='node3')
        rows.uuid = gone
        made = rows.to_rows()
        put_server(conn, made.values, made.extra, {}, {})
        set_state(conn, gone, vm_state='active', task_state=None)
    with sound.site.api.write() as conn:
        request_specs.create(conn, [(gone, sound.site.spec().to_json())])
        instance_mappings.create(
            conn, [{'instance_uuid': gone, 'project_id': 'p', 'user_id': 'u', 'cell_id': 2, 'queued_for_delete': False}]
        )
    assert sorted(sound.look().disagreements) == sorted(
        [
            f'database: operation stop works on server {MOVED}, which has no task state',
            f'database: device gpu1 {FREE} belongs to server {gone}, which is not on this host',
            'database: node1 offers 1 devices, its rows say that 0 are available',
            f'libvirt: gpu1 has domain {gone}, which is not a server of this host',
            f'files: gpu1 has directory {gone}, which belongs to no server of this host',
            f'libvirt: server {gone} is active, its guest on gpu3 is not running',
            f'files: server {gone} has no directory on gpu3',
            f'Placement: server {gone} is on gpu3 and holds nothing',
        ]
    )


def test_an_old_end_and_what_is_wrong_hide_nothing(sound: Sound) -> None:
    """Each domain and each server is looked at, whatever the one before was."""
    unknown, another = uuid('unknown'), uuid('another')
    nowhere(sound)
    sound.views['gpu1']['domains'] = [{'uuid': one, 'state': 1, 'hostdevs': []} for one in (unknown, MOVED, another)]
    sound.site.placement.client.delete_allocations(SERVER)
    sound.site.placement.client.delete_allocations(MOVED)
    assert sorted(sound.look().disagreements) == sorted(
        [
            f'libvirt: gpu1 has domain {unknown}, which is not a server of this host',
            f'libvirt: gpu1 has domain {another}, which is not a server of this host',
            f'Placement: server {MOVED} is on gpu2 and holds nothing',
        ]
    )


def test_a_domain_whose_devices_are_not_known_hides_no_other(sound: Sound) -> None:
    """No migration context says which devices the source of a move on the same host has."""
    sound.write(migrations.migrations, migrations.migrations.c.uuid == MOVE, source_compute='gpu2')
    sound.forget_context()
    sound.server(host='gpu2')
    sound.views['gpu1']['domains'].clear()
    sound.views['gpu2']['domains'].append({'uuid': SERVER, 'state': 1, 'hostdevs': [FREE]})
    sound.views['gpu2']['domains'].append({'uuid': MOVED, 'state': 1, 'hostdevs': []})
    lines = [line for line in sound.look().disagreements if line.startswith('libvirt: domain')]
    assert lines == [f'libvirt: domain {SERVER} on gpu2 has devices {[FREE]}, its rows say []']


def test_what_is_under_way_is_listed(sound: Sound) -> None:
    sound.operation('reboot')
    sound.server(task_state='rebooting')
    with sound.site.api.write() as conn:
        operations.insert(conn, [operations.OperationRow.new(sound.site.ctxt, 'boot', uuid('new'))])
    assert sorted(sound.look().in_flight) == sorted([f'boot of {uuid("new")}', f'reboot of {SERVER}'])


def test_a_create_that_waits_is_fine(sound: Sound) -> None:
    build_request(sound)
    unmapped(sound)
    with sound.site.api.write() as conn:
        operations.insert(conn, [operations.OperationRow.new(sound.site.ctxt, 'boot', SERVER)])
    # Whatever else its cell has of it.
    sound.site.placement.client.delete_allocations(SERVER)
    assert sound.look().disagreements == []


def test_what_agrees_a_moment_later_is_no_disagreement(sound: Sound) -> None:
    domain(sound, 'gpu1').update(state=5)
    sound.between = lambda: domain(sound, 'gpu1').update(state=1)
    report = sound.look()
    assert report.disagreements == [] and report.in_flight == [] and len(sound.pauses) == 1


def test_what_changes_at_each_look_is_not_judged(sound: Sound) -> None:
    """Its row was another at the look before: both times it may have been right."""
    domain(sound, 'gpu1').update(state=5)
    line = f'libvirt: server {SERVER} is active, its guest on gpu1 is not running'
    moments = [datetime.datetime(2026, 1, day) for day in (1, 2, 3, 4)]

    def touch() -> None:
        sound.server(updated_at=moments.pop())

    sound.between = touch
    report = sound.look()
    assert report.disagreements == [] and report.in_flight == [f'changed during each check: {line}']
    assert sound.pauses == [audit.PAUSE] * (audit.LOOKS - 1)


def test_what_rests_in_the_end_is_judged(sound: Sound) -> None:
    domain(sound, 'gpu1').update(state=5)
    looks = []

    def touch() -> None:
        if not looks:
            sound.server(updated_at=datetime.datetime(2026, 1, 1))
        looks.append(1)

    sound.between = touch
    report = sound.look()
    assert len(report.disagreements) == 1 and report.in_flight == [] and len(looks) == 2


@pytest.mark.parametrize(
    ('touched', 'judged'),
    [
        (
            lambda sound, when: sound.write(
                ComputeNode.__table__, ComputeNode.__table__.c.host == 'gpu1', updated_at=when
            ),
            False,
        ),
        (lambda sound, when: sound.devices('gpu1', FREE, updated_at=when), True),
    ],
)
def test_a_line_goes_by_the_rows_that_it_names(sound: Sound, touched: Any, judged: bool) -> None:
    """What a host offers is in its row, which changes all the time: other lines don't wait for it."""
    sound.devices('gpu1', FREE, status='removed')
    days = [1, 2, 3, 4]
    sound.between = lambda: touched(sound, datetime.datetime(2026, 1, days.pop()))
    assert bool(sound.look().disagreements) is judged


def test_hosts_that_do_not_answer(sound: Sound) -> None:
    """What they show isn't judged; that they were silent stays, though they answer later."""

    def answer(sent: Any) -> Any:
        if sent.server == 'gpu1' and not sound.pauses:
            raise Unanswered(who='gpu1', reason='x')
        return sound.views[sent.server]

    sound.views['gpu1']['domains'].clear()
    sound.views['gpu2']['directories'].remove(MOVED)
    sound.site.answers['describe_host'] = answer
    report = sound.look()
    assert report.silent == ['gpu1: gpu1 does not answer: x'] and report.exit_code == 2
    # It was found while the other was silent.
    assert report.disagreements == [f'files: server {MOVED} has no directory on gpu2']


def test_a_host_that_falls_silent_is_named_once(sound: Sound) -> None:
    domain(sound, 'gpu1').update(state=5)

    def answer(sent: Any) -> Any:
        if sent.server == 'gpu2':
            raise Unanswered(who='gpu2', reason=str(len(sound.pauses)))
        return sound.views[sent.server]

    sound.site.answers['describe_host'] = answer
    report = sound.look()
    assert report.silent == ['gpu2: gpu2 does not answer: 0'] and report.exit_code == 2
    assert len(report.disagreements) == 1


def test_hosts_that_are_down_are_not_asked(sound: Sound) -> None:
    sound.site.silence('gpu3')
    report = sound.look(down_time=60)
    assert report.silent == ['gpu3: its nova-compute service is down, so it was not asked']
    assert sorted(sent.server or '' for sent in sound.site.sent) == ['gpu1', 'gpu2']
    sound.site.sent.clear()
    assert sound.look().silent == [] and len(sound.site.sent) == 3


def test_without_hosts_rows_and_placement_are_compared(sound: Sound) -> None:
    sound.views.clear()
    sound.server(task_state='rebooting')
    report = sound.look(compute=False)
    assert report.silent == [] and sound.site.sent == []
    assert report.disagreements == [f'database: server {SERVER} is rebooting and no operation works on it']


def test_vfs_are_counted_on_their_pf(sound: Sound) -> None:
    sound.devices('gpu1', ADDRESS, address='0000:0a:00.1', dev_type='type-VF', parent_addr=ADDRESS.upper())
    domain(sound, 'gpu1').update(hostdevs=['0000:0a:00.1'])
    assert sound.look().disagreements == []
    sound.devices('gpu1', '0000:0a:00.1', dev_type='type-PCI')
    assert sound.look().disagreements == [f'Placement: server {SERVER} holds devices {[ADDRESS]}, its rows say []']


def test_a_move_on_one_host(sound: Sound) -> None:
    """The devices of its two ends are told apart by the context; without one nothing is said of them."""
    table = migrations.migrations
    sound.write(table, table.c.uuid == MOVE, source_compute='gpu2', source_node='node2')
    sound.devices('gpu1', OTHER, status='removed', instance_uuid=None)
    sound.views['gpu1']['directories'].remove(f'{MOVED}_resize')
    sound.devices('gpu2', FREE, status='allocated', instance_uuid=MOVED)
    with sound.site.cell.write() as conn:
        (node,) = compute_nodes.by_host(conn, 'gpu2')
        compute_nodes.update(conn, node['id'], {'pci_stats': None})
        context = objects.MigrationContext(
            instance_uuid=MOVED,
            migration_id=1,
            new_numa_topology=None,
            old_numa_topology=None,
            old_pci_devices=objects.PciDeviceList(objects=[objects.PciDevice(address=FREE, request_id=None)]),
            new_pci_devices=objects.PciDeviceList(objects=[objects.PciDevice(address=OTHER, request_id=None)]),
        )
        instances.update_extra(conn, MOVED, {'migration_context': context.to_json()})
    sound.hold(MOVE, 'gpu2', FREE, 1)
    assert sound.look().disagreements == []
    sound.hold(MOVE, 'gpu2', None, 1)
    assert sound.look().disagreements == [f'Placement: move {MOVE} holds devices [], its rows say {[FREE]}']
    with sound.site.cell.write() as conn:
        instances.update_extra(conn, MOVED, {'migration_context': None})
    domain(sound, 'gpu2').update(hostdevs=[])
    assert sound.look().disagreements == [
        f'database: server {MOVED} has no migration context, its move {MOVE} waits to be confirmed'
    ]
