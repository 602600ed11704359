"""Devices with which a guest could not be started: when they are checked again, and what a check comes to."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.pci.device import FAILED, FAILED_TIMES
from kilonova.states import PowerState
from kilonova.virt.parts.host import MdevUnavailable
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS, Cloud

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


def why(manager: Any, address: str) -> str:
    found: str = manager.host.tracker.host_devices.entries[address].device.extra_info[FAILED]
    return found


def test_a_device_that_is_not_on_its_host_is_not_offered_again(cloud: Cloud, manager: Any, clock: Clock) -> None:
    fail(manager, GPUS[0])
    driver = cloud.drivers['gpu1']
    driver.pci_devices = [one for one in driver.pci_devices if one['address'] != GPUS[0]]
    clock.now += manager.conf.devices.failed_rest
    manager.rest.look()
    assert failed(manager) == GPUS[:1] and why(manager, GPUS[0]).startswith('its host no longer has it; failure 2')


def test_a_device_that_the_hypervisor_can_not_use_is_not_offered_again(
    cloud: Cloud, manager: Any, clock: Clock
) -> None:
    fail(manager, GPUS[0])
    cloud.drivers['gpu1'].unusable[GPUS[0]] = 'no driver'
    clock.now += manager.conf.devices.failed_rest
    manager.rest.look()
    assert failed(manager) == GPUS[:1] and why(manager, GPUS[0]).startswith('no driver; failure 2')


@pytest.mark.parametrize(
    ('error', 'text'),
    [
        (errors.DevicesFailed(addresses=GPUS[:1], reason='no reset'), 'no reset; failure 1'),
        (errors.DevicesMissing(addresses=GPUS[0], uuid=SERVER), 'its host no longer has it; failure 1'),
        (MdevUnavailable(uuid=GPUS[0], type='t', parent='p', reason='no room'), 'no room; failure 1'),
    ],
)
def test_the_reason_of_a_failure_is_kept_whichever_error_names_the_device(
    manager: Any, clock: Clock, error: Exception, text: str
) -> None:
    outer = errors.KilonovaError('the build failed')
    outer.__cause__ = error
    for _ in range(2):
        manager.host.devices_failed(new_context(), SERVER, outer)
    assert failed(manager) == GPUS[:1] and why(manager, GPUS[0]).startswith(text)


def test_an_error_that_is_its_own_cause_bars_none(manager: Any, clock: Clock) -> None:
    error, cause = errors.KilonovaError('no disk'), errors.KilonovaError('no room')
    error.__cause__, cause.__cause__ = cause, error
    manager.host.devices_failed(new_context(), SERVER, error)
    assert failed(manager) == []


def test_an_error_that_names_no_device_bars_none(manager: Any, clock: Clock) -> None:
    manager.host.devices_failed(new_context(), SERVER, errors.KilonovaError('no room on the disk'))
    fail(manager, '0000:ff:00.0')
    assert failed(manager) == []


def test_a_device_of_another_server_is_not_barred(cloud: Cloud, manager: Any, clock: Clock) -> None:
    server = cloud.boot(manager)
    (held,) = cloud.cell.held(server.uuid)
    fail(manager, *GPUS)
    assert failed(manager) == [address for address in GPUS if address != held]
    fail(manager, held, uuid=server.uuid)
    assert failed(manager) == GPUS


@pytest.mark.parametrize('state', [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_failures_are_forgotten_once_a_guest_runs_with_the_device(
    cloud: Cloud, manager: Any, clock: Clock, state: PowerState
) -> None:
    server = cloud.boot(manager)
    (held,) = cloud.cell.held(server.uuid)
    fail(manager, held, uuid=server.uuid)
    cloud.drivers['gpu1'].domains[server.uuid].state = int(state)
    manager.host.devices_used(new_context(), server.uuid)
    info = manager.host.tracker.host_devices.entries[held].device.extra_info
    assert (FAILED_TIMES in info, FAILED in info) == (state != PowerState.RUNNING,) * 2


def test_errors_while_failures_are_recorded_are_only_logged(
    cloud: Cloud, manager: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Raise nothing, because the caller is about to report another error or has succeeded."""
    server = cloud.boot(manager)
    (held,) = cloud.cell.held(server.uuid)
    fail(manager, *GPUS, uuid=server.uuid)
    clock.now += manager.conf.devices.failed_rest
    with monkeypatch.context() as patch:
        patch.setattr(manager.node.book, 'bar', lambda ctxt, reasons: 1 / 0)
        fail(manager, *GPUS, uuid=server.uuid)
        manager.host.devices_used(new_context(), server.uuid)
        manager.rest.look()
    assert [record.getMessage().partition(';')[0] for record in caplog.records if record.exc_info] == [
        f'Could not write the rows of failed devices {", ".join(GPUS)}',
        f'Could not clear the failure marks of devices {held}',
        *(f'Check of failed device {address} did not complete' for address in GPUS),
    ]
    assert failed(manager) == GPUS
    manager.rest.look()
    assert failed(manager) == []


def test_a_free_device_that_another_domain_has_is_not_offered_again(
    cloud: Cloud, manager: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(uuid: str, devices: Any) -> None:
        assert uuid == ''
        raise errors.DevicesFailed(addresses=GPUS[:1], reason='domain x has it')

    fail(manager, GPUS[0])
    clock.now += manager.conf.devices.failed_rest
    monkeypatch.setattr(manager.host.holders, 'check', check)
    manager.rest.look()
    assert why(manager, GPUS[0]).startswith('domain x has it; failure 2, checked again after 1970-01-01T00:')


def test_an_error_counts_once_however_often_it_is_passed_on(manager: Any, clock: Clock) -> None:
    error = errors.DevicesFailed(addresses=GPUS[:1], reason='no reset')
    for _ in range(2):
        manager.host.devices_failed(new_context(), SERVER, error)
        clock.now += manager.conf.devices.failed_rest
    assert why(manager, GPUS[0]).startswith('no reset; failure 1')


def test_a_device_that_failed_is_offered_at_once_if_it_is_not_to_rest(cloud: Cloud) -> None:
    manager = cloud.host('gpu1', GPUS, **{'devices.failed_rest': 0})
    fail(manager, *GPUS)
    assert failed(manager) == [] and free(manager) == 2
