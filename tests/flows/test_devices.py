"""Each operation with each kind of device: the table of docs/admin/gpu-passthrough.md, cell by cell.

A cell says how the server ends and which devices it has then: 'ACTIVE: same'. What its tests come to is one of
the cell's, and the cell has no other. Whatever the end: as many devices as the server has are allocated in Placement,
its guest's XML has those of its host, and the audit finds nothing. A port that is a function of a device names the one
that the server has there. Servers without a device are in test_ports_and_volumes.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_utils.uuidutils import is_uuid_like

from kilonova.conductor import flows
from tests.fixtures.cloud import ALIAS, PROJECT, SPEC, Cloud, Templates
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.hosts import pci_device, sriov_gpu, sriov_nic
from tests.fixtures.mdev import mdev_bus, mdev_card
from tests.fixtures.neutron import FakeNeutron
from tests.flows.cases import CASES, ELSEWHERE, GPUS, WAITING, Case, Subjects, bring_back, check, clear, dies_at
from tests.flows.cells import FULL, WITHOUT_SERVER, Shared, fail, has_guest, loses, read_table

# What a server has: one (two after a resize) of a kind; how its flavor asks for so many.
ASKED: dict[str, Callable[[int], dict[str, str]]] = {
    'PCI device': lambda number: {'pci_passthrough:alias': f'QuadroM4000-video:{number}'},
    'VF': lambda number: {'pci_passthrough:alias': f'vf:{number}'},
    'vGPU': lambda number: {'resources:VGPU': str(number)},
    'group': lambda number: {'pci_passthrough:alias': f'with-audio:{number}'},
    'accelerator': lambda number: {'accel:device_profile': f'fpga{number}'},
    'mediated accelerator': lambda number: {'accel:device_profile': f'part{number}'},
    # The server's one port asks for it, before and after a resize.
    'SR-IOV port': lambda number: {},
}
# Kinds that only these operations tell from others: a mediated device of Cyborg's is else as its functions are.
ONLY = {'mediated accelerator': ('live-migrate',)}
# Flows that ask Cyborg and Neutron: of these each step and each moment is tried with accelerators, and with a port.
ASK_OTHERS = ('boot', 'resize', 'confirm', 'revert', 'live_migrate', 'evacuate', 'shelve_offload', 'unshelve', 'delete')
WAYS = ('works', 'a step fails', 'the host dies')
# What is asked again and comes to what works.
LOST = 'a reply is lost'
VFS = {'gpu1': [f'0000:3b:00.{number}' for number in (4, 5)], 'gpu2': [f'0000:5e:00.{number}' for number in (4, 5)]}
# Network cards with two virtual functions each.
NICS = {'gpu1': [f'0000:d1:00.{number}' for number in (2, 3)], 'gpu2': [f'0000:d2:00.{number}' for number in (2, 3)]}
CARD = '0000:84:00.0'
# Two GPUs with their audio functions.
GROUPS = {host: [f'0000:{bus}:00.{function}' for bus in ('c1', 'c2') for function in (0, 1)] for host in GPUS}
# A card that Cyborg gives away in parts, of a type that no host offers by itself.
PARTED, PART_TYPE = '0000:85:00.0', 'nvidia-36'
FPGAS = {'gpu1': ['0000:21:00.0', '0000:22:00.0'], 'gpu2': ['0000:a1:00.0', '0000:a2:00.0']}
REFUSED = 'refused (400)'


def kinds_of(name: str) -> list[str]:
    """The kinds of devices that an operation is tried with."""
    return [device for device in ASKED if name in ONLY.get(device, (name,))]


TABLE = read_table('gpu-passthrough.md', WAYS, kinds_of)
CELLS = [(name, device) for name in CASES if name not in WITHOUT_SERVER for device in kinds_of(name)]


def test_each_operation_has_a_row_for_each_kind_of_device() -> None:
    """And each kind of flow is one of the operations."""
    assert set(TABLE) == set(CELLS)
    assert {CASES[name].kind for name in CASES} | ELSEWHERE == set(flows.FLOWS)


def make_cloud(directories: pytest.TempPathFactory, templates: Templates) -> Any:
    """It has ``of``: {kind of device: (a flavor, the flavor of a resize)}."""
    known = {'vendor_id': '10de', 'product_id': '2330', 'live_migratable': True}
    groups = {'group': 'with-audio', 'group_by': 'slot', 'group_size': 2}
    nic = '{"vendor_id": "8086", "physical_network": "physnet1"}'
    specs = {
        host: [
            SPEC,
            nic,
            *(json.dumps({**known, 'address': vf}) for vf in vfs),
            *(json.dumps({**groups, 'address': address}) for address in GROUPS[host]),
        ]
        for host, vfs in VFS.items()
    }
    alias = {**known, 'name': 'vf', 'device_type': 'type-VF'}
    cyborg, neutron = FakeCyborg(), FakeNeutron(hosts=GPUS)
    for name, resource_class in (('fpga', 'FPGA'), ('part', 'PGPU')):
        cyborg.profiles.update((f'{name}{number}', [{f'resources:{resource_class}': str(number)}]) for number in (1, 2))
    cloud: Any = Cloud(
        directories.mktemp('devices'),
        templates,
        GPUS,
        specs=specs,
        devices={
            host: [
                *sriov_gpu(vfs[0][:-1] + '0', vfs),
                mdev_card(CARD, {'nvidia-35': 4}),
                mdev_card(PARTED, {PART_TYPE: 2}),
                *sriov_nic(NICS[host][0][:-1] + '0', NICS[host]),
                *(pci_device(address, product='26b9') for address in GROUPS[host]),
                *(pci_device(card, '10ee', '5020', '0x120000') for card in FPGAS[host]),
            ]
            for host, vfs in VFS.items()
        },
        reclaim_instance_interval=3600,
        pci__alias=[ALIAS, json.dumps(alias), json.dumps({'name': 'with-audio', 'group': 'with-audio'})],
        devices__enabled_mdev_types=['nvidia-35'],
        cyborg=cyborg,
        neutron=neutron,
    )
    neutron.users[f'admin:{PROJECT}'] = PROJECT
    cloud.port = neutron.add_port(
        neutron.add_network('wire', PROJECT, cidr='10.3.0.0/24', **{'provider:physical_network': 'physnet1'}),
        PROJECT,
        **{'binding:vnic_type': 'direct'},
    )
    for host, cards in FPGAS.items():
        cyborg.offer(cloud.placement, host, f'{host}_fpga', 'FPGA', [('PCI', card) for card in cards])
        cyborg.offer(cloud.placement, host, f'{host}_parts', 'PGPU', [('MDEV', PARTED, PART_TYPE)] * 2)
    cloud.of = {
        device: (cloud.flavor(**asked(1)), cloud.flavor(ram=1024, **asked(2))) for device, asked in ASKED.items()
    }
    return cloud


@pytest.fixture(scope='module')
def shared(tmp_path_factory: pytest.TempPathFactory, cloud_templates: Templates) -> Iterator[Shared]:
    holder = Shared(lambda: make_cloud(tmp_path_factory, cloud_templates))
    with mdev_bus():
        yield holder
        holder.stop()


@pytest.fixture
def ground(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty cloud; afterwards it is empty again."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 2.0)
    cloud = shared.get()
    shared.cloud = None
    yield cloud
    cloud.on_message = None
    clear(cloud)
    assert (cloud.cyborg.requests, cloud.cyborg.held(), list(cloud.neutron.ports)) == ({}, [], [cloud.port])
    port = cloud.neutron.ports[cloud.port]
    assert (port['device_id'], port['binding:host_id'], port['binding:profile']) == ('', '', {})
    shared.cloud = cloud


def is_cyborgs(device: str) -> bool:
    """Whether devices of this kind are Cyborg's to give."""
    return device.endswith('accelerator')


