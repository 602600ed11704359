"""Devices that are not offered: what Placement is told of them, and what it gets back."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from kilonova import errors
from kilonova.pci.device import RESERVED_BEFORE
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS, Cloud
from tests.unit.compute.test_service import Placement, report


@pytest.fixture
def manager(cloud: Cloud) -> Any:
    cloud.placement = Placement()
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    manager.node.update()
    return manager


def before(manager: Any, address: str) -> str | None:
    """The amount that was reserved before Kilonova reserved more, as the device's row keeps it."""
    found: str | None = manager.host.tracker.host_devices.entries[address].device.extra_info.get(RESERVED_BEFORE)
    return found


@pytest.mark.parametrize(
    ('there', 'kept'),
    [
        ({}, '0'),
        ({'CUSTOM_GPU': {'reserved': 1}}, '1'),
        ({'CUSTOM_GPU': {'reserved': 0}, 'CUSTOM_BOARD': {'reserved': 2}}, '2'),
        ({'CUSTOM_GPU': {'reserved': 2}, 'CUSTOM_BOARD': {'reserved': 0}}, '2'),
    ],
)
def test_what_an_operator_reserved_is_kept_while_a_device_is_disabled(
    cloud: Cloud, manager: Any, there: dict[str, Any], kept: str
) -> None:
    """The highest amount of all classes, so that no device is offered that the operator keeps."""
    cloud.placement.inventory = there
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason='repairs')
    assert [before(manager, address) for address in GPUS] == [kept, None]
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason=None)
    assert [before(manager, address) for address in GPUS] == [None, None]


def offer(manager: Any, **tags: str) -> None:
    """Report the devices to Placement with further tags of ``[pci]device_spec``."""
    spec = {'vendor_id': '10de', 'product_id': '13f1', **tags}
    manager.conf.set_override('device_spec', [json.dumps(spec)], group='pci')
    report(manager)
    manager.node.update()


def terminate(cloud: Cloud, manager: Any, uuid: str) -> None:
    sent = cloud.cell.in_task(uuid, 'deleting')
    manager.endpoint.terminate_instance(new_context(), instance=sent, key='d/0.terminate/1')


@pytest.mark.parametrize(
    ('tags', 'disabled', 'told'),
    [
        ({}, None, []),
        ({}, 'repairs', [('allocated', {GPUS[0]: 1, GPUS[1]: None}, True)]),
        ({'one_time_use': 'true'}, None, [('allocated', {GPUS[0]: 1, GPUS[1]: None}, True)]),
        ({'one_time_use': 'true'}, 'repairs', [('allocated', {GPUS[0]: 1, GPUS[1]: None}, True)] * 2),
    ],
)
def test_a_device_that_is_not_to_be_offered_is_reserved_before_its_server_frees_it(
    cloud: Cloud,
    manager: Any,
    monkeypatch: pytest.MonkeyPatch,
    tags: dict[str, str],
    disabled: str | None,
    told: list[Any],
) -> None:
    """Check the order: without a reservation, Placement offers the device once the server's allocation is deleted."""
    offer(manager, **tags)
    server = cloud.boot(manager)
    if disabled is not None:
        manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason=disabled)
    sync, seen = cloud.placement.sync_compute, []

    def watched(*args: Any, **given: Any) -> Any:
        reserved = {name.removeprefix('gpu1_'): one['reserved'] for name, one in args[4].items()}
        seen.append((*cloud.cell.held(server.uuid).values(), reserved, given['refresh']))
        return sync(*args, **given)

    monkeypatch.setattr(cloud.placement, 'sync_compute', watched)
    terminate(cloud, manager, server.uuid)
    assert seen == told and cloud.cell.held(server.uuid) == {}
    assert before(manager, GPUS[0]) == ('0' if disabled else None)


def test_a_device_of_one_claim_of_several_is_reserved_before_it_is_freed_if_it_is_detached(
    cloud: Cloud, manager: Any
) -> None:
    offer(manager, one_time_use='true')
    server = cloud.boot(manager)
    (request,) = server.pci_requests.requests
    cloud.placement.synced.clear()
    manager.host.tracker.plan_less(server.uuid, 'another request')
    assert cloud.placement.synced == []
    manager.host.tracker.plan_less(server.uuid, request.request_id)
    assert [one['reserved'] for one in cloud.placement.synced[-1][4].values()] == [1, None]


def test_a_device_is_freed_and_stays_barred_while_placement_does_not_answer(
    cloud: Cloud, manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = cloud.boot(manager)
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason='repairs')
    cloud.placement.silent = 1
    with caplog.at_level(logging.WARNING):
        terminate(cloud, manager, server.uuid)
    assert cloud.cell.held(server.uuid) == {} and manager.host.tracker.host_devices.pools.free == 1
    assert f'Could not update reserved inventory of PCI devices {GPUS[0]} in Placement' in caplog.text
    assert before(manager, GPUS[0]) == '0', 'the next update reserves it'


