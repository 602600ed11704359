"""Servers with mediated devices (vGPUs): booted, moved, resized, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from kilonova.context import get_admin_context
from kilonova.db.queries import instances, pci_devices
from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.fixtures.mdev import Bus, mdev_bus, mdev_card
from tests.flows.cases import lose_host

ONE, TWO = '0000:84:00.0', '0000:85:00.0'
CARDS = {
    'gpu1': [mdev_card(ONE, {'nvidia-35': 2}), mdev_card(TWO, {'nvidia-35': 2})],
    'gpu2': [mdev_card(ONE, {'nvidia-35': 2}), mdev_card(TWO, {'nvidia-35': 2})],
}


@pytest.fixture
def bus() -> Iterator[Bus]:
    with mdev_bus() as made:
        yield made


@pytest.fixture
def vgpus(make_cloud: Callable[..., Cloud], bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Two hosts, each with two cards of two vGPUs and one GPU."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(
        {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']}, devices=CARDS, devices__enabled_mdev_types=['nvidia-35']
    )


def flavor(cloud: Cloud, number: int = 1, **more: Any) -> str:
    return cloud.flavor(**({'resources:VGPU': str(number)} if number else {}), **more)


def check(cloud: Cloud, server: str, number: int) -> list[str]:
    """Guest, rows and Placement say the same of a server that is at rest: its devices."""
    owned = [name.split()[1] for name in cloud.owned(server)]
    assert cloud.hostdevs(server) == sorted(owned) and len(owned) == number
    given = [
        resources
        for name, resources in cloud.placement.allocations()[server].items()
        if name.startswith(f'{cloud.host_of(server)}_pci_')
    ]
    assert sum(resources['VGPU'] for resources in given) == number
    assert {cloud.devices()[name][0] for name in cloud.owned(server)} <= {'allocated'}
    with cloud.cell.read() as conn:
        requests = json.loads(instances.get(conn, server)['extra_pci_requests'])
        asked = {row['request_id'] for row in pci_devices.list_devices(conn) if row['instance_uuid'] == server}
    assert {one['request_id'] for one in requests} == asked and sum(one['count'] for one in requests) == number
    cloud.assert_clean()
    return sorted(owned)


def move(cloud: Cloud, server: str, name: str, body: Any, end: str) -> None:
    cloud.action(server, name, body)
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE'


def test_made_when_first_needed_kept_and_reused(vgpus: Cloud, bus: Bus) -> None:
    """A boot makes a mediated device on the parent that Placement chose, and the guest's XML has it as a vfio-pci
    mdev. The device stays when the server is deleted, and the next server gets it."""
    server = vgpus.boot(flavor(vgpus))
    (device,) = check(vgpus, server, 1)
    host = vgpus.host_of(server)
    parent, mdev_type = bus.made(host)[device]
    assert mdev_type == 'nvidia-35' and f'{host}_{parent}' in vgpus.placement.allocations()[server]
    assert '<hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci">' in vgpus.xml(server).replace("'", '"')
    vgpus.ok('DELETE', f'/servers/{server}')
    vgpus.settle()
    vgpus.assert_empty()
    assert list(bus.made(host)) == [device]
    others = [vgpus.boot(flavor(vgpus)) for _ in range(8)]
    assert {vgpus.status(one) for one in others} == {'ACTIVE'}
    assert device in bus.made(host) and len(bus.made('gpu1')) == len(bus.made('gpu2')) == 4
    full = vgpus.boot(flavor(vgpus))
    assert vgpus.status(full) == 'ERROR'
    assert 'fewer than 1 free VGPU' in vgpus.show(full)['fault']['message']
    vgpus.assert_clean()


def test_the_same_device_after_what_keeps_a_server_on_its_host(vgpus: Cloud, bus: Bus) -> None:
    server = vgpus.boot(flavor(vgpus, 2))
    devices = check(vgpus, server, 2)
    for name, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('rescue', None),
        ('unrescue', None),
        ('rebuild', {'imageRef': IMAGE_ID}),
        ('suspend', None),
        ('resume', None),
        ('shelve', None),
    ):
        if name == 'os-start':
            # The host was booted meanwhile, and none is active.
            bus.lose(vgpus.host_of(server))
        if name == 'shelve':
            break
        vgpus.action(server, name, body)
        assert check(vgpus, server, 2) == devices, name
        assert set(devices) <= bus.made(vgpus.host_of(server)).keys()


def test_a_start_of_the_compute_starts_those_that_are_defined(vgpus: Cloud, bus: Bus) -> None:
    server = vgpus.boot(flavor(vgpus))
    host, (device,) = vgpus.host_of(server), check(vgpus, server, 1)
    vgpus.crash_compute(host)
    bus.lose(host)
    vgpus.start_compute(host)
    assert device in bus.made(host)
    check(vgpus, server, 1)


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_resizes(vgpus: Cloud, end: str) -> None:
    """0 → 1 → 2 → 1, each confirmed, or reverted first."""
    server, has = vgpus.boot(flavor(vgpus, 0)), 0
    for number in (1, 2, 1, 0):
        before = vgpus.hostdevs(server)
        if end == 'revertResize':
            move(vgpus, server, 'resize', {'flavorRef': flavor(vgpus, number)}, end)
            assert (check(vgpus, server, has) if has else vgpus.hostdevs(server)) == before
        move(vgpus, server, 'resize', {'flavorRef': flavor(vgpus, number)}, 'confirmResize')
        has = number
        if number:
            check(vgpus, server, number)
    vgpus.ok('DELETE', f'/servers/{server}')
    vgpus.settle()
    vgpus.assert_empty()


def test_while_a_resize_waits_both_hosts_hold_its_devices(vgpus: Cloud) -> None:
    server = vgpus.boot(flavor(vgpus, 1))
    source = vgpus.host_of(server)
    vgpus.action(server, 'resize', {'flavorRef': flavor(vgpus, 2)})
    assert sorted(name.split()[0] == source for name in vgpus.owned(server)) == [False, False, True]
    vgpus.assert_clean()
    vgpus.ok('DELETE', f'/servers/{server}')
    vgpus.settle()
    vgpus.assert_empty()


def test_cold_migration_shelve_and_evacuation(vgpus: Cloud) -> None:
    server = vgpus.boot(flavor(vgpus, 2, gpus=1), name='all')
    first = vgpus.host_of(server)
    move(vgpus, server, 'migrate', None, 'confirmResize')
    assert vgpus.host_of(server) != first and len(vgpus.hostdevs(server)) == 3
    vgpus.assert_clean()
    vgpus.action(server, 'shelve')
    vgpus.action(server, 'shelveOffload', None) if vgpus.status(server) == 'SHELVED' else None
    assert vgpus.owned(server) == []
    vgpus.assert_clean()
    vgpus.action(server, 'unshelve')
    assert vgpus.status(server) == 'ACTIVE' and len(vgpus.hostdevs(server)) == 3
    dead = vgpus.host_of(server)
    lose_host(vgpus, dead)
    vgpus.request('POST', f'/servers/{server}/action', {'evacuate': {}})
    vgpus.settle(kinds_left=('release',))
    assert vgpus.host_of(server) != dead and len(vgpus.hostdevs(server)) == 3


def test_numbered_groups_and_classes_of_their_own(make_cloud: Callable[..., Cloud], bus: Bus) -> None:
    """Groups that are isolated are of two cards; a type's class is asked for by its name."""
    types = {'nvidia-35': 4, 'nvidia-36': 1}
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': [mdev_card(one, types) for one in (ONE, TWO, '0000:86:00.0')]},
        devices__enabled_mdev_types=['nvidia-35', 'nvidia-36'],
        **{'mdev_nvidia-36__device_addresses': ['0000:86:00.0'], 'mdev_nvidia-36__mdev_class': 'CUSTOM_BIG'},
    )
    server = cloud.boot(
        cloud.flavor(
            **{'resources1:VGPU': '1', 'resources2:VGPU': '1', 'group_policy': 'isolate', 'resources3:CUSTOM_BIG': '1'}
        )
    )
    assert cloud.status(server) == 'ACTIVE', cloud.show(server)
    assert sorted(bus.made('gpu1')[one] for one in cloud.hostdevs(server)) == [
        ('pci_0000_84_00_0', 'nvidia-35'),
        ('pci_0000_85_00_0', 'nvidia-35'),
        ('pci_0000_86_00_0', 'nvidia-36'),
    ]
    cloud.assert_clean()
    assert cloud.status(cloud.boot(cloud.flavor(**{'resources:CUSTOM_BIG': '1'}))) == 'ERROR'


