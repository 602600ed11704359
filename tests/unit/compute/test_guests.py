"""Guests of servers that were in an operation when their host's service started."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
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