def test_a_reason_that_devices_get_when_they_leave_is_written_before_they_are_free(cloud: Cloud, manager: Any) -> None:
    left: list[Any] = []

    def leave(addresses: Any) -> dict[str, dict[str, str | None]]:
        left.append((sorted(addresses), cloud.cell.held(server.uuid)))
        return {address: {'unhealthy': 'not clean'} for address in addresses}

    server, manager.node.book.leave = cloud.boot(manager), leave
    terminate(cloud, manager, server.uuid)
    assert left == [(GPUS[:1], {GPUS[0]: 'allocated'})]
    assert cloud.cell.held(server.uuid) == {} and manager.host.tracker.host_devices.pools.free == 1
    (row,) = [row for row in cloud.cell.devices.values() if row['address'] == GPUS[0]]
    assert json.loads(row['extra_info'])['unhealthy'] == 'not clean' and before(manager, GPUS[0]) == '0'
    assert [one['reserved'] for one in cloud.placement.synced[-1][4].values()] == [1, None]


def test_a_device_that_the_host_does_not_have_is_not_disabled(manager: Any) -> None:
    with pytest.raises(errors.NotFound, match=r'^gpu1 has no device 0000:ff:00\.0'):
        manager.endpoint.set_device_disabled(new_context(), address='0000:ff:00.0', reason='repairs')


def test_what_is_disabled_is_answered_with_its_server(cloud: Cloud, manager: Any) -> None:
    server = cloud.boot(manager)
    answers = [
        manager.endpoint.set_device_disabled(new_context(), address=address, reason='repairs') for address in GPUS
    ]
    assert answers == [
        [{'address': GPUS[0], 'status': 'allocated', 'instance_uuid': server.uuid}],
        [{'address': GPUS[1], 'status': 'unavailable', 'instance_uuid': None}],
    ]


def test_a_device_is_disabled_at_once_while_placement_does_not_answer(
    cloud: Cloud, manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.placement.silent, (node,) = 1, cloud.cell.nodes.values()
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason='repairs')
    assert manager.host.tracker.host_devices.pools.free == 1 and before(manager, GPUS[0]) == '0'
    pools = json.loads(node['pci_stats'])['nova_object.data']['objects']
    assert sum(pool['nova_object.data']['count'] for pool in pools) == 1
    assert f'Could not update reserved inventory of PCI devices {GPUS[0]} in Placement' in caplog.text
    manager.node.update()
    assert [one['reserved'] for one in cloud.placement.synced[-1][4].values()] == [1, None]


@pytest.mark.parametrize(('row', 'sent'), [('there', True), ('unreadable', False), ('deleted', False)])
def test_the_user_of_a_device_that_becomes_unavailable_is_notified(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, row: str, sent: bool
) -> None:
    server, told = cloud.boot(manager), list[Any]()
    monkeypatch.setattr(
        manager.host.notify, 'later', lambda ctxt, event, read: told.append((event, read)), raising=False
    )
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[1], reason='nobody has it')
    assert told == []
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason='repairs')
    ((event, read),) = told
    if row == 'unreadable':
        cloud.cell.extras[server.uuid]['flavor'] = '{'
    elif row == 'deleted':
        del cloud.cell.instances[server.uuid]
    facts = read()
    assert event == 'instance.device_barred' and (facts is not None) == sent
    if sent:
        assert sorted(facts) == ['fault', 'instance'] and facts['instance'].uuid == server.uuid
        assert isinstance(facts['fault'], errors.DeviceBarred)
        assert f'Device {GPUS[0]} is disabled: repairs' in str(facts['fault'])
    assert ('The notification instance.device_barred is not sent' in caplog.text) == (row == 'unreadable')


@pytest.mark.parametrize('known', [True, False])
def test_an_allocation_ratio_that_is_not_set_is_read_from_placement(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def get_inventory(uuid: str) -> Any:
        assert uuid == manager.node.record.uuid
        if not known:
            raise errors.NotFound('no such provider')
        return {'VCPU': {'allocation_ratio': 3.0}}, 1

    monkeypatch.setattr(cloud.placement, 'get_inventory', get_inventory)
    default = manager.conf.initial_cpu_allocation_ratio
    assert manager.node.book.inventory()['VCPU']['allocation_ratio'] == (3.0 if known else default)
    manager.conf.set_override('cpu_allocation_ratio', 5.0)
    assert manager.node.book.inventory()['VCPU']['allocation_ratio'] == 5.0