def test_a_create_of_eight_finds_room_over_all_parents(vgpus: Cloud) -> None:
    """No card has room for all."""
    vgpus.create(flavor(vgpus), min_count=8, max_count=8)
    vgpus.settle()
    servers = vgpus.ok('GET', '/servers/detail')['servers']
    assert [one['status'] for one in servers] == ['ACTIVE'] * 8
    assert {status for name, (status, _) in vgpus.devices().items() if '-' in name} == {'allocated'}
    vgpus.assert_clean()


def test_a_host_that_can_not_make_one_is_passed_over(vgpus: Cloud, bus: Bus) -> None:
    bus.failing = ['the driver of the card refuses']
    server = vgpus.boot(flavor(vgpus))
    assert vgpus.status(server) == 'ACTIVE'
    check(vgpus, server, 1)
    bus.failing = ['the driver of the card refuses'] * 2
    failed = vgpus.boot(flavor(vgpus))
    assert vgpus.status(failed) == 'ERROR'
    assert 'mdev-capable resource is not available' in vgpus.show(failed)['fault']['message']
    vgpus.assert_clean()


def test_a_card_whose_type_changes(make_cloud: Callable[..., Cloud], bus: Bus) -> None:
    """What is free of the old type goes at the next look, so that there is room for the new one; what is held stays as
    long as it is."""
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': [mdev_card(ONE, {'nvidia-35': 2, 'nvidia-36': 1})]},
        devices__enabled_mdev_types=['nvidia-35'],
    )
    held, gone = cloud.boot(flavor(cloud)), cloud.boot(flavor(cloud))
    before = check(cloud, held, 1)
    cloud.ok('DELETE', f'/servers/{gone}')
    cloud.settle()
    assert len(bus.made('gpu1')) == 2
    cloud.crash_compute('gpu1')
    compute = cloud.start_compute('gpu1', devices__enabled_mdev_types=['nvidia-36'])
    assert list(bus.made('gpu1')) == before
    for name in ('os-stop', 'os-start'):
        cloud.action(held, name)
        assert check(cloud, held, 1) == before
    assert cloud.status(cloud.boot(flavor(cloud))) == 'ERROR'
    cloud.ok('DELETE', f'/servers/{held}')
    cloud.settle()
    compute.node.update()
    assert bus.made('gpu1') == {}
    server = cloud.boot(flavor(cloud))
    assert [mdev_type for _, mdev_type in bus.made('gpu1').values()] == ['nvidia-36']
    check(cloud, server, 1)


