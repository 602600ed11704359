"""Test the commands that clean and check devices: which can be run, their output, and which devices are offered."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute import device_health
from kilonova.compute.device_health import Program
from kilonova.objects import PciDevice
from kilonova.pci.device import DIRTY, DISABLED, UNHEALTHY
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS, Cloud, build, new_conf

GPU = PciDevice(address='0000:81:00.0', dev_type='type-VF')


def program(command: str) -> Program | None:
    conf = new_conf('gpu1')
    conf.set_override('health_check', command, group='devices')
    return Program.of(conf, 'health_check')


@pytest.mark.parametrize('command', ['', '  '])
def test_none(command):
    assert program(command) is None


@pytest.mark.parametrize(
    ('command', 'why'),
    [
        ("sh -c 'x", 'No closing quotation'),
        ('/nonexistent --now', 'program /nonexistent does not exist'),
        ('no-such-program', 'program no-such-program does not exist or is not executable'),
    ],
)
def test_a_command_that_cannot_be_run_ends_the_service_at_its_start(command, why):
    with pytest.raises(errors.Invalid, match=f'health_check = .*: {why}'):
        program(command)


@pytest.mark.parametrize(
    ('script', 'said'),
    [
        ('test "$1 $2" = "0000:81:00.0 vf"', None),
        ('exit 7', 'health_check ended with 7'),
        (
            "printf 'Xid 79:\\n\\tfell off \\033[1mthe bus' >&2; exit 1",
            'health_check ended with 1: Xid 79: fell off [1mthe bus',
        ),
        ('yes no | head -c 9000 >&2; exit 1', 'health_check ended with 1:' + ' no' * 76 + '…'),
    ],
)
def test_what_it_said(script, said):
    """One printable line of at most 255 characters."""
    made = program(f'sh -c {shlex.quote(script)} x')
    assert made is not None and made.failed(GPU, threading.Event()) == said


@pytest.mark.parametrize(('seconds', 'said'), [(30.0, None), (30.1, 'health_check did not end within 30 s')])
def test_a_command_is_ended_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, seconds: float, said: str | None
) -> None:
    now = [0.0]

    def watched(check: Callable[[], None], *argv: str) -> None:
        assert argv == ('true', '0000:81:00.0', 'vf')
        now[0] += seconds
        check()

    monkeypatch.setattr(device_health.time, 'monotonic', lambda: now[0])
    monkeypatch.setattr(device_health.command, 'watched', watched)
    made, stopping = program('true'), threading.Event()
    assert made is not None and made.failed(GPU, stopping) == said
    stopping.set()
    assert made.failed(GPU, stopping) == 'health_check did not end within 30 s'


# -- what becomes of the devices ---------------------------------------------------------------------------------------
class Commands:
    """Replace the commands and the threads that run them. A thread runs when it is joined, or in ``run``.

    ``ran`` has the option and the device of each command. ``said`` is {device: why its command fails, or an error}.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[str, str]] = []
        self.said: dict[str, str | Exception] = {}
        self._threads: list[Callable[[], None]] = []
        self._real = device_health.concurrency.spawn
        monkeypatch.setattr(device_health.concurrency, 'spawn', self._spawn)

    def _spawn(self, act: Callable[..., None], *args: Any, name: str) -> Any:
        if not name.startswith(('clean ', 'health of ')):
            return self._real(act, *args, name=name)
        begun: list[int] = []

        class Thread:
            @staticmethod
            def join() -> None:
                if not begun:
                    begun.append(1)
                    act(*args)

        self._threads.append(Thread.join)
        return Thread

    def run(self) -> list[tuple[str, str]]:
        """Run all threads, and return the commands that ran since the last call."""
        while self._threads:
            self._threads.pop(0)()
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(monkeypatch)

    def failed(self: Program, device: PciDevice, stopping: threading.Event) -> str | None:
        made.ran.append((self.option, device.address))
        said = made.said.get(device.address)
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(Program, 'failed', failed)
    return made


CLEANING, CHECKING = {'devices.clean_command': 'true'}, {'devices.health_check': 'true'}


def terminate(cloud: Cloud, uuid: str) -> None:
    sent = cloud.cell.in_task(uuid, 'deleting')
    cloud.managers['gpu1'].endpoint.terminate_instance(new_context(), instance=sent, key='d/0.terminate/1')


def why(cloud: Cloud, key: str) -> dict[str, str]:
    """Return {device that is not offered for this reason: its text in the device's row}."""
    found = {row['address']: json.loads(row['extra_info']) for row in cloud.cell.devices.values()}
    return {address: info[key] for address, info in found.items() if key in info}


def free(cloud: Cloud) -> int:
    found: int = cloud.managers['gpu1'].host.tracker.host_devices.pools.free
    return found


def test_a_device_is_offered_again_once_it_is_cleaned(cloud: Cloud, commands: Commands) -> None:
    manager = cloud.host('gpu1', GPUS, **CLEANING)
    server = cloud.boot(manager)
    assert commands.run() == [] and manager.care.has_commands
    terminate(cloud, server.uuid)
    assert (why(cloud, DIRTY), free(cloud), commands.ran) == ({GPUS[0]: 'it is not cleaned yet'}, 1, [])
    assert commands.run() == [('clean_command', GPUS[0])]
    assert (why(cloud, DIRTY), free(cloud)) == ({}, 2)


