"""Parts of moves: what the destination compares with its claim, and what a host knows of a move."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.compute.ops import live_migration, move, resize, volumes
from tests.unit.compute.cell import requests

SERVER = 'a0000000-0000-4000-8000-000000000000'
MOVE: Any = SimpleNamespace(id=7, uuid='this move', source_compute='gpu1')
PLACE = objects.InstanceNUMATopology(cells=[])


@pytest.mark.parametrize('claimed', [PLACE, None])
@pytest.mark.parametrize('wanted', [{'numa_topology': PLACE}, {'numa_topology': None}, {}])
def test_a_guest_does_not_start_on_cpus_that_the_host_does_not_count(claimed: Any, wanted: dict[str, Any]) -> None:
    """The destination has claimed a place on NUMA cells if and only if the request asks for one."""
    instance = objects.Instance(uuid=SERVER)
    tracker = SimpleNamespace(topology=lambda uuid, side: claimed if (uuid, side) == (SERVER, 'migration-7') else 1 / 0)
    op: Any = SimpleNamespace(instance=instance, host=SimpleNamespace(tracker=tracker))
    agrees = (claimed is None) == (wanted.get('numa_topology') is None)
    with (
        contextlib.nullcontext()
        if agrees
        else pytest.raises(errors.KilonovaError, match=f'claim of instance {SERVER} on the NUMA cells')
    ):
        move.take_place(op, MOVE, objects.RequestSpec(**wanted))
    assert instance.numa_topology is claimed


@pytest.mark.parametrize(
    ('context', 'moves', 'over'),
    [
        (None, [], True),
        (None, ['another'], True),
        (None, ['another', 'this move'], False),
        (None, ['this move'], False),
        (7, [], False),
        (6, [], True),
        (6, ['this move'], False),
    ],
)
def test_a_move_is_over_once_neither_its_server_nor_its_host_has_it(
    monkeypatch: pytest.MonkeyPatch, context: int | None, moves: list[str], over: bool
) -> None:
    """A late undo does nothing then: the server may have been evacuated to another host."""
    monkeypatch.setattr(move.records, 'moves', lambda *args: [SimpleNamespace(uuid=uuid) for uuid in moves])
    instance = objects.Instance(
        migration_context=objects.MigrationContext(migration_id=context) if context is not None else None
    )
    host = SimpleNamespace(name='gpu1', tracker=SimpleNamespace(nodename='gpu1'))
    op: Any = SimpleNamespace(ctxt=None, host=host)
    assert move.is_over(op, instance, MOVE) is over


@pytest.mark.parametrize('given', [{}, {'pci_requests': None}, {'pci_requests': requests(SERVER, 0)}])
def test_the_devices_of_a_server_without_requests_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(move.records, 'devices_of', lambda ctxt, uuid: [1 / 0])
    host = SimpleNamespace(name='gpu2', tracker=SimpleNamespace())
    op: Any = SimpleNamespace(ctxt=None, host=host, instance=objects.Instance(uuid=SERVER, **given))
    assert move.devices_before(op, MOVE) == []


def test_the_devices_of_the_source_are_those_of_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination may have claimed devices already."""
    held = [objects.PciDevice(compute_node_id=number, address=f'0000:0{number}:00.0') for number in (1, 2)]
    monkeypatch.setattr(move.records, 'devices_of', lambda ctxt, uuid: held)
    host = SimpleNamespace(name='gpu2', tracker=SimpleNamespace(node=SimpleNamespace(id=2)))
    op: Any = SimpleNamespace(
        ctxt=None, host=host, instance=objects.Instance(uuid=SERVER, pci_requests=requests(SERVER, 1))
    )
    assert move.devices_before(op, MOVE) == held[:1]


# -- live migration ----------------------------------------------------------------------------------------------------
def gpu(address: str, product_id: str = '13f1') -> objects.PciDevice:
    return objects.PciDevice(
        address=address, vendor_id='10de', product_id=product_id, dev_type='type-PCI', extra_info={}, parent_addr=None
    )


def test_each_device_of_the_guest_is_replaced_by_one_like_it() -> None:
    before = [gpu('0000:01:00.0'), gpu('0000:02:00.0', '20b5'), gpu('0000:03:00.0')]
    here = [gpu('0000:0a:00.0', '20b5'), gpu('0000:0b:00.0'), gpu('0000:0c:00.0')]
    assert live_migration._counterparts(before, here) == {
        '0000:01:00.0': '0000:0b:00.0',
        '0000:02:00.0': '0000:0a:00.0',
        '0000:03:00.0': '0000:0c:00.0',
    }


@pytest.mark.parametrize(
    ('here', 'why'),
    [
        ([], r'this host claimed no device like 0000:01:00.0 of the source \(.*13f1'),
        ([gpu('0000:0a:00.0', '20b5')], r'this host claimed no device like 0000:01:00.0 of the source \(.*13f1'),
        ([gpu('0000:0a:00.0'), gpu('0000:0b:00.0')], 'claimed 0000:0b:00.0, but the guest has no such device'),
    ],
)
def test_a_destination_with_other_devices_is_refused(here: list[objects.PciDevice], why: str) -> None:
    """The guest goes on at the source."""
    with pytest.raises(errors.MigrationPreCheckError, match=why):
        live_migration._counterparts([gpu('0000:01:00.0')], here)


@pytest.mark.parametrize(
    ('dest', 'is_there', 'gone', 'arrived', 'here'),
    [
        ('gpu1', True, True, False, True),
        ('gpu1', True, None, True, True),
        ('gpu1', True, None, False, False),
        ('gpu2', True, True, True, False),
        ('gpu1', False, True, True, False),
    ],
)
def test_a_guest_stays_at_the_destination_only_if_it_arrived_there_and_its_server_exists(
    monkeypatch: pytest.MonkeyPatch, dest: str, is_there: bool, gone: bool | None, arrived: bool, here: bool
) -> None:
    """``gone``: whether the guest has left the source, None if that is not known."""
    monkeypatch.setattr(live_migration.records, 'instance', lambda ctxt, uuid: object() if is_there else None)
    live = SimpleNamespace(has_arrived=lambda instance: arrived)
    host = SimpleNamespace(name='gpu1', driver=SimpleNamespace(live_migrations=live))
    op: Any = SimpleNamespace(ctxt=None, host=host, instance=objects.Instance(uuid=SERVER))
    migration: Any = SimpleNamespace(dest_compute=dest)
    assert live_migration._is_here(op, migration, gone) is here


def test_the_source_does_not_stop_a_guest_that_it_can_copy_nowhere() -> None:
    order: Any = SimpleNamespace(migration=MOVE, disk=None)
    op: Any = SimpleNamespace(host=None, instance=None, begin=lambda event: None)
    with pytest.raises(errors.ResizeError, match='where to copy the disk to'):
        resize.resize_instance(op, order)


def test_a_volume_that_the_server_does_not_have_is_named() -> None:
    op: Any = SimpleNamespace(instance=SimpleNamespace(uuid=SERVER, volumes=[SimpleNamespace(volume_id='v1')]))
    assert volumes.volume_of(op, 'v1').volume_id == 'v1' and volumes.find_volume(op, 'v2') is None
    with pytest.raises(errors.Invalid, match=f'Volume v2 is not among the volumes of server {SERVER}'):
        volumes.volume_of(op, 'v2')
