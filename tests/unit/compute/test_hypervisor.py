"""Tests of what the hypervisor reports by itself: guests that change their state, and the loss of its connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute import hypervisor
from kilonova.compute.keys import RunningTask
from kilonova.compute.operation import HostTask
from kilonova.states import PowerState
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS, Cloud
from tests.unit.compute.test_service import Placement

LOST = 'Connection to libvirt lost: 1'
AUTO = f'AUTO: {LOST}'


def until(met: Callable[[], Any]) -> None:
    """The assertion of tests that end with it: it fails where that never comes."""
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, 'SETTLE', 0.02)
    monkeypatch.setattr(hypervisor, 'ORDER_LOOK', 0.02)
    monkeypatch.setattr(hypervisor, 'BUSY_LOOKS', (0.02,) * 500)


def by_itself(cloud: Cloud, uuid: str, state: PowerState) -> None:
    """The guest changed, and its hypervisor says so."""
    driver = cloud.drivers['gpu1']
    driver.domains[uuid].state = int(state)
    assert driver.listener is not None
    driver.listener.guest_changed(uuid)


def order(cloud: Cloud, manager: Any, name: str, uuid: str, task_state: str, **given: Any) -> None:
    """One that a conductor sends."""
    cloud.cell.instances[uuid]['task_state'] = task_state
    getattr(manager.endpoint, name)(new_context(), instance=cloud.cell.instance(uuid), **given, key=f'{name}/1.do/1')


def idle(manager: Any) -> None:
    until(lambda: not manager.hypervisor._looking and not manager.hypervisor._telling)


# -- guests ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('state', 'vm_state'),
    [(PowerState.SHUTDOWN, 'stopped'), (PowerState.CRASHED, 'stopped'), (PowerState.PAUSED, 'active')],
)
def test_a_guest_that_changes_is_known_at_once(cloud: Cloud, manager: Any, state: PowerState, vm_state: str) -> None:
    """A guest that changes its power state is recorded at once, not by the next periodic check (600 s by default)."""
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    by_itself(cloud, row['uuid'], state)
    until(lambda: row['power_state'] == state)
    assert (row['vm_state'], row['task_state']) == (vm_state, None)
    if state == PowerState.PAUSED:
        by_itself(cloud, row['uuid'], PowerState.RUNNING)
        until(lambda: row['power_state'] == PowerState.RUNNING)


def test_a_stopped_guest_that_somebody_starts_is_stopped_again(cloud: Cloud, manager: Any) -> None:
    server = cloud.boot(manager)
    order(cloud, manager, 'stop_instance', server.uuid, 'powering-off', clean_shutdown=True)
    by_itself(cloud, server.uuid, PowerState.RUNNING)
    until(lambda: cloud.drivers['gpu1'].domains[server.uuid].state == PowerState.SHUTDOWN)
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'stopped'


def test_orders_of_this_host_ask_the_conductor_nothing_more(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What we do to a guest is told, too; each operation has a budget of messages."""
    driver, seen = cloud.drivers['gpu1'], []

    def told(part: Any, name: str) -> Any:
        act = getattr(part, name)

        def told_act(*args: Any, **kwargs: Any) -> Any:
            result = act(*args, **kwargs)
            instance = next(arg for arg in args if hasattr(arg, 'uuid'))
            seen.append(name)
            driver.listener.guest_changed(instance.uuid)
            return result

        return told_act

    for part, name in (
        (driver.guests, 'spawn'),
        (driver.power, 'power_off'),
        (driver.power, 'power_on'),
        (driver.guests, 'destroy'),
    ):
        monkeypatch.setattr(part, name, told(part, name))
    cloud.cell.object_calls.clear()
    server = cloud.boot(manager)
    idle(manager)
    order(cloud, manager, 'stop_instance', server.uuid, 'powering-off', clean_shutdown=True)
    driver.listener.guest_changed(server.uuid)
    order(cloud, manager, 'start_instance', server.uuid, 'powering-on')
    driver.listener.guest_changed(server.uuid)
    idle(manager)
    calls = list(cloud.cell.object_calls)
    order(cloud, manager, 'terminate_instance', server.uuid, 'deleting')
    idle(manager)
    assert seen == ['spawn', 'power_off', 'power_on', 'destroy']
    assert calls == [] and 'InstanceList.get_uuids_with_operations' not in cloud.cell.object_calls


