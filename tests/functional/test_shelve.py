"""Shelve, shelve offload and unshelve: what a server keeps, what is free meanwhile, what comes back and where."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from kilonova.db.queries import instances
from kilonova.errors import Invalid, KilonovaError, Unanswered
from tests.fixtures.cloud import IMAGE_ID, Cloud

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}
OTHER = {'gpu1': 'gpu2', 'gpu2': 'gpu1'}


@pytest.fixture
def small(make_cloud, monkeypatch) -> Cloud:
    """Two hosts with two GPUs each; a shelved server leaves its host at once."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS)


@pytest.fixture
def keeping(make_cloud, monkeypatch) -> Cloud:
    """The same, where a shelved server stays on its host."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS, shelved_offload_time=-1)


def write(cloud: Cloud, server: str) -> None:
    subprocess.run(['qemu-io', '-c', 'write -P 0xab 1M 64k', str(disk(cloud, server))], check=True, capture_output=True)


def has_kept(cloud: Cloud, server: str) -> bool:
    read = subprocess.run(
        ['qemu-io', '-r', '-U', '-c', 'read -P 0xab 1M 64k', str(disk(cloud, server))], check=True, capture_output=True
    )
    return b'Pattern verification failed' not in read.stdout


def disk(cloud: Cloud, server: str) -> Any:
    return cloud.directory / cloud.host_of(server) / 'instances' / server / 'disk'


def kept(cloud: Cloud, server: str) -> dict[str, str]:
    """What system metadata says of the shelving."""
    with cloud.cell.read() as conn:
        found = instances.get_system_metadata(conn, server)
    return {name: value for name, value in found.items() if name.startswith('shelved_')}


def events_of(cloud: Cloud, server: str, action: str) -> list[tuple[str, str, str]]:
    """The newest action of that name: (event, result, host) of each event, by name."""
    rows = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    row = next(row for row in rows if row['action'] == action)
    found = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{row["request_id"]}')['instanceAction']
    return sorted((event['event'], event['result'], event['host']) for event in found['events'])


def task_states(cloud: Cloud, server: str, name: str, body: Any = None) -> list[Any]:
    """Which (status, task state, host) a server has after each thing that a host tells while it does this."""
    seen: list[Any] = []

    def on_message(kind, topic, host, method, args, deliver):
        result = deliver()
        if method in ('save_instance', 'claim_instance'):
            shown = cloud.show(server)
            now = (shown['OS-EXT-STS:vm_state'], shown['OS-EXT-STS:task_state'])
            if not seen or seen[-1] != now:
                seen.append(now)
        return result

    cloud.on_message = on_message
    cloud.action(server, name, body)
    cloud.on_message = None
    return seen


def test_shelve_offloads_at_once(small: Cloud) -> None:
    """With shelved_offload_time 0 a shelve makes an image and frees devices, allocation and files at once. Users
    see SHELVED_OFFLOADED, and unshelve builds the server on a host."""
    server = small.boot(small.flavor(gpus=1), metadata={'of': 'server'})
    first, gpus = small.host_of(server), small.hostdevs(server)
    write(small, server)
    assert len(gpus) == 1 and server in small.placement.allocations()
    assert task_states(small, server, 'shelve') == [
        ('active', 'shelving_image_pending_upload'),
        ('active', 'shelving_image_uploading'),
        ('shelved', 'shelving_offloading'),
    ]
    shown = small.show(server)
    assert {
        name: shown[name]
        for name in (
            'status',
            'OS-EXT-STS:vm_state',
            'OS-EXT-STS:task_state',
            'OS-EXT-SRV-ATTR:host',
            'hostId',
            'OS-EXT-SRV-ATTR:hypervisor_hostname',
            'OS-EXT-STS:power_state',
        )
    } == {
        'status': 'SHELVED_OFFLOADED',
        'OS-EXT-STS:vm_state': 'shelved_offloaded',
        'OS-EXT-STS:task_state': None,
        'OS-EXT-SRV-ATTR:host': None,
        'hostId': '',
        'OS-EXT-SRV-ATTR:hypervisor_hostname': None,
        'OS-EXT-STS:power_state': 4,
    }
    (image_id,) = small.images.made
    record = small.images.made[image_id]
    assert (record['name'], record['status'], record['image_type'], record['instance_uuid']) == (
        's-shelved',
        'active',
        'snapshot',
        server,
    )
    assert kept(small, server)['shelved_image_id'] == image_id and kept(small, server)['shelved_host'] == first
    assert kept(small, server)['shelved_at']
    assert not small.owned(server) and server not in small.placement.allocations()
    assert not (small.directory / first / 'instances' / server).exists()
    assert events_of(small, server, 'shelve') == [('compute_shelve_instance', 'Success', first)]
    small.assert_clean()
    # Who isn't on a host goes on counting.
    used = small.ok('GET', '/limits')['limits']['absolute']
    assert (used['totalInstancesUsed'], used['totalCoresUsed']) == (1, 1)
    # Others take its devices; it gets others.
    taker = small.boot(small.flavor(gpus=2), host=first)
    assert set(small.hostdevs(taker)) > set(gpus)
    assert task_states(small, server, 'unshelve') == [('shelved_offloaded', 'spawning')]
    assert (small.status(server), small.host_of(server)) == ('ACTIVE', OTHER[first])
    assert len(small.hostdevs(server)) == 1 and len(small.owned(server)) == 1
    assert has_kept(small, server) and not kept(small, server) and small.images.made == {}
    assert small.show(server)['image']['id'] == IMAGE_ID
    assert events_of(small, server, 'unshelve') == [
        ('compute_unshelve_instance', 'Success', OTHER[first]),
        *((name, 'Success', small.conductors[0].env.host) for name in ('get_image_info', 'schedule_instances')),
    ]
    small.assert_clean()
    # It is a server like any other: it restarts, moves and goes.
    small.action(server, 'reboot', {'type': 'HARD'})
    small.request('DELETE', f'/servers/{taker}')
    small.settle()
    small.action(server, 'migrate')
    assert small.status(server) == 'VERIFY_RESIZE', small.story(server)
    small.action(server, 'confirmResize')
    assert small.host_of(server) == first and has_kept(small, server)
    small.assert_clean()
    small.request('DELETE', f'/servers/{server}')
    small.settle()
    small.assert_empty()


def test_a_shelved_server_keeps_its_host(keeping: Cloud) -> None:
    """With shelved_offload_time -1 a shelved server keeps its disks, devices and allocation. Unshelve starts it
    with the same devices, and shelveOffload frees them."""
    server = keeping.boot(keeping.flavor(gpus=1))
    host, gpus = keeping.host_of(server), keeping.hostdevs(server)
    write(keeping, server)
    keeping.action(server, 'shelve')
    assert (keeping.status(server), keeping.host_of(server)) == ('SHELVED', host)
    assert keeping.owned(server) and server in keeping.placement.allocations()
    keeping.assert_clean()
    refused = keeping.action(server, 'unshelve', {'availability_zone': 'nova'}, expect=409, version='2.77')
    assert 'The server status must be SHELVED_OFFLOADED.' in refused.text
    assert task_states(keeping, server, 'unshelve') == [('shelved', 'powering-on')]
    assert (keeping.status(server), keeping.hostdevs(server), has_kept(keeping, server)) == ('ACTIVE', gpus, True)
    assert events_of(keeping, server, 'unshelve') == [('compute_start_instance', 'Success', host)]
    assert keeping.images.made == {} and not kept(keeping, server)
    keeping.action(server, 'shelve')
    keeping.action(server, 'shelveOffload')
    assert keeping.status(server) == 'SHELVED_OFFLOADED'
    assert events_of(keeping, server, 'shelveOffload') == [('compute_shelve_offload_instance', 'Success', host)]
    assert not keeping.owned(server) and server not in keeping.placement.allocations()
    keeping.assert_clean()
    # Deleted as it is, its image goes, too.
    keeping.request('DELETE', f'/servers/{server}')
    keeping.settle()
    assert keeping.images.made == {}
    keeping.assert_empty()


@pytest.mark.parametrize(('before', 'status'), [('os-stop', 'SHUTOFF'), (None, 'ACTIVE')])
def test_a_shelve_that_fails(small: Cloud, before: str | None, status: str) -> None:
    """The guest is as it was, with its devices; the reason is in the fault."""
    server = small.boot(small.flavor(gpus=1))
    if before:
        small.action(server, before)
    host, gpus = small.host_of(server), small.hostdevs(server)

    def before_image(method: str, image_id: str) -> None:
        if method == 'upload':
            raise KilonovaError('the store is full')

    small.images.before = before_image
    small.action(server, 'shelve')
    small.images.before = None
    assert (small.status(server), small.hostdevs(server)) == (status, gpus)
    assert ('compute_shelve_instance', 'Error', host) in [
        (event, result, host) for event, result, _ in events_of(small, server, 'shelve')
    ]
    assert small.images.made == {} and not kept(small, server)
    small.assert_clean()


@pytest.mark.parametrize(('before', 'status'), [('pause', 'PAUSED'), ('suspend', 'SUSPENDED')])
def test_a_guest_that_is_held(small: Cloud, before: str, status: str) -> None:
    """It loses its memory when all else went well, not before; it comes back ACTIVE."""
    server = small.boot(small.flavor(gpus=1))
    small.action(server, before)
    state = small.show(server)['OS-EXT-STS:power_state']

    def before_image(method: str, image_id: str) -> None:
        if method == 'upload':
            raise KilonovaError('the store is full')

    small.images.before = before_image
    small.action(server, 'shelve')
    small.images.before = None
    shown = small.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == (status, state) and len(small.owned(server)) == 1
    small.assert_clean()
    small.action(server, 'shelve')
    assert small.status(server) == 'SHELVED_OFFLOADED' and not small.owned(server)
    small.assert_clean()
    small.action(server, 'unshelve')
    assert small.status(server) == 'ACTIVE' and len(small.hostdevs(server)) == 1
    small.assert_clean()


@pytest.mark.parametrize('before', ['pause', 'suspend'])
def test_a_held_guest_that_was_stopped_in_vain(small: Cloud, before: str) -> None:
    """Its memory is gone: the server says that it is off, and starts anew with the same devices."""
    server = small.boot(small.flavor(gpus=1))
    gpus = small.hostdevs(server)
    small.action(server, before)

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'save_instance' and (args['save'].event or {}).get('event') == 'compute_shelve_instance':
            raise Invalid('injected failure')
        return deliver()

    small.on_message = on_message
    small.action(server, 'shelve')
    small.on_message = None
    assert small.status(server) == 'SHUTOFF', small.story(server)
    small.assert_clean()
    small.action(server, 'os-start')
    assert (small.status(server), small.hostdevs(server)) == ('ACTIVE', gpus)
    small.assert_clean()


def test_nobody_can_take_it_back(small: Cloud) -> None:
    """It stays offloaded, says why, and comes back when there is room."""
    server = small.boot(small.flavor(gpus=2))
    small.action(server, 'shelve')
    others = [small.boot(small.flavor(gpus=1), host=host) for host in GPUS]
    small.action(server, 'unshelve')
    assert small.status(server) == 'SHELVED_OFFLOADED' and small.images.made
    assert [(event, result) for event, result, _ in events_of(small, server, 'unshelve')] == [
        ('get_image_info', 'Success'),
        ('schedule_instances', 'Error'),
    ]
    assert server not in small.placement.allocations()
    small.assert_clean()
    small.request('DELETE', f'/servers/{others[0]}')
    small.settle()
    small.action(server, 'unshelve')
    assert small.status(server) == 'ACTIVE', small.story(server)
    assert len(small.hostdevs(server)) == 2
    small.assert_clean()


def test_its_image_is_gone(small: Cloud) -> None:
    server = small.boot(small.flavor(gpus=1))
    small.action(server, 'shelve')
    (image_id,) = small.images.made
    small.images.delete(image_id)
    small.action(server, 'unshelve')
    assert small.status(server) == 'SHELVED_OFFLOADED'
    assert [(event, result) for event, result, _ in events_of(small, server, 'unshelve')] == [
        ('get_image_info', 'Error')
    ]
    assert image_id in str(small.story(server))
    small.assert_clean()


def test_a_silent_image_service_when_it_is_back(small: Cloud) -> None:
    """The server is ACTIVE all the same, and its image goes later."""
    server = small.boot(small.flavor(gpus=1))
    small.action(server, 'shelve')

    def before_image(method: str, image_id: str) -> None:
        if method == 'delete':
            raise Unanswered(who='The image service', reason='it hangs')

    small.images.before = before_image
    small.request('POST', f'/servers/{server}/action', {'unshelve': None})
    small.settle(kinds_left=('release',))
    assert small.status(server) == 'ACTIVE' and small.images.made
    small.images.before = None
    small.settle()
    assert small.images.made == {}
    small.assert_clean()


def test_to_a_zone_and_to_a_host(small: Cloud) -> None:
    """2.77: a zone; 2.91: a host, a zone that is no longer wanted; what can't be is refused."""
    made = small.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a', 'availability_zone': 'west'}})['aggregate']
    small.ok('POST', f'/os-aggregates/{made["id"]}/action', {'add_host': {'host': 'gpu2'}})
    server = small.boot(small.flavor(gpus=1), host='gpu1')
    small.action(server, 'shelve')
    for body, version, text in (
        ({'availability_zone': 'east'}, '2.77', 'The requested availability zone is not available'),
        ({'host': 'gpu9'}, '2.91', 'Compute host gpu9 could not be found.'),
        ({'availability_zone': 'west', 'host': 'gpu1'}, '2.91', 'is not in the availability zone'),
        ({'host': 'gpu1'}, '2.90', 'unshelve'),
        ({}, '2.91', 'unshelve'),
        ({'availability_zone': None}, '2.90', 'availability_zone'),
    ):
        assert text in small.action(server, 'unshelve', body, expect=400, version=version).text
    assert small.status(server) == 'SHELVED_OFFLOADED'
    small.action(server, 'unshelve', {'availability_zone': 'west'}, version='2.77')
    assert (small.status(server), small.host_of(server)) == ('ACTIVE', 'gpu2')
    assert small.show(server)['OS-EXT-AZ:availability_zone'] == 'west'
    assert small.show(server, version='2.96')['pinned_availability_zone'] == 'west'
    # It is bound to that zone from now on, and to none when that is said.
    small.action(server, 'shelve')
    assert 'is not in' in small.action(server, 'unshelve', {'host': 'gpu1'}, expect=400, version='2.91').text
    small.action(server, 'unshelve', {'availability_zone': None, 'host': 'gpu1'}, version='2.91')
    assert (small.status(server), small.host_of(server)) == ('ACTIVE', 'gpu1')
    assert small.show(server, version='2.96')['pinned_availability_zone'] is None
    small.action(server, 'shelve')
    refused = small.action(server, 'unshelve', {'host': 'gpu1'}, expect=403, version='2.91', user='member')
    assert 'os-shelve:unshelve_to_host' in refused.text
    small.assert_clean()


def test_offloaded_servers_have_no_host_to_ask(small: Cloud) -> None:
    """What needs a host is refused with the field's text; state and name can be changed."""
    server = small.boot(small.flavor(gpus=1))
    small.action(server, 'shelve')
    for name, body in (
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('shelve', None),
        ('shelveOffload', None),
        ('createImage', {'name': 'x'}),
    ):
        refused = small.action(server, name, body, expect=409)
        assert 'while it is in vm_state shelved_offloaded' in refused.text, refused.text
    assert small.action(server, 'os-getConsoleOutput', {}, expect=409)
    for host in small.computes:
        small.computes[host].guests.sync()
        small.computes[host].node.update()
    assert small.status(server) == 'SHELVED_OFFLOADED'
    small.action(server, 'os-resetState', {'state': 'error'})
    assert small.status(server) == 'ERROR'
    small.assert_clean()
    small.request('DELETE', f'/servers/{server}')
    small.settle()
    assert small.images.made == {}
    small.assert_empty()
