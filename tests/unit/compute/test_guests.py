"""Guests of servers that were in an operation when their host's service started."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.rpc.interface import VersionCapError
from kilonova.states import PowerState
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.compute.cloud import GPUS, Cloud


@pytest.fixture
def interrupted(cloud: Cloud) -> Any:
    """A server that runs by its row and has no guest. Its operation has ended after the service had started."""
    server = cloud.boot(cloud.host('gpu1', GPUS))
    cloud.cell.occupy(server.uuid)
    cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    assert server.uuid not in cloud.drivers['gpu1'].domains
    cloud.cell.leave()
    return server


def test_its_guest_is_started(cloud: Cloud, interrupted: Any) -> None:
    manager = cloud.managers['gpu1']
    manager.guests.look_again()
    assert cloud.drivers['gpu1'].domains[interrupted.uuid].state == PowerState.RUNNING
    assert cloud.cell.waiting == {} and manager.host.interrupted == set()


def test_a_guest_that_can_not_be_started_is_tried_again_later(cloud: Cloud, interrupted: Any) -> None:
    manager = cloud.managers['gpu1']
    cloud.drivers['gpu1'].fail('power_on', errors.DevicesFailed(addresses=GPUS[:1], reason='no reset'))
    manager.guests.look_again()
    assert list(cloud.cell.waiting) == [interrupted.uuid] and 'no reset' in cloud.cell.waiting[interrupted.uuid]
    assert manager.host.interrupted == set()


def test_a_guest_whose_server_is_still_in_its_operation_is_left_alone(cloud: Cloud, interrupted: Any) -> None:
    manager = cloud.managers['gpu1']
    cloud.cell.occupy(interrupted.uuid)
    manager.guests.look_again()
    assert interrupted.uuid not in cloud.drivers['gpu1'].domains
    assert manager.host.interrupted == {interrupted.uuid}


def test_a_guest_whose_server_is_on_another_host_now_is_not_started(cloud: Cloud, interrupted: Any) -> None:
    manager = cloud.managers['gpu1']
    cloud.cell.instances[interrupted.uuid]['host'] = 'gpu2'
    manager.guests.look_again()
    assert interrupted.uuid not in cloud.drivers['gpu1'].domains and manager.host.interrupted == set()


def unreadable(cloud: Cloud, uuid: str) -> None:
    cloud.cell.extras[uuid]['flavor'] = '{'


def test_a_server_whose_row_can_not_be_read_keeps_no_other_guest_from_its_start(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    manager = cloud.host('gpu1', GPUS)
    broken, whole = sorted((cloud.boot(manager, 0) for _ in range(2)), key=lambda server: server.uuid)
    for server in (broken, whole):
        cloud.cell.occupy(server.uuid)
    manager = cloud.reboot('gpu1', resume_guests_state_on_host_boot=True)
    cloud.cell.leave()
    unreadable(cloud, broken.uuid)
    manager.guests.look_again()
    assert list(cloud.drivers['gpu1'].domains) == [whole.uuid] and manager.host.interrupted == set()
    assert 'The guest of the server is not started, because the row of the server cannot be read' in caplog.text


def test_a_server_whose_row_can_not_be_read_keeps_no_other_from_being_compared(
    cloud: Cloud, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = cloud.host('gpu1', GPUS)
    broken, whole = (cloud.boot(manager, 0) for _ in range(2))
    cloud.drivers['gpu1'].domains.clear()
    one = manager.guests.sync_one
    assert one(whole.uuid)
    cloud.cell.instances[whole.uuid].update(vm_state='active', power_state=1)
    listed = [cloud.cell.instance(server.uuid) for server in (broken, whole)]
    unreadable(cloud, broken.uuid)
    monkeypatch.setattr('kilonova.compute.records.instances', lambda ctxt, host: listed)
    manager.guests.sync()
    assert [cloud.cell.instances[one.uuid]['vm_state'] for one in (broken, whole)] == ['active', 'stopped']
    assert 'The server is not compared with its guest, because the row of the server cannot be read' in caplog.text


@pytest.mark.parametrize('resumes', [True, False])
def test_servers_that_ran_wait_for_a_hypervisor_that_does_not_answer(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    manager, told = cloud.host('gpu1', resume_guests_state_on_host_boot=resumes), []
    ran, busy, off = (cloud.boot(manager, 0) for _ in range(3))
    cloud.cell.occupy(busy.uuid)
    cloud.cell.instances[off.uuid].update(vm_state='stopped', power_state=4)
    monkeypatch.setattr(
        cloud.cell, 'resume_later', lambda ctxt, host, reasons, is_off: told.append((host, reasons, is_off))
    )
    manager.guests.await_hypervisor(HypervisorUnavailable(host='gpu1', reason='no socket'))
    reason = str(HypervisorUnavailable(host='gpu1', reason='no socket'))
    assert told == ([('gpu1', {ran.uuid: reason}, False)] if resumes else [])


@pytest.mark.parametrize(
    ('change', 'vm_state'),
    [({}, 'stopped'), ({'host': 'gpu2'}, 'active'), ({'task_state': 'deleting'}, 'active'), (None, None)],
)
def test_conductors_of_the_release_before_get_only_servers_of_this_host_marked_as_off(
    cloud: Cloud, interrupted: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, str] | None, vm_state: str | None
) -> None:
    """Change the server while its guest fails to start: it leaves the host, begins an operation or is deleted."""
    manager = cloud.managers['gpu1']

    def resume_later(ctxt: Any, **given: Any) -> None:
        if change is None:
            del cloud.cell.instances[interrupted.uuid]
        elif change:
            cloud.cell.instances[interrupted.uuid].update(change)
        raise VersionCapError(version='3.5', cap='3.4')

    monkeypatch.setattr(cloud.cell, 'resume_later', resume_later)
    cloud.drivers['gpu1'].fail('power_on', OSError('no'))
    manager.guests.look_again()
    row = cloud.cell.instances.get(interrupted.uuid)
    assert (None if row is None else row['vm_state']) == vm_state