def test_a_guest_that_dies_during_an_order_is_seen_after_it(cloud: Cloud, manager: Any) -> None:
    server = cloud.boot(manager)
    with manager.host.locks.hold(server.uuid):
        by_itself(cloud, server.uuid, PowerState.CRASHED)
        time.sleep(0.1)
        assert cloud.cell.instances[server.uuid]['vm_state'] == 'active'
    until(lambda: cloud.cell.instances[server.uuid]['vm_state'] == 'stopped')


def test_an_order_that_takes_long_holds_up_no_other_guest(cloud: Cloud, manager: Any) -> None:
    one, two = (cloud.boot(manager, 0).uuid for _ in range(2))
    with manager.host.locks.hold(one):
        by_itself(cloud, one, PowerState.CRASHED)
        time.sleep(0.1)
        by_itself(cloud, two, PowerState.CRASHED)
        until(lambda: cloud.cell.instances[two]['vm_state'] == 'stopped')
        assert cloud.cell.instances[one]['vm_state'] == 'active'


def test_a_guest_that_waits_for_its_operation_holds_up_no_other(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, 'BUSY_LOOKS', (600.0,))
    one, two = (cloud.boot(manager, 0).uuid for _ in range(2))
    cloud.cell.occupy(one)
    by_itself(cloud, one, PowerState.CRASHED)
    until(lambda: manager.hypervisor._looks.get(one) and manager.hypervisor._looks[one].tries == 1)
    by_itself(cloud, two, PowerState.CRASHED)
    until(lambda: cloud.cell.instances[two]['vm_state'] == 'stopped')
    assert cloud.cell.instances[one]['vm_state'] == 'active'