def live_migrate(cloud: Cloud, server: str) -> None:
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'}, version='2.25')


def test_live_migration_exchanges_them(vgpus: Cloud, bus: Bus) -> None:
    """At the destination the guest has equal ones, which are made before it comes; those of the source are free. What
    comes later is about the new ones."""
    server = vgpus.boot(flavor(vgpus, 2))
    source, before = vgpus.host_of(server), check(vgpus, server, 2)
    live_migrate(vgpus, server)
    assert vgpus.host_of(server) != source
    after = check(vgpus, server, 2)
    assert set(after) <= bus.made(vgpus.host_of(server)).keys() and not set(before) & set(after)
    for name, body in (('reboot', {'type': 'HARD'}), ('os-stop', None), ('os-start', None)):
        vgpus.action(server, name, body)
        assert check(vgpus, server, 2) == after
    move(vgpus, server, 'resize', {'flavorRef': flavor(vgpus, 1)}, 'revertResize')
    assert check(vgpus, server, 2) == after
    vgpus.ok('DELETE', f'/servers/{server}')
    vgpus.settle()
    vgpus.assert_empty()


def test_a_live_migration_to_another_type_or_without_room_leaves_it(make_cloud: Callable[..., Cloud], bus: Bus) -> None:
    """Both types are of one class, so that Placement can't tell them apart."""
    cloud = make_cloud(
        {'gpu1': [], 'gpu2': []},
        devices__enabled_mdev_types=['nvidia-35', 'nvidia-36'],
        devices={'gpu1': [mdev_card(ONE, {'nvidia-35': 1})], 'gpu2': [mdev_card(TWO, {'nvidia-36': 1})]},
        **{'mdev_nvidia-36__device_addresses': [TWO]},
    )
    server = cloud.boot(flavor(cloud))
    host, before = cloud.host_of(server), check(cloud, server, 1)
    live_migrate(cloud, server)
    assert (cloud.host_of(server), check(cloud, server, 1)) == (host, before)
    assert 'no device like' in str(cloud.story(server))


def test_a_destination_that_can_not_make_one_is_not_gone_to(vgpus: Cloud, bus: Bus) -> None:
    server = vgpus.boot(flavor(vgpus))
    host, before = vgpus.host_of(server), check(vgpus, server, 1)
    bus.failing = ['the driver of the card refuses']
    live_migrate(vgpus, server)
    assert (vgpus.host_of(server), check(vgpus, server, 1)) == (host, before)