def owned_by(cloud: Cloud, server: str, device: str) -> list[str]:
    """The devices of the one server that there is: 'host address'."""
    if not is_cyborgs(device):
        assert cloud.cyborg.requests == {}
        return cloud.owned(server)
    assert cloud.owned(server) == []
    found: list[str] = cloud.cyborg.given()
    assert len(found) == len(cloud.cyborg.requests)
    return found


def held(cloud: Cloud) -> int:
    """How many devices are allocated in Placement, of all consumers."""
    return sum(
        amount
        for providers in cloud.placement.allocations().values()
        for classes in providers.values()
        for name, amount in classes.items()
        if name in ('VGPU', 'FPGA', 'PGPU') or name.startswith('CUSTOM_PCI_')
    )


def named(cloud: Any) -> str:
    """The device that the port names which is one: 'host address'."""
    port = cloud.neutron.ports[cloud.port]
    return f'{port["binding:host_id"]} {port["binding:profile"].get("pci_slot")}'


def end(cloud: Any, case: Case, server: str, before: list[str], device: str, was_named: str) -> str:
    """What a server came to: 'STATUS: devices'. Fails where its devices, its allocation and its guest differ.
    ``was_named``: the device that its port named before."""
    status, owned = case.status(cloud, server), owned_by(cloud, server, device)
    number = len(owned) // 2 if device == 'group' else len(owned)
    assert held(cloud) == (0 if device == 'SR-IOV port' else number), (cloud.placement.allocations(), owned)
    if device in ('vGPU', 'mediated accelerator'):
        assert all(is_uuid_like(name.split()[1]) for name in owned)
    else:
        wanted = {'PCI device': GPUS, 'VF': VFS, 'group': GROUPS, 'accelerator': FPGAS, 'SR-IOV port': NICS}.get(
            device, {}
        )
        assert set(owned) <= {f'{host} {address}' for host, found in wanted.items() for address in found}
    host = None if status in ('GONE', 'HELD') else cloud.host_of(server)
    if host is not None and has_guest(cloud, server, status):
        has = cloud.hostdevs(server, kind='interface' if device == 'SR-IOV port' else 'hostdev')
        assert has == [name.split()[1] for name in owned if name.startswith(f'{host} ')]
    assert [port['device_id'] for port in cloud.neutron.ports.values()] == [
        server if device == 'SR-IOV port' and status not in ('GONE', 'ERROR') else ''
    ]
    if device == 'SR-IOV port' and host is not None:
        assert named(cloud) in owned and named(cloud).startswith(f'{host} ')
        assert cloud.neutron.ports[cloud.port]['binding:vif_type'] == 'hw_veb'
    if not owned:
        return f'{status}: none'
    if owned == before:
        return f'{status}: same'
    if not set(before) & set(owned):
        return f'{status}: chosen'
    if set(before) < set(owned):
        return f'{status}: old and new'
    # Of a server that was resized from one to two.
    assert set(owned) < set(before)
    is_old = owned != [was_named] if device == 'SR-IOV port' else number == 1
    return f'{status}: {"old" if is_old else "new"}'


