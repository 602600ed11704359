"""Tests through the API of builds and moves that fail: is the request at fault, or the host?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kilonova.virt.libvirt.hostinfo import settings
from kilonova.virt.libvirt.storage.server import ServerDisks
from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.flows.cases import lose_host

HOSTS: dict[str, list[str]] = {'gpu1': [], 'gpu2': [], 'gpu3': []}
SHARES = {'quota:cpu_shares': '16384'}
REFUSED = (
    "'16384' of 'quota:cpu_shares' is not supported by this host: it must be from 1 to 10000 (control groups of "
    'version 2)'
)
BUILDS = (
    'build_and_run_instance',
    'prep_resize',
    'check_can_live_migrate_destination',
    'evacuate_instance',
    'unshelve_instance',
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers for which disks were made."""
    found: list[str] = []
    create = ServerDisks.create

    def note(self: ServerDisks, instance: Any, *args: Any, **kwargs: Any) -> None:
        found.append(instance.uuid)
        create(self, instance, *args, **kwargs)

    monkeypatch.setattr(ServerDisks, 'create', note)
    return found


@pytest.fixture
def version_2(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """All hosts have control groups of version 2."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    (tmp_path / 'cgroup.controllers').write_text('cpu memory\n')
    monkeypatch.setattr(settings, 'CONTROLLERS', str(tmp_path / 'cgroup.controllers'), raising=False)
    return make_cloud(HOSTS)


def tried(cloud: Cloud) -> list[str | None]:
    return [message[2] for message in cloud.messages if message[3] in BUILDS]


def put(cloud: Cloud, host: str, version: int) -> None:
    """A host has control groups of this version."""
    driver: Any = cloud.computes[host].host.driver.host
    vars(driver)['settings'] = replace(driver.settings, control_groups=version)


def failed_builds(cloud: Cloud) -> set[int]:
    return {compute.host.tracker.failed_builds for compute in cloud.computes.values()}


def texts(cloud: Cloud, server: str) -> str:
    return '\n'.join(str(event[2]) for action in cloud.story(server) for event in action[2])


def test_shares_that_no_host_of_the_cloud_takes(version_2: Cloud, made: list[str]) -> None:
    """A build whose `quota:cpu_shares` no host accepts fails before disks are made; the fault names the extra spec."""
    server = version_2.boot(version_2.flavor(**SHARES))
    shown = version_2.show(server)
    assert (shown['status'], made) == ('ERROR', []), version_2.story(server)
    assert REFUSED in shown['fault']['message'] and failed_builds(version_2) == {0}
    version_2.assert_clean()
    most = version_2.boot(version_2.flavor(**{'quota:cpu_shares': '10000'}))
    assert version_2.status(most) == 'ACTIVE' and '<shares>10000</shares>' in version_2.xml(most)
    version_2.assert_clean()


@pytest.mark.parametrize(
    ('properties', 'said'),
    [
        ({'hw_disk_bus': 'fdc'}, 'disk on bus fdc'),
        ({'hw_disk_bus': 'ide', 'hw_machine_type': 'q35'}, 'disk on bus ide of machine type q35'),
    ],
)
def test_a_bus_that_no_host_has_is_refused_once(
    make_cloud: Callable[..., Cloud], made: list[str], properties: dict[str, str], said: str
) -> None:
    """An image with a disk bus that no host supports is tried on one host, which makes no disk and counts no failed
    build."""
    cloud = make_cloud(HOSTS)
    cloud.images.offered[IMAGE_ID] = properties
    server = cloud.boot(cloud.flavor())
    assert (cloud.status(server), made, len(tried(cloud)), failed_builds(cloud)) == ('ERROR', [], 1, {0})
    assert said in cloud.show(server)['fault']['message']
    cloud.assert_clean()


def test_a_host_that_can_gets_it(version_2: Cloud, made: list[str]) -> None:
    put(version_2, 'gpu2', 1)
    server = version_2.boot(version_2.flavor(**SHARES))
    assert version_2.status(server) == 'ACTIVE' and version_2.host_of(server) == 'gpu2', version_2.story(server)
    assert made == [server]
    version_2.assert_clean()


def moves(cloud: Cloud, server: str, how: str) -> None:
    if how == 'live':
        cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'}, version='2.104')
    elif how == 'cold':
        cloud.action(server, 'migrate')
    elif how == 'unshelve':
        cloud.action(server, 'shelve')
        for host in HOSTS:
            put(cloud, host, 2)
        cloud.action(server, 'unshelve')
    else:
        lose_host(cloud, cloud.host_of(server))
        cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}})
        cloud.settle(kinds_left=('release',))


@pytest.mark.parametrize(
    ('how', 'status'),
    [('live', 'ACTIVE'), ('cold', 'ACTIVE'), ('unshelve', 'SHELVED_OFFLOADED'), ('evacuate', 'ERROR')],
)
def test_moves_to_hosts_that_do_not_take_the_shares(version_2: Cloud, made: list[str], how: str, status: str) -> None:
    """A move to hosts that do not accept the CPU shares is refused before the guest stops."""
    put(version_2, 'gpu1', 1)
    server = version_2.boot(version_2.flavor(**SHARES))
    assert version_2.host_of(server) == 'gpu1', version_2.story(server)
    version_2.messages.clear()
    moves(version_2, server, how)
    assert REFUSED in texts(version_2, server) and made == [server], version_2.story(server)
    asked = {message[3] for message in version_2.messages}
    assert not asked & {'resize_instance', 'finish_resize', 'pre_live_migration', 'live_migration'}
    if how != 'unshelve':
        assert version_2.host_of(server) == 'gpu1'
    if status != 'ERROR':
        assert version_2.status(server) == status
        version_2.assert_clean()


def test_a_resize_to_shares_that_no_host_takes(version_2: Cloud) -> None:
    """A resize to CPU shares that no host accepts is tried on each host, as control groups may differ; the guest runs
    on."""
    server = version_2.boot(version_2.flavor())
    before = version_2.xml(server)
    version_2.messages.clear()
    version_2.action(server, 'resize', {'flavorRef': version_2.flavor(**SHARES)})
    assert version_2.status(server) == 'ACTIVE' and version_2.xml(server) == before
    assert len(tried(version_2)) == 2 and REFUSED in texts(version_2, server)
    version_2.assert_clean()


def test_a_rebuild_on_a_host_that_does_not_take_the_shares(version_2: Cloud, made: list[str]) -> None:
    """A rebuild on a host that does not accept the CPU shares is refused before the disks are replaced."""
    put(version_2, 'gpu1', 1)
    server = version_2.boot(version_2.flavor(**SHARES))
    put(version_2, 'gpu1', 2)
    version_2.action(server, 'rebuild', {'imageRef': version_2.show(server)['image']['id']})
    assert version_2.status(server) == 'ACTIVE' and made == [server] and REFUSED in texts(version_2, server)
    version_2.assert_clean()
