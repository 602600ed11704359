"""Devices with which a guest could not be started: when they are checked again, and what a check comes to."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.pci.device import FAILED
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS

SERVER = 'a0000000-0000-4000-8000-000000000000'


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(manager: Any) -> Clock:
    made = manager.rest.clock = Clock()
    return made


def fail(manager: Any, *addresses: str, uuid: str = SERVER) -> None:
    """A guest of the server could not be started with these devices."""
    manager.host.devices_failed(new_context(), uuid, errors.DevicesFailed(addresses=addresses, reason='no reset'))


def failed(manager: Any) -> list[str]:
    entries = manager.host.tracker.host_devices.entries
    return [address for address in GPUS if FAILED in entries[address].device.extra_info]


def free(manager: Any) -> int:
    found: int = manager.host.tracker.host_devices.pools.free
    return found


def test_a_device_that_rests_does_not_keep_another_from_its_check(manager: Any, clock: Clock) -> None:
    first, rest = manager.conf.devices.failed_rest, manager.rest
    fail(manager, GPUS[0])
    clock.now += first
    fail(manager, *GPUS)
    assert failed(manager) == GPUS and free(manager) == 0
    clock.now += first
    rest.look()
    assert failed(manager) == GPUS[:1] and free(manager) == 1, 'the first one failed twice and rests twice as long'
    clock.now += first
    rest.look()
    assert failed(manager) == [] and free(manager) == 2


def test_a_device_that_never_failed_does_not_keep_another_from_its_check(manager: Any, clock: Clock) -> None:
    fail(manager, GPUS[1])
    clock.now += manager.conf.devices.failed_rest
    manager.rest.look()
    assert failed(manager) == []