def is_tried_whole(name: str, device: str) -> bool:
    """Each step and each moment (of a variant, see ``stride``) with VFs, accelerators and ports where such come and go;
    one of each with the others: of PCI devices the other files here have all. Where devices stay what they are, with
    VFs in make test-cells alone."""
    if CASES[name].kind in ASK_OTHERS:
        return device in ('VF', 'SR-IOV port') or is_cyborgs(device)
    return FULL and device == 'VF'


def tried(cloud: Any, monkeypatch: pytest.MonkeyPatch, name: str, device: str, way: str) -> set[str]:
    """All that an operation comes to."""
    case = CASES[name]
    cloud.small, cloud.large = cloud.of[device]
    cloud.interfaces = [{'port': cloud.port}] if device == 'SR-IOV port' else 'none'
    cloud.placed = cloud.small
    found, subjects = set[str](), Subjects(cloud, case)
    steps, everything = len(flows.FLOWS[case.kind].steps), is_tried_whole(name, device)
    number, more = WHOLE.index(device) % stride(name, way) if everything and device in WHOLE else 0, True
    if way == 'a step fails':
        number = min(number, steps - 1) if everything else steps - 1
    while more:
        server = subjects.next()
        before, was_named = owned_by(cloud, server, device) if server else [], named(cloud)
        with monkeypatch.context() as patch:
            if way == 'a step fails':
                fail(patch, case, number)
            death = dies_at(cloud, number) if way == 'the host dies' else None
            lost = loses(cloud, number) if way == LOST else None
            if REFUSED in wanted(name, device, way):
                with pytest.raises(AssertionError, match='"code": 400'):
                    case.act(cloud, server)
                assert server and end(cloud, case, server, before, device, was_named) == f'{case.bad}: same'
                return {REFUSED}
            server = case.act(cloud, server)
            cloud.settle(kinds_left=WAITING if death else ())
        cloud.on_message = None
        if death and death.gone:
            bring_back(cloud, death.gone)
        if device == 'SR-IOV port' and case.kind == 'live_migrate' and server:
            # libvirt's test driver gives nothing to a guest that runs.
            cloud.action(server, 'reboot', {'type': 'HARD'})
        check(cloud, case, server, *case.ends)
        found.add(end(cloud, case, server, before, device, was_named))
        subjects.end(kept=death is None)
        reached = (death and death.gone) or (lost and len(lost) > number)
        number += stride(name, way)
        more = number < steps if way == 'a step fails' else bool(everything and reached)
    return found


# The kinds that such flows are tried whole with.
WHOLE = ('VF', 'accelerator', 'SR-IOV port')


def stride(name: str, way: str) -> int:
    """Flows that several kinds are tried whole with are disturbed at each third place, at others with each kind: at
    each place with one of them. A step fails with each kind, where it isn't a variant."""
    if FULL or CASES[name].kind not in ASK_OTHERS or (way == 'a step fails' and not CASES[name].variant):
        return 1
    return len(WHOLE)


def wanted(name: str, device: str, way: str) -> set[str]:
    """What an operation may come to."""
    return TABLE[name, device]['works' if way == LOST else way]


def ways_of(name: str, device: str) -> list[str]:
    """In which ways a cell is tried: all where it is tried whole. Else it works with each kind, and each other way is
    tried with one of them, with another one from operation to operation."""
    first, *others = *WAYS, LOST
    if FULL or is_tried_whole(name, device):
        return [first, *others]
    kinds = [kind for kind in kinds_of(name) if not is_tried_whole(name, kind)]
    turn = kinds.index(device) + list(CASES).index(name)
    return [
        first,
        *(way for number, way in enumerate(others) if (turn + number * len(kinds) // len(others)) % len(kinds) == 0),
    ]


@pytest.mark.parametrize(
    ('name', 'device', 'way'), [(name, device, way) for name, device in CELLS for way in ways_of(name, device)]
)
def test_what_it_comes_to(ground: Any, monkeypatch: pytest.MonkeyPatch, name: str, device: str, way: str) -> None:
    """Each cell: works; each step fails once; the host dies before each thing that it tells of a step, and is back
    later; each reply is lost once."""
    expected = wanted(name, device, way)
    found = tried(ground, monkeypatch, name, device, way)
    if way != 'works' and (stride(name, way) > 1 or not is_tried_whole(name, device)):
        assert found and found <= expected
    else:
        assert found == expected
