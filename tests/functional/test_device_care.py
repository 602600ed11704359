"""The operator's commands for devices: cleaned between two servers, and looked at before a server gets one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cloud import Cloud
from tests.flows.cases import lose_host
from tests.functional.test_disabled_devices import barred, disable, reserved

GPU, OTHER = '0000:08:00.0', '0000:85:00.0'
ONE = {'gpu1': [GPU]}
TWO = {'gpu1': [GPU], 'gpu2': [OTHER]}


class Program:
    """A shell script; ``ran``: its arguments of each run. While ``hold`` is there it waits; for an address in ``bad``
    it says so and ends with 3."""

    def __init__(self, folder: Path) -> None:
        self.path, self._ran, self.hold, self.bad = (folder / name for name in ('program', 'ran', 'hold', 'bad'))
        self.bad.touch()
        self.path.write_text(
            f'#!/bin/sh\necho "$*" >> {self._ran}\nwhile [ -e {self.hold} ]; do sleep 0.02; done\n'
            f'if grep -q "$2" {self.bad}; then echo "no answer\tof $2" >&2; exit 3; fi\n'
        )
        self.path.chmod(0o755)

    @property
    def command(self) -> str:
        return f"{self.path} '--deep clean'"

    @property
    def ran(self) -> list[str]:
        return self._ran.read_text().splitlines() if self._ran.exists() else []


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def awaited(cloud: Cloud, wanted: dict[str, tuple[str, str | None]]) -> None:
    """The devices are like this, in the end."""
    deadline = time.monotonic() + 60
    while cloud.devices() != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert cloud.devices() == wanted


def shown(cloud: Cloud, address: str) -> dict[str, str]:
    """Why a device is not offered."""
    (found,) = [
        one for one in cloud.ok('GET', '/os-devices', mount='/kilonova/v1')['devices'] if one['address'] == address
    ]
    return dict(found['barred'])


def tried(cloud: Cloud) -> None:
    """The command came to its end, well or not."""
    deadline = time.monotonic() + 60
    while shown(cloud, GPU) == {'dirty': 'it is not cleaned yet'} and time.monotonic() < deadline:
        time.sleep(0.02)


def delete(cloud: Cloud, server: str) -> None:
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()


# --- cleaned between two servers -------------------------------------------------------------------------------------
def test_a_device_is_offered_when_it_is_clean(make_cloud: Any, program: Program) -> None:
    """Not for a moment before: Placement has it reserved, its host in no pool."""
    cloud = make_cloud(ONE, devices__clean_command=program.command)
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    for action in ('os-stop', 'os-start'):
        cloud.action(server, action)
    assert program.ran == []
    program.hold.touch()
    delete(cloud, server)
    assert (cloud.devices(), reserved(cloud, 'gpu1', GPU)) == ({f'gpu1 {GPU}': ('unavailable', None)}, 1)
    assert shown(cloud, GPU) == {'dirty': 'it is not cleaned yet'}
    cloud.assert_clean()
    refused = cloud.boot(flavor)
    assert cloud.status(refused) == 'ERROR'
    program.hold.unlink()
    awaited(cloud, {f'gpu1 {GPU}': ('available', None)})
    assert program.ran == [f'--deep clean {GPU} pci'] and shown(cloud, GPU) == {}
    cloud.computes['gpu1'].node.update()
    assert reserved(cloud, 'gpu1', GPU) == 0
    assert cloud.hostdevs(cloud.boot(flavor)) == [GPU]
    delete(cloud, refused)
    cloud.assert_clean()


def test_a_device_that_cannot_be_cleaned(make_cloud: Any, program: Program) -> None:
    """It says why and is tried again at each look."""
    cloud = make_cloud(ONE, devices__clean_command=program.command)
    program.bad.write_text(GPU)
    delete(cloud, cloud.boot(cloud.flavor(gpus=1)))
    tried(cloud)
    assert shown(cloud, GPU) == {'dirty': f'clean_command ended with 3: no answer of {GPU}'}
    assert cloud.devices() == {f'gpu1 {GPU}': ('unavailable', None)}
    disable(cloud, 'gpu1', GPU, None)
    assert 'dirty' in shown(cloud, GPU), 'enable is no cleaning'
    program.bad.write_text('')
    cloud.computes['gpu1'].care.look()
    awaited(cloud, {f'gpu1 {GPU}': ('available', None)})


def test_a_command_that_does_not_end(make_cloud: Any, program: Program) -> None:
    cloud = make_cloud(ONE, devices__clean_command=program.command, devices__clean_command_timeout=1)
    program.hold.touch()
    delete(cloud, cloud.boot(cloud.flavor(gpus=1)))
    tried(cloud)
    assert shown(cloud, GPU) == {'dirty': 'clean_command did not end within 1 s'}


@pytest.mark.parametrize('still', [True, False])
def test_the_compute_dies_before_it_is_clean(make_cloud: Any, program: Program, still: bool) -> None:
    """The next process cleans it; one that has no command offers it as it is."""
    cloud = make_cloud(ONE, devices__clean_command=program.command)
    program.bad.write_text(GPU)
    delete(cloud, cloud.boot(cloud.flavor(gpus=1)))
    tried(cloud)
    before = len(program.ran)
    program.bad.write_text('')
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1', devices__clean_command=program.command if still else '')
    awaited(cloud, {f'gpu1 {GPU}': ('available', None)})
    assert len(program.ran) == before + still
    cloud.assert_clean()


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize_leaves_devices_to_be_cleaned(make_cloud: Any, program: Program, end: str) -> None:
    cloud = make_cloud(TWO, devices__clean_command=program.command)
    server = cloud.boot(cloud.flavor(gpus=1))
    (source,) = cloud.hostdevs(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    (destination,) = cloud.hostdevs(server)
    assert program.ran == []
    cloud.action(server, end)
    left = source if end == 'confirmResize' else destination
    awaited(cloud, {**cloud.devices(), next(name for name in cloud.devices() if left in name): ('available', None)})
    assert program.ran == [f'--deep clean {left} pci']
    assert barred(cloud, server) == [], 'its user has nothing to do with it'
    cloud.assert_clean()


# --- health ----------------------------------------------------------------------------------------------------------
def test_a_free_device_that_is_not_well(make_cloud: Any, program: Program) -> None:
    """It is given to no server until it is enabled; one that a server holds is left alone."""
    cloud = make_cloud(TWO, devices__health_check=program.command)
    server = cloud.boot(cloud.flavor(gpus=1))
    (held,) = cloud.hostdevs(server)
    ((host, free),) = ((name.split()[0], name.split()[1]) for name, (_, owner) in cloud.devices().items() if not owner)
    before = len(program.ran)
    program.bad.write_text(f'{free}\n{held}\n')
    for compute in cloud.computes.values():
        compute.care.look()
        compute.care.look()
    assert program.ran[before:] == [f'--deep clean {free} pci']
    assert shown(cloud, free) == {'unhealthy': f'health_check ended with 3: no answer of {free}'}
    assert (shown(cloud, held), cloud.devices()[f'{host} {free}']) == ({}, ('unavailable', None))
    program.bad.write_text('')
    cloud.computes[host].care.look()
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ERROR'
    disable(cloud, host, free, None)
    assert cloud.hostdevs(cloud.boot(cloud.flavor(gpus=1))) == [free]


@pytest.mark.parametrize('operation', ['boot', 'resize', 'unshelve', 'evacuate'])
def test_a_device_that_is_not_well_when_a_server_is_to_get_it(
    make_cloud: Any, program: Program, operation: str
) -> None:
    """The next host takes the server; nothing of it stays at the first one."""
    names = {'gpu1': [GPU], 'gpu2': [OTHER], 'gpu3': ['0000:a1:00.0']}
    cloud = make_cloud(names, devices__health_check=program.command)
    flavor = cloud.flavor(gpus=1)
    server = None if operation == 'boot' else cloud.boot(flavor)
    if operation == 'unshelve':
        cloud.action(server, 'shelve')
    elif operation == 'evacuate':
        lose_host(cloud, cloud.host_of(server))
    first: list[str] = []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method in ('build_and_run_instance', 'prep_resize', 'unshelve_instance', 'evacuate_instance') and not first:
            first.append(host)
            program.bad.write_text(names[host][0])
        return deliver()

    cloud.on_message = on_message
    if operation == 'boot':
        server = cloud.boot(flavor)
    elif operation == 'resize':
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    elif operation == 'unshelve':
        cloud.action(server, 'unshelve')
    else:
        assert cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}).status_int < 300
        cloud.settle(kinds_left=('release',))
    cloud.on_message = None
    assert cloud.status(server) == {'resize': 'VERIFY_RESIZE', 'evacuate': 'SHUTOFF'}.get(operation, 'ACTIVE')
    (host,) = first
    assert cloud.host_of(server) != host
    assert cloud.devices()[f'{host} {names[host][0]}'] == ('unavailable', None)
    assert shown(cloud, names[host][0]) == {'unhealthy': f'health_check ended with 3: no answer of {names[host][0]}'}
    if operation != 'evacuate':
        cloud.assert_clean()


def test_no_host_has_a_device_that_is_well(make_cloud: Any, program: Program) -> None:
    cloud = make_cloud(ONE, devices__health_check=program.command)
    program.bad.write_text(GPU)
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ERROR'
    assert f'Device {GPU} is unhealthy: health_check ended with 3: no answer of {GPU}' in str(cloud.story(server))
    assert cloud.devices() == {f'gpu1 {GPU}': ('unavailable', None)}
    delete(cloud, server)
    cloud.assert_clean()