def test_a_look_that_fails_holds_up_no_other(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (cloud.boot(manager, 0).uuid for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(cloud.drivers['gpu1'].guests, 'get_info', lambda instance: 1 // 0)
        by_itself(cloud, one, PowerState.CRASHED)
        until(lambda: 'Could not compare the state of the guest with the state of its server' in caplog.text)
    by_itself(cloud, two, PowerState.CRASHED)
    until(lambda: cloud.cell.instances[two]['vm_state'] == 'stopped')
    assert cloud.cell.instances[one]['vm_state'] == 'active'


def test_a_guest_that_an_order_stops_on_its_way_is_left_to_its_operation(cloud: Cloud, manager: Any) -> None:
    """A resize's source: nothing is written of the guest's state, and the conductor isn't asked."""
    server = cloud.boot(manager)
    idle(manager)
    cloud.cell.object_calls.clear()
    with HostTask(manager.host, RunningTask('o/1.stop/1'), new_context(), server).exclusive():
        by_itself(cloud, server.uuid, PowerState.SHUTDOWN)
    idle(manager)
    assert cloud.cell.object_calls == [] and cloud.cell.instances[server.uuid]['vm_state'] == 'active'


def test_what_comes_right_after_an_order_is_seen(cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypervisor, 'SETTLE', 0.3)
    server = cloud.boot(manager)
    with HostTask(manager.host, RunningTask('o/1.start/1'), new_context(), server).exclusive():
        by_itself(cloud, server.uuid, PowerState.RUNNING)
    by_itself(cloud, server.uuid, PowerState.SHUTDOWN)
    until(lambda: cloud.cell.instances[server.uuid]['vm_state'] == 'stopped')


def test_a_server_in_error_stays_as_it_is(cloud: Cloud, manager: Any) -> None:
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    row['vm_state'] = 'error'
    by_itself(cloud, row['uuid'], PowerState.SHUTDOWN)
    idle(manager)
    assert (row['vm_state'], row['power_state']) == ('error', PowerState.RUNNING)


@pytest.mark.parametrize('why', ['an operation', 'a task'])
def test_a_server_that_something_works_on_is_left_alone_until_it_is_over(cloud: Cloud, manager: Any, why: str) -> None:
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    if why == 'an operation':
        cloud.cell.occupy(row['uuid'])
    else:
        row['task_state'] = 'resize_prep'
    cloud.cell.object_calls.clear()
    by_itself(cloud, row['uuid'], PowerState.SHUTDOWN)
    until(lambda: len(cloud.cell.object_calls) > 4)
    assert row['vm_state'] == 'active'
    cloud.cell.leave()
    row['task_state'] = None
    until(lambda: row['vm_state'] == 'stopped')


def test_a_burst_is_one_look_a_guest(cloud: Cloud, manager: Any) -> None:
    servers = [cloud.boot(manager, 0).uuid for _ in range(3)]
    cloud.cell.object_calls.clear()
    for _ in range(200):
        for uuid in servers:
            by_itself(cloud, uuid, PowerState.SHUTDOWN)
    until(lambda: all(cloud.cell.instances[uuid]['vm_state'] == 'stopped' for uuid in servers))
    idle(manager)
    assert cloud.cell.object_calls.count('Instance.get_by_uuid') == 3


def test_guests_of_others_are_nobodys(cloud: Cloud, manager: Any) -> None:
    cloud.cell.object_calls.clear()
    cloud.drivers['gpu1'].listener.guest_changed('8d9c0000-0000-4000-8000-000000000000')
    idle(manager)
    assert cloud.cell.object_calls == []


def test_a_silent_conductor_is_asked_again(cloud: Cloud, manager: Any) -> None:
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    cloud.cell.unanswered['InstanceList.get_uuids_with_operations'] = 3
    by_itself(cloud, row['uuid'], PowerState.SHUTDOWN)
    until(lambda: row['vm_state'] == 'stopped')
    assert cloud.cell.unanswered['InstanceList.get_uuids_with_operations'] == 0


# -- the hypervisor ----------------------------------------------------------------------------------------------------
@pytest.fixture
def service(cloud: Cloud) -> Any:
    cloud.placement = Placement()
    cloud.host('gpu1')
    return cloud.cell.services['gpu1']


def shown(service: Any) -> tuple[bool, str | None]:
    return service['disabled'], service['disabled_reason']


def test_a_host_without_hypervisor_is_disabled_until_it_is_back(cloud: Cloud, service: Any) -> None:
    """A host that lost its hypervisor is disabled, also in Placement, and is enabled when the hypervisor is back."""
    manager, uuid = cloud.managers['gpu1'], cloud.managers['gpu1'].node.record.uuid
    manager.hypervisor.hypervisor_lost(LOST)
    until(lambda: cloud.placement.disabled == {uuid: True})
    assert shown(service) == (True, AUTO)
    manager.hypervisor.hypervisor_back()
    until(lambda: cloud.placement.disabled == {uuid: False})
    assert shown(service) == (False, None)


@pytest.mark.parametrize('when', ['before', 'meanwhile'])
@pytest.mark.parametrize('reason', ['repairs', None])
def test_what_an_administrator_disabled_stays_disabled(
    cloud: Cloud, service: Any, when: str, reason: str | None
) -> None:
    manager = cloud.managers['gpu1']
    if when == 'meanwhile':
        manager.hypervisor.hypervisor_lost(LOST)
        idle(manager)
    service.update(disabled=True, disabled_reason=reason)
    manager.endpoint.set_host_enabled(new_context(), enabled=False)
    if when == 'before':
        manager.hypervisor.hypervisor_lost(LOST)
        idle(manager)
    assert shown(service) == (True, reason)
    manager.hypervisor.hypervisor_back()
    idle(manager)
    assert shown(service) == (True, reason) and list(cloud.placement.disabled.values()) == [True]


def test_enabling_a_host_without_hypervisor_does_not_last(cloud: Cloud, service: Any) -> None:
    manager = cloud.managers['gpu1']
    manager.hypervisor.hypervisor_lost(LOST)
    idle(manager)
    service.update(disabled=False, disabled_reason=None)
    manager.endpoint.set_host_enabled(new_context(), enabled=True)
    idle(manager)
    assert shown(service) == (True, AUTO) and list(cloud.placement.disabled.values()) == [True]


def test_it_is_told_when_the_conductor_is_there_again(cloud: Cloud, service: Any) -> None:
    cloud.cell.unanswered['Service.get_by_args'] = 3
    cloud.managers['gpu1'].hypervisor.hypervisor_lost(LOST)
    until(lambda: shown(service) == (True, AUTO))
    assert cloud.cell.unanswered['Service.get_by_args'] == 0


def test_a_host_that_an_earlier_process_disabled_is_enabled(cloud: Cloud, service: Any) -> None:
    service.update(disabled=True, disabled_reason=AUTO)
    cloud.host('gpu1')
    until(lambda: shown(service) == (False, None))


def test_guests_that_changed_unheard_are_looked_at_when_it_is_back(cloud: Cloud, manager: Any) -> None:
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    cloud.drivers['gpu1'].domains[row['uuid']].state = int(PowerState.SHUTDOWN)
    manager.hypervisor.hypervisor_back()
    until(lambda: row['vm_state'] == 'stopped')
    assert row['power_state'] == PowerState.SHUTDOWN


def test_a_compute_waits_for_its_hypervisor(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    """A compute whose hypervisor is away logs this and waits for it instead of ending."""
    manager = cloud.host('gpu1', GPUS)
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    away = HypervisorUnavailable(host='gpu1', reason='no libvirtd')
    driver = cloud.drivers['gpu1']
    driver.fail('init_host', away, times=2)
    driver.fail('get_available_resource', away)
    driver.fail('describe', away)
    with caplog.at_level(logging.WARNING):
        cloud.host('gpu1')
    assert caplog.text.count('Not started yet: Connection to the hypervisor is broken on host gpu1: no libvirtd') == 4
    assert row['vm_state'] == 'active'


def test_a_guest_is_not_given_up_for_a_hypervisor_that_is_away(cloud: Cloud, manager: Any) -> None:
    row = cloud.cell.instances[cloud.boot(manager).uuid]
    cloud.drivers['gpu1'].fail('power_on', HypervisorUnavailable(host='gpu1', reason='no libvirtd'))
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert row['vm_state'] == 'active' and cloud.drivers['gpu1'].domains[row['uuid']].state == PowerState.RUNNING


def test_a_heartbeat_asks_the_hypervisor_nothing(cloud: Cloud, manager: Any) -> None:
    """A heartbeat calls nothing of the driver, so a hypervisor that hangs does not make its host count as down."""
    driver = cloud.drivers['gpu1']
    driver.calls.clear()
    manager.heartbeat.beat()
    assert driver.calls == [] and not manager.heartbeat.lost


def test_timers_take_its_absence_for_what_it_is(cloud: Cloud, manager: Any, caplog: pytest.LogCaptureFixture) -> None:
    cloud.drivers['gpu1'].fail('get_available_resource', HypervisorUnavailable(host='gpu1', reason='no libvirtd'))
    manager.timers._run(manager.node.update, 'update_available_resource')
    (record,) = [record for record in caplog.records if 'update_available_resource' in record.message]
    assert record.levelno == logging.WARNING and record.exc_info is None
    assert isinstance(HypervisorUnavailable(host='x', reason='y'), errors.Unavailable)


def test_a_guest_whose_operation_never_ends_is_looked_at_less_and_less(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, 'BUSY_LOOKS', (1, 2, 5))
    look = hypervisor._PendingCheck(0.0, 0, False)
    assert [manager.hypervisor._later(look) for _ in range(5)] == [1, 2, 5, None, None]


def test_what_cannot_be_told_yet_is_tried_with_growing_pauses(
    cloud: Cloud, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, pauses = cloud.managers['gpu1'].hypervisor, []

    class Stopping:
        @staticmethod
        def is_set() -> bool:
            return False

        @staticmethod
        def wait(seconds: float) -> bool:
            pauses.append(seconds)
            return False

    monkeypatch.setattr(told, '_stopping', Stopping)
    monkeypatch.setattr(told, '_pauses', (1.0, 2.0, 4.0))
    cloud.cell.unanswered['Service.get_by_args'] = 5
    told.hypervisor_lost(LOST)
    until(lambda: shown(service) == (True, AUTO) and not told._telling)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_service_record_that_is_gone_ends_the_telling(cloud: Cloud, service: Any) -> None:
    manager = cloud.managers['gpu1']
    del cloud.cell.services['gpu1']
    manager.hypervisor.hypervisor_lost(LOST)
    idle(manager)
    assert shown(service) == (False, None)


def test_notifications_say_that_a_host_was_disabled(
    cloud: Cloud, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, told = cloud.managers['gpu1'], []

    class Notify:
        @staticmethod
        def emit(ctxt: Any, event: str, **facts: Any) -> None:
            told.append((event, facts['service'].disabled, facts['service'].disabled_reason))

    monkeypatch.setattr(manager.host, 'notify', Notify)
    for _ in range(2):
        manager.hypervisor.hypervisor_lost(LOST)
        idle(manager)
    manager.hypervisor.hypervisor_back()
    idle(manager)
    assert told == [('service.update', True, AUTO), ('service.update', False, None)]


@pytest.mark.parametrize(('interval', 'looks'), [(600, 1), (0, 1), (-1, 0)])
def test_guests_are_looked_at_once_it_is_back_unless_that_is_off(
    cloud: Cloud, service: Any, interval: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, seen = cloud.managers['gpu1'], []
    manager.conf.set_override('sync_power_state_interval', interval)
    monkeypatch.setattr(manager.guests, 'sync', lambda: seen.append(1))
    manager.hypervisor.hypervisor_lost(LOST)
    idle(manager)
    assert seen == []
    manager.hypervisor.hypervisor_back()
    idle(manager)
    assert len(seen) == looks


@pytest.mark.parametrize('reason', ['repairs', None])
def test_nobody_is_told_that_a_host_is_enabled_which_an_administrator_disabled(
    cloud: Cloud, service: Any, monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    manager, told = cloud.managers['gpu1'], []
    monkeypatch.setattr(manager.host, 'notify', SimpleNamespace(emit=lambda *args, **facts: told.append(facts)))
    service.update(disabled=True, disabled_reason=reason)
    manager.hypervisor.hypervisor_lost(LOST)
    idle(manager)
    manager.hypervisor.hypervisor_back()
    idle(manager)
    assert told == [] and shown(service) == (True, reason)


def test_guests_are_looked_at_though_the_record_could_not_be_written_at_first(
    cloud: Cloud, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, seen = cloud.managers['gpu1'], []
    monkeypatch.setattr(manager.guests, 'sync', lambda: seen.append(1))
    cloud.cell.unanswered['Service.get_by_args'] = 2
    manager.hypervisor.hypervisor_back()
    idle(manager)
    assert seen == [1]


def test_a_change_before_an_order_is_seen_though_the_order_changes_the_guest_as_well(
    cloud: Cloud, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin the order before the first comparison, and send the second message during this comparison."""
    server, asked = cloud.boot(manager), list[str]()
    manager.host.upcalls.power_states.clear()

    def is_held(uuid: str) -> bool:
        asked.append(uuid)
        if len(asked) == 2:
            manager.hypervisor.guest_changed(uuid)
            return True
        return len(asked) == 3

    monkeypatch.setattr(manager.host.locks, 'is_held', is_held)
    by_itself(cloud, server.uuid, PowerState.CRASHED)
    idle(manager)
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'stopped'