@pytest.mark.parametrize(
    ('said', 'reason', 'told'),
    [
        ('no reset', 'no reset', f'Cleaning of device {GPUS[0]} failed; it stays unavailable'),
        (ValueError('boom'), 'it is not cleaned yet', f'Cleaning of device {GPUS[0]} failed; it is retried'),
    ],
)
def test_a_cleaning_that_fails_is_tried_again_at_the_next_look(
    cloud: Cloud, commands: Commands, caplog: pytest.LogCaptureFixture, said: Any, reason: str, told: str
) -> None:
    manager = cloud.host('gpu1', GPUS, **CLEANING)
    server = cloud.boot(manager)
    commands.said[GPUS[0]] = said
    terminate(cloud, server.uuid)
    commands.run()
    assert (why(cloud, DIRTY), free(cloud)) == ({GPUS[0]: reason}, 1) and told in caplog.text
    commands.said.clear()
    manager.care.look()
    manager.care.look()
    assert commands.run() == [('clean_command', GPUS[0])], 'a device is cleaned once at a time'
    assert (why(cloud, DIRTY), free(cloud)) == ({}, 2)
    manager.care.look()
    assert commands.run() == []


def test_a_device_whose_cleaning_ends_with_the_service_is_cleaned_by_the_next_one(
    cloud: Cloud, commands: Commands
) -> None:
    manager = cloud.host('gpu1', GPUS, **CLEANING)
    server = cloud.boot(manager)
    terminate(cloud, server.uuid)
    manager.stopping.set()
    assert commands.run() == [('clean_command', GPUS[0])]
    assert why(cloud, DIRTY) == {GPUS[0]: 'it is not cleaned yet'}
    cloud.host('gpu1', **CLEANING)
    assert free(cloud) == 1
    assert commands.run() == [('clean_command', GPUS[0])]
    assert (why(cloud, DIRTY), free(cloud)) == ({}, 2)


def test_devices_are_offered_without_cleaning_once_the_command_is_no_longer_set(
    cloud: Cloud, commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    server = cloud.boot(cloud.host('gpu1', GPUS, **CLEANING))
    terminate(cloud, server.uuid)
    manager = cloud.host('gpu1')
    assert (why(cloud, DIRTY), free(cloud)) == ({}, 2) and not manager.care.has_commands
    assert f'clean_command is no longer set: offering devices {GPUS[0]} without cleaning them' in caplog.text


def test_only_free_devices_that_are_offered_are_checked(
    cloud: Cloud, commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = [*GPUS, '0000:90:00.0', '0000:98:00.0']
    manager = cloud.host('gpu1', gpus, **CHECKING)
    cloud.boot(manager)
    manager.endpoint.set_device_disabled(new_context(), address=gpus[1], reason='repairs')
    commands.run()
    commands.said[gpus[3]] = 'fell off the bus'
    manager.care.look()
    assert commands.run() == [('health_check', gpus[2]), ('health_check', gpus[3])]
    assert (why(cloud, UNHEALTHY), free(cloud)) == ({gpus[3]: 'fell off the bus'}, 1)
    assert why(cloud, DISABLED) == {gpus[1]: 'repairs'}
    assert f'Device {gpus[3]} is unhealthy and is not offered to servers: fell off the bus' in caplog.text


def test_a_build_is_refused_with_the_reason_of_each_unhealthy_device(cloud: Cloud, commands: Commands) -> None:
    manager = cloud.host('gpu1', GPUS, **CHECKING)
    commands.said = {GPUS[0]: 'too hot', GPUS[1]: 'too old'}
    told = rf'Device {GPUS[0]} is unhealthy: too hot; Device {GPUS[1]} is unhealthy: too old'
    with pytest.raises(errors.HostRejected, match=told):
        build(manager, cloud.cell.new_instance(2))
    assert commands.run() == [('health_check', address) for address in GPUS]
    assert (why(cloud, UNHEALTHY), free(cloud)) == (commands.said, 0)


def test_a_check_that_ends_with_the_service_says_nothing_about_the_device(cloud: Cloud, commands: Commands) -> None:
    manager = cloud.host('gpu1', GPUS, **CHECKING)
    commands.said[GPUS[0]] = 'it was killed'
    manager.stopping.set()
    manager.care.look()
    assert (why(cloud, UNHEALTHY), free(cloud)) == ({}, 2)


@pytest.mark.parametrize(('options', 'ran'), [({}, []), (CLEANING, []), (CHECKING, [('health_check', GPU.address)])])
def test_a_device_is_checked_if_a_command_is_set(
    cloud: Cloud, commands: Commands, options: dict[str, str], ran: list[Any]
) -> None:
    commands.said[GPU.address] = 'too hot'
    care = cloud.host('gpu1', GPUS, **options).care
    assert care.why_unhealthy(GPU) == ('too hot' if ran else None) and commands.ran == ran
    assert care.has_commands == bool(options)