def test_a_vgpu_that_is_not_well_at_the_destination_of_a_live_migration(
    make_cloud: Callable[..., Cloud], bus: Bus, tmp_path: Path
) -> None:
    """The server stays where it was."""
    bad = tmp_path / 'bad'
    bad.touch()
    check_health = tmp_path / 'check'
    check_health.write_text(f'#!/bin/sh\n! grep -q "$1" {bad}\n')
    check_health.chmod(0o755)
    cloud = make_cloud(
        {'gpu1': [], 'gpu2': []},
        devices=CARDS,
        devices__enabled_mdev_types=['nvidia-35'],
        devices__health_check=str(check_health),
    )
    server = cloud.boot(flavor(cloud, 1))
    source, before = cloud.host_of(server), check(cloud, server, 1)
    bad.write_text('\n'.join(name.split()[1] for name in cloud.devices() if not name.startswith(source)))
    live_migrate(cloud, server)
    assert (cloud.host_of(server), check(cloud, server, 1), cloud.status(server)) == (source, before, 'ACTIVE')


# --- another type ----------------------------------------------------------------------------------------------------
def set_type(cloud: Cloud, address: str, mdev_type: str) -> list[dict[str, str]]:
    """As ``kilonova-manage device set-type`` asks the host."""
    found: list[dict[str, str]] = cloud.compute_client.set_mdev_type(
        get_admin_context(), server='gpu1', address=address, mdev_type=mdev_type
    )
    return found


def test_a_card_gets_another_type_while_others_serve(make_cloud: Callable[..., Cloud], bus: Bus) -> None:
    """Its unused devices go, its new ones are given out; it is so after a restart. Refused while servers hold some."""
    types = {'nvidia-35': 2, 'nvidia-36': 1}
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': [mdev_card(ONE, types), mdev_card(TWO, types)]},
        devices__enabled_mdev_types=['nvidia-35', 'nvidia-36'],
        **{'mdev_nvidia-36__device_addresses': ['0000:ff:00.0']},
    )
    both = cloud.boot(flavor(cloud, 2))
    parent = next(parent for parent, _ in bus.made('gpu1').values())
    address = {'pci_0000_84_00_0': ONE, 'pci_0000_85_00_0': TWO}[parent]
    other = TWO if address == ONE else ONE
    with pytest.raises(errors.Conflict) as refused:
        set_type(cloud, address, 'nvidia-36')
    assert str(refused.value) == (
        f'2 devices of gpu1 {address} are held by {both}: the type of the card can be changed when they are free'
    )
    assert sorted(one['address'] for one in set_type(cloud, address, 'nvidia-35')) == sorted(check(cloud, both, 2))
    cloud.ok('DELETE', f'/servers/{both}')
    cloud.settle()
    assert len(bus.made('gpu1')) == 2
    assert [one['mdev_type'] for one in set_type(cloud, address, 'nvidia-36')] == ['nvidia-36']
    assert bus.made('gpu1') == {}
    for _ in range(2):
        servers = [cloud.boot(flavor(cloud)) for _ in range(3)]
        assert sorted(bus.made('gpu1').values()) == sorted(
            [(parent, 'nvidia-36'), *[(f'pci_{other.replace(":", "_").replace(".", "_")}', 'nvidia-35')] * 2]
        )
        assert cloud.status(cloud.boot(flavor(cloud))) == 'ERROR'
        cloud.assert_clean()
        for server in servers:
            cloud.ok('DELETE', f'/servers/{server}')
        cloud.settle()
        cloud.crash_compute('gpu1')
        cloud.start_compute('gpu1')
    assert set_type(cloud, address, 'nvidia-35')[0]['mdev_type'] == 'nvidia-35'


@pytest.mark.parametrize(
    ('address', 'mdev_type', 'error', 'said'),
    [
        ('0000:99:00.0', 'nvidia-35', errors.NotFound, 'gpu1 has no card 0000:99:00.0'),
        (
            ONE,
            'nvidia-37',
            errors.Invalid,
            "'nvidia-37' is not among [devices]enabled_mdev_types: nvidia-35, nvidia-36",
        ),
        (ONE, 'nvidia-36', errors.Invalid, f'{ONE} supports nvidia-35, not nvidia-36'),
    ],
)
def test_a_type_that_a_card_cannot_have(
    make_cloud: Callable[..., Cloud], bus: Bus, address: str, mdev_type: str, error: type[Exception], said: str
) -> None:
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': [mdev_card(ONE, {'nvidia-35': 2})]},
        devices__enabled_mdev_types=['nvidia-35', 'nvidia-36'],
        **{'mdev_nvidia-36__device_addresses': ['0000:ff:00.0']},
    )
    with pytest.raises(error) as refused:
        set_type(cloud, address, mdev_type)
    assert str(refused.value) == said
