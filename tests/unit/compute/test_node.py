"""What a host counts when its service starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.compute.tracker import RUN, claim_key
from tests.unit.compute.cell import requests
from tests.unit.compute.cloud import GPUS, Cloud, build
from tests.unit.compute.test_device_inventory import offer
from tests.unit.compute.test_service import Placement, report


def test_a_move_whose_server_can_not_be_read_does_not_keep_another_from_being_counted(cloud: Cloud) -> None:
    source, dest = cloud.host('gpu2'), cloud.host('gpu1')
    servers = [cloud.boot(source, 0) for _ in range(3)]
    moves: list[Any] = [
        cloud.cell.new_migration(server.uuid, source, dest_compute='gpu1', dest_node='gpu1', status='migrating')
        for server in servers
    ]
    cloud.cell.extras[servers[1].uuid]['flavor'] = '{'
    dest = cloud.host('gpu1')
    sides = [dest.host.tracker.sides(server.uuid) for server in servers]
    assert sides == [{claim_key(moves[0])}, set(), {claim_key(moves[2])}]


def test_a_server_that_is_about_to_be_resized_on_its_own_host_is_counted_once(cloud: Cloud) -> None:
    """It has no migration context yet."""
    host = cloud.host('gpu1', GPUS)
    server = cloud.boot(host)
    cloud.cell.new_migration(server.uuid, host, dest_compute='gpu1', dest_node='gpu1')
    host = cloud.host('gpu1')
    tracker = host.host.tracker
    assert tracker.sides(server.uuid) == {RUN} and tracker.used.vcpus == 8
    assert [device.address for device in tracker.devices(server.uuid)] == list(cloud.cell.held(server.uuid))


def test_servers_whose_devices_placement_chose_do_not_keep_another_from_its_repair(cloud: Cloud) -> None:
    cloud.placement = Placement()
    gpus = [*GPUS, '0000:90:00.0']
    host = cloud.host('gpu1', gpus)
    report(host)
    host.node.update()
    uuids = []
    for address in (gpus[0], None, gpus[2]):
        uuid = cloud.cell.new_instance(1).uuid
        if address is not None:
            chosen = requests(uuid, 1, rp_uuids=f'rp-{address}')
            cloud.cell.extras[uuid]['pci_requests'] = chosen.to_column()
        build(host, cloud.cell.instance(uuid), key=f'boot-{uuid}/3.build/1')
        uuids.append(uuid)
    cloud.placement.allocated[uuids[1]] = {host.node.record.uuid: {'resources': {'VCPU': 8}, 'generation': 9}}
    host.node.update()
    assert [claimed[0] for claimed in cloud.placement.claimed] == [uuids[1]]


@pytest.fixture
def compared(cloud: Cloud) -> Any:
    """Return a server with a device that is missing in the server's allocations in Placement."""
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.placement = Placement()
    manager = cloud.host('gpu1')
    report(manager)
    cloud.placement.allocated[server.uuid] = {manager.node.record.uuid: {'resources': {'VCPU': 8}, 'generation': 9}}
    return server.uuid


def told(caplog: pytest.LogCaptureFixture, uuid: str) -> list[tuple[str, str]]:
    """Return (level, reason) of each log line about devices that allocations lack."""
    mark = f'PCI devices {GPUS[0]} of server {uuid} may be missing in its Placement allocations, and were not added: '
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text.removeprefix(mark)) for level, text in found if text.startswith(mark)]


def test_allocations_that_placement_refuses_are_tried_again_and_told_once(
    cloud: Cloud, compared: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, placement, claim = cloud.managers['gpu1'], cloud.placement, cloud.placement.claim

    def refuse(*args: Any, **given: Any) -> None:
        raise errors.PlacementConflict(detail='no room')

    monkeypatch.setattr(placement, 'claim', refuse)
    with caplog.at_level(logging.DEBUG):
        manager.node.update()
        manager.node.update()
    refused = 'Placement refused the change: no room'
    assert told(caplog, compared) == [('WARNING', refused), ('DEBUG', refused)]
    monkeypatch.setattr(placement, 'claim', claim)
    manager.node.update()
    manager.node.update()
    assert [one[0] for one in placement.claimed] == [compared] and placement.read == [compared] * 3


def test_allocations_of_a_server_that_has_none_on_its_host_stay(
    cloud: Cloud, compared: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager, placement = cloud.managers['gpu1'], cloud.placement
    placement.allocated[compared] = {'another': {'resources': {'VCPU': 8}, 'generation': 9}}
    with caplog.at_level(logging.DEBUG):
        manager.node.update()
        manager.node.update()
    reason = 'the server has no other allocation on this host'
    assert told(caplog, compared) == [('WARNING', reason), ('DEBUG', reason)]
    assert placement.claimed == [] and placement.read == [compared] * 2


def test_allocations_that_are_right_are_compared_once(cloud: Cloud, compared: str) -> None:
    manager, placement = cloud.managers['gpu1'], cloud.placement
    placement.allocated[compared][f'rp-{GPUS[0]}'] = {'resources': {'CUSTOM_PCI_10DE_13F1': 1}, 'generation': 1}
    for _ in range(3):
        manager.node.update()
    assert placement.claimed == [] and placement.read == [compared]


def test_a_one_time_use_device_is_not_reserved_while_it_is_added_to_allocations(
    cloud: Cloud, compared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set reserved to 0 for the claim only, because Placement accepts no allocation of a reserved device."""
    manager, placement, seen = cloud.managers['gpu1'], cloud.placement, list[Any]()
    there = {'CUSTOM_PCI_10DE_13F1': {'total': 1, 'reserved': 1, 'max_unit': 1}}
    monkeypatch.setattr(placement, 'get_inventory', lambda uuid: (there if uuid.startswith('rp-') else {}, 7))
    monkeypatch.setattr(placement, 'set_inventory', lambda *args: seen.append(args), raising=False)
    sync, claim = placement.sync_compute, placement.claim

    def synced(*args: Any, **given: Any) -> Any:
        seen.append([one['reserved'] for one in args[4].values()])
        return sync(*args, **given)

    def claimed(*args: Any, **given: Any) -> None:
        seen.append('claim')
        claim(*args, **given)

    monkeypatch.setattr(placement, 'sync_compute', synced)
    monkeypatch.setattr(placement, 'claim', claimed)
    offer(manager, one_time_use='true')
    free = {'CUSTOM_PCI_10DE_13F1': {'total': 1, 'reserved': 0, 'max_unit': 1}}
    assert seen == [[1, None], (f'rp-{GPUS[0]}', 7, free), 'claim', [1, None]]


def test_the_sockets_of_a_host_are_known_when_its_guests_are_started(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look before the guests are started, because the NUMA policy 'socket' chooses devices by the sockets."""
    cells = [objects.NUMACell(id=number, socket=number // 2) for number in range(4)]
    cloud.host('gpu1', GPUS)
    driver, look = cloud.drivers['gpu1'], cloud.drivers['gpu1'].host.get_available_resource
    topology = objects.NUMATopology(cells=cells).to_json()
    monkeypatch.setattr(driver.host, 'get_available_resource', lambda: {**look(), 'numa_topology': topology})
    seen: list[Any] = []
    monkeypatch.setattr(
        'kilonova.compute.guests.HostGuests.boot',
        lambda guests: seen.append(cloud.managers['gpu1'].host.tracker.host_devices.pools.sockets),
    )
    cloud.host('gpu1')
    assert seen == [{0: 0, 1: 0, 2: 1, 3: 1}]
