"""Servers with accelerators of Cyborg: boot, start, delete, moves, and what is refused.

``tests/fixtures/cyborg.py`` plays Cyborg; ``tests/integration/test_cyborg.py`` has the real one.
"""

from __future__ import annotations

import functools
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.errors import MigrationError
from tests.fixtures import places
from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.hosts import pci_device
from tests.fixtures.mdev import NVIDIA35, Bus, mdev_bus, mdev_card
from tests.flows.cases import bring_back, force_down, lose_host, silent_hosts

# Each host has two cards that Cyborg gives away, and one whose parts it does.
CARDS, PARTED, OTHER = ('0000:21:00.0', '0000:22:00.0'), '0000:84:00.0', 'nvidia-36'
DEVICES = [
    *(pci_device(card, '10ee', '5020', '0x120000') for card in CARDS),
    mdev_card(PARTED, {NVIDIA35: 2, OTHER: 2}),
]
HOSTS = ('gpu1', 'gpu2')
ERROR = 'Failed to bind accelerator requests for instance'


class Accelerated:
    """A cloud with Cyborg. ``told``: the codes of the compute API for each event that Cyborg told."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        self.cyborg = FakeCyborg()
        self.cloud = make_cloud(
            {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']},
            **{'devices': dict.fromkeys(HOSTS, DEVICES), 'cyborg': self.cyborg, **options},
        )
        self.told: list[int] = []
        self.bus: Bus
        self.large = ''
        self.cyborg.notify = self.notify
        for host in HOSTS:
            self.cyborg.offer(
                self.cloud.placement, host, f'{host}_fpga', 'FPGA', [('PCI', card) for card in CARDS], ['CUSTOM_FAST']
            )
            self.cyborg.offer(self.cloud.placement, host, f'{host}_vgpu', 'VGPU', [('MDEV', PARTED)] * 2)
            self.cyborg.offer(
                self.cloud.placement, host, f'{host}_FakeDevice', 'CUSTOM_FAKE', [('TEST_PCI', '0000:0c:00.1')]
            )
        for name, group in (
            ('fpga', {'resources:FPGA': '1', 'trait:CUSTOM_FAST': 'required'}),
            ('two', {'resources:FPGA': '2'}),
            ('vgpu', {'resources:VGPU': '1'}),
            ('vgpus', {'resources:VGPU': '2'}),
            ('fake', {'resources:CUSTOM_FAKE': '1'}),
        ):
            self.cyborg.profiles[name] = [group]

    def notify(self, events: list[dict[str, str]]) -> None:
        response = self.cloud.request('POST', '/os-server-external-events', {'events': events}, version='2.82')
        self.told += [event['code'] for event in response.json['events']]

    def flavor(self, profile: str = 'fpga', **more: Any) -> str:
        return self.cloud.flavor(**{'accel:device_profile': profile}, **more)

    def boot(self, profile: str = 'fpga', **more: Any) -> str:
        server = self.cloud.boot(self.flavor(profile), **more)
        assert self.cloud.status(server) == 'ACTIVE', self.cloud.story(server)
        return server

    def delete(self, server: str) -> None:
        self.cloud.ok('DELETE', f'/servers/{server}')
        self.cloud.settle()

    def assert_empty(self) -> None:
        """No server is left, and nothing of one in Cyborg either."""
        self.cloud.assert_empty()
        assert (self.cyborg.requests, self.cyborg.held()) == ({}, [])

    def of(self, holder: str) -> list[dict[str, Any]]:
        return [one for one in self.cyborg.requests.values() if one['instance_uuid'] == holder]

    def fault(self, server: str) -> str:
        assert self.cloud.status(server) == 'ERROR', self.cloud.story(server)
        message: str = self.cloud.show(server)['fault']['message']
        return message

    def asked(self, method: str) -> int:
        """How often Cyborg was asked so."""
        return [each for each, _ in self.cyborg.asked].count(method)

    def await_asked(self, method: str, times: int) -> None:
        """Until Cyborg was asked so that often."""
        end = time.monotonic() + 30
        while self.asked(method) < times:
            assert time.monotonic() < end
            time.sleep(0.01)

    def await_look(self, times: int = 1) -> None:
        """Until a host has looked that often whether its server's requests are bound."""
        end = time.monotonic() + 30
        while sum('bind_state' in path for _, path in self.cyborg.asked) < times:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def accelerated(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Accelerated:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return Accelerated(make_cloud)


def test_a_boot_asks_binds_and_attaches(accelerated: Accelerated) -> None:
    """A boot reads the device profile as the user, makes accelerator requests and binds them to the device that
    Placement chose, before the host builds. The card is in the guest's XML. A delete frees the card and deletes the
    requests."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = cloud.boot(cloud.flavor(**{'accel:device_profile': 'fpga'}), user='demo')
    host = cloud.host_of(server)
    # The host asks how many the profile asks for, too.
    assert [method for method, _ in cyborg.asked] == ['GET', 'POST', 'PATCH', 'GET', 'GET']
    assert cyborg.asked[0][1] == '/device_profiles?name=fpga'
    (request,) = accelerated.of(server)
    held = cloud.placement.allocations()[server]
    assert held[f'{host}_fpga'] == {'FPGA': 1}
    assert (request['state'], request['hostname']) == ('Bound', host)
    assert request['project_id'] == cloud.show(server)['tenant_id']
    assert cloud.hostdevs(server) == [CARDS[0]] and cloud.owned(server) == []
    assert 'managed="yes"' in cloud.xml(server).replace("'", '"')
    # Cyborg told of it when the server had no host yet: it takes 422 for that.
    assert accelerated.told == [422]
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def test_two_accelerators_and_a_gpu(accelerated: Accelerated) -> None:
    """A profile with a group of two units gets two requests of one provider. A guest may have accelerators and a
    GPU of the flavor at once."""
    cloud = accelerated.cloud
    server = cloud.boot(accelerated.flavor('two', gpus=1))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    gpu = [name.split()[1] for name in cloud.owned(server)]
    assert len(gpu) == 1 and cloud.hostdevs(server) == sorted([*gpu, *CARDS])
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def test_handles_of_other_kinds(accelerated: Accelerated) -> None:
    """An attach handle of type MDEV becomes a mediated device with the handle's uuid. Handles of Cyborg's fake
    driver (TEST_PCI) are bound and not attached."""
    with mdev_bus():
        cloud = accelerated.cloud
        parted, fake = accelerated.boot('vgpu'), accelerated.boot('fake')
        (request,) = accelerated.of(parted)
        assert cloud.hostdevs(parted) == [request['attach_handle_uuid']] and cloud.owned(parted) == []
        assert cloud.hostdevs(fake) == [] and len(accelerated.of(fake)) == 1
        cloud.assert_clean()
        for server in (parted, fake):
            accelerated.delete(server)
        accelerated.assert_empty()


def test_what_keeps_a_server_on_its_host_keeps_its_accelerator(accelerated: Accelerated) -> None:
    """Stop, start, reboot, pause, rescue, rebuild, snapshot and lock leave the server with the same accelerator."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    before = accelerated.of(server)
    for name, body, status in (
        ('os-stop', None, 'SHUTOFF'),
        ('os-start', None, 'ACTIVE'),
        ('reboot', {'type': 'SOFT'}, 'ACTIVE'),
        ('reboot', {'type': 'HARD'}, 'ACTIVE'),
        ('pause', None, 'PAUSED'),
        ('unpause', None, 'ACTIVE'),
        ('rescue', None, 'RESCUE'),
        ('unrescue', None, 'ACTIVE'),
        ('rebuild', {'imageRef': IMAGE_ID}, 'ACTIVE'),
        ('createImage', {'name': 'i'}, 'ACTIVE'),
        ('lock', None, 'ACTIVE'),
        ('unlock', None, 'ACTIVE'),
    ):
        cloud.action(server, name, body)
        assert cloud.status(server) == status, (name, cloud.story(server))
        assert (cloud.hostdevs(server), accelerated.of(server)) == ([CARDS[0]], before), name
        cloud.assert_clean()
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    cloud.start_compute(host)
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == [CARDS[0]]
    accelerated.delete(server)
    accelerated.assert_empty()


# --- moves -----------------------------------------------------------------------------------------------------------
def check(accelerated: Accelerated, server: str, number: int) -> list[str]:
    """Guest, Cyborg and Placement say the same of a server that isn't in a move: its cards."""
    cloud = accelerated.cloud
    host, found = cloud.host_of(server), cloud.hostdevs(server)
    assert len(found) == number and set(found) <= set(CARDS)
    assert accelerated.cyborg.given() == [f'{host} {card}' for card in found]
    assert cloud.placement.allocations()[server].get(f'{host}_fpga', {}) == ({'FPGA': number} if number else {})
    assert len(accelerated.cyborg.requests) == number
    cloud.assert_clean()
    return found


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_resizes(accelerated: Accelerated, end: str) -> None:
    """Resizes from 0 to 1, 2, 1 and 0 accelerators work, whether they are confirmed or reverted first. Until then
    the server holds the accelerators of both flavors."""
    cloud = accelerated.cloud
    flavors = [cloud.flavor(), accelerated.flavor('fpga'), accelerated.flavor('two')]
    server, has = cloud.boot(flavors[0]), 0
    for number in (1, 2, 1, 0):
        for name in (end, 'confirmResize') if end == 'revertResize' else (end,):
            cloud.action(server, 'resize', {'flavorRef': flavors[number]})
            assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
            assert len(cloud.hostdevs(server)) == number and len(accelerated.cyborg.held()) == has + number
            cloud.assert_clean()
            # The host is booted meanwhile: the guest is there again with the new ones.
            host = cloud.host_of(server)
            cloud.crash_compute(host)
            cloud.start_compute(host)
            assert len(cloud.hostdevs(server)) == number
            cloud.action(server, name)
            assert cloud.status(server) == 'ACTIVE', cloud.story(server)
            if name == 'confirmResize':
                has = number
            check(accelerated, server, has)
    accelerated.delete(server)
    accelerated.assert_empty()


def test_what_moves_and_stays_off(accelerated: Accelerated) -> None:
    """Cold migration there and back, stop and start in between, suspend and resume keep one accelerator."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    first = cloud.host_of(server)
    for _ in range(2):
        cloud.action(server, 'migrate')
        cloud.action(server, 'confirmResize')
        for name, status in (
            ('os-stop', 'SHUTOFF'),
            ('os-start', 'ACTIVE'),
            ('suspend', 'SUSPENDED'),
            ('resume', 'ACTIVE'),
        ):
            cloud.action(server, name)
            assert cloud.status(server) == status, cloud.story(server)
        check(accelerated, server, 1)
    assert cloud.host_of(server) == first
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    cloud.start_compute(host)
    check(accelerated, server, 1)
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_delete_in_the_middle_of_a_resize(accelerated: Accelerated) -> None:
    cloud = accelerated.cloud
    server = accelerated.boot()
    cloud.action(server, 'resize', {'flavorRef': accelerated.flavor('two')})
    assert len(accelerated.cyborg.held()) == 3
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_resize_whose_devices_are_programmed(accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest runs at the source meanwhile; the event is about the migration, and finds the destination."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    monkeypatch.setattr('kilonova.compute.accelerators.LOOK', 3600)
    server = accelerated.boot()
    source = cloud.host_of(server)
    cyborg.programming = True
    response = cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': accelerated.flavor('two')}})
    assert response.status_int == 202
    accelerated.await_look(2)
    assert cloud.computes[source].host.driver.guests.get_info(Namespace(uuid=server)) == 1
    accelerated.told.clear()
    cyborg.program()
    cloud.settle()
    assert cloud.status(server) == 'VERIFY_RESIZE' and accelerated.told == [200, 200]
    cloud.action(server, 'confirmResize')
    check(accelerated, server, 2)


def test_a_resize_that_gets_no_device(accelerated: Accelerated) -> None:
    """The server is as it was, and holds what it held."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot()
    before = check(accelerated, server, 1)
    for handles in cyborg.handles.values():
        for handle in handles:
            handle.holder = handle.holder or 'somebody'
    cloud.action(server, 'resize', {'flavorRef': accelerated.flavor('two')})
    assert cloud.status(server) == 'ACTIVE' and ERROR in str(cloud.story(server))
    assert check(accelerated, server, 1) == before


def test_a_destination_that_fails(accelerated: Accelerated) -> None:
    """The source starts the guest again with its card."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    before, source = check(accelerated, server, 1), cloud.host_of(server)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError('no')

    (other,) = set(HOSTS) - {source}
    cloud.computes[other].host.driver.moves.finish_migration = fail
    cloud.action(server, 'resize', {'flavorRef': accelerated.flavor('two')})
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    assert check(accelerated, server, 1) == before


def test_evacuation_and_back(accelerated: Accelerated) -> None:
    """An evacuated server gets accelerators of its new host, and those of the dead host are free at once. A shelved
    and unshelved server gets others again."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    dead = cloud.host_of(server)
    lose_host(cloud, dead)
    assert cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}).status_int == 200
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'SHUTOFF', cloud.story(server)
    assert cloud.request('POST', f'/servers/{server}/action', {'os-start': None}).status_int == 202
    cloud.settle(kinds_left=('release',))
    assert len(accelerated.cyborg.requests) == 1
    bring_back(cloud, dead)
    assert cloud.host_of(server) != dead
    check(accelerated, server, 1)
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED' and accelerated.cyborg.requests == {}
    cloud.assert_clean()
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    check(accelerated, server, 1)
    accelerated.delete(server)
    accelerated.assert_empty()


def test_an_evacuation_needs_the_profile(accelerated: Accelerated) -> None:
    """Cyborg makes requests by the name of a profile. The refusal names it, and with the profile the server moves."""
    cloud, server = accelerated.cloud, accelerated.boot()
    dead = cloud.host_of(server)
    lose_host(cloud, dead)
    groups = accelerated.cyborg.profiles.pop('fpga')
    answer = cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}})
    assert (answer.status_int, answer.json['badRequest']['message']) == (
        400,
        'Device profile name fpga: Expected 1 device profile but got nothing.',
    )
    accelerated.cyborg.profiles['fpga'] = groups
    assert cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}).status_int == 200
    cloud.settle(kinds_left=('release',))
    assert cloud.host_of(server) != dead, cloud.story(server)
    assert len(accelerated.cyborg.requests) == 1


def test_an_unshelve_waits_for_what_is_still_to_give_back(accelerated: Accelerated) -> None:
    """Or a release that comes late would take the new ones."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot()
    speak = silence(accelerated, 'DELETE')
    assert cloud.request('POST', f'/servers/{server}/action', {'shelve': None}).status_int == 202
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'SHELVED_OFFLOADED' and len(cyborg.held()) == 1
    assert cloud.request('POST', f'/servers/{server}/action', {'unshelve': None}).status_int == 202
    made, tries = accelerated.asked('POST'), accelerated.asked('DELETE')
    accelerated.await_asked('DELETE', tries + 2)
    assert accelerated.asked('POST') == made
    speak()
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    check(accelerated, server, 1)


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize_on_one_host(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Both ends are there: each has its own."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    accelerated = Accelerated(make_cloud, allow_resize_to_same_host=True)
    cloud = accelerated.cloud
    server = accelerated.boot()
    before, host = check(accelerated, server, 1), cloud.host_of(server)
    (other,) = [row for row in cloud.ok('GET', '/os-services?binary=nova-compute')['services'] if row['host'] != host]
    cloud.ok('PUT', f'/os-services/{other["id"]}', {'status': 'disabled'})
    cloud.action(server, 'resize', {'flavorRef': accelerated.flavor('fpga', ram=1024)})
    assert (cloud.status(server), cloud.host_of(server)) == ('VERIFY_RESIZE', host), cloud.story(server)
    assert set(cloud.hostdevs(server)) == set(CARDS) - set(before)
    cloud.action(server, end)
    after = check(accelerated, server, 1)
    assert (after == before) is (end == 'revertResize')
    accelerated.delete(server)
    accelerated.assert_empty()


def test_several_at_once(accelerated: Accelerated) -> None:
    """One question to the scheduler, requests of their own."""
    cloud = accelerated.cloud
    cloud.create(accelerated.flavor(), min_count=3, max_count=3)
    cloud.settle()
    servers = [row['id'] for row in cloud.ok('GET', '/servers')['servers']]
    given = [f'{cloud.host_of(server)} {address}' for server in servers for address in cloud.hostdevs(server)]
    assert len(servers) == 3 and sorted(given) == accelerated.cyborg.given() and len(set(given)) == 3
    cloud.assert_clean()


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_move_ends_while_cyborg_is_silent(
    accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """What is to give back waits, nothing else; the audit doesn't count it."""
    monkeypatch.setattr('kilonova.conductor.audit.compare.PAUSE', 0.0)
    cloud = accelerated.cloud
    server = accelerated.boot()
    cloud.action(server, 'resize', {'flavorRef': accelerated.flavor('two')})
    speak = silence(accelerated, 'DELETE')
    assert cloud.request('POST', f'/servers/{server}/action', {end: None}).status_int < 300
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and len(accelerated.cyborg.held()) == 3
    report = cloud.audit()
    assert (report.disagreements, report.in_flight) == ([], [f'release of {server}'])
    speak()
    cloud.settle()
    check(accelerated, server, 2 if end == 'confirmResize' else 1)


# --- live migration --------------------------------------------------------------------------------------------------
LIVE = {'host': None, 'block_migration': 'auto'}


@pytest.fixture
def parted(accelerated: Accelerated) -> Iterator[Accelerated]:
    """Cards of hosts can be parted; ``bus`` says into what they are."""
    with mdev_bus() as accelerated.bus:
        yield accelerated


def check_parts(accelerated: Accelerated, server: str, number: int) -> list[str]:
    """Guest, Cyborg and Placement say the same of a server at rest: its mediated devices."""
    cloud = accelerated.cloud
    host, found = cloud.host_of(server), cloud.hostdevs(server)
    assert accelerated.cyborg.given() == [f'{host} {uuid}' for uuid in found]
    assert (len(found), len(accelerated.cyborg.requests)) == (number, number)
    assert cloud.placement.allocations()[server][f'{host}_vgpu'] == {'VGPU': number}
    assert len(cloud.placement.allocations()) == 1
    cloud.assert_clean()
    return found


def live_migrate(accelerated: Accelerated, server: str) -> None:
    accelerated.cloud.action(server, 'os-migrateLive', LIVE, version='2.104')


def test_live_migration_exchanges_mediated_devices(parted: Accelerated) -> None:
    """A live migration there and back replaces the mediated devices by those of the destination. Until its end the
    server holds those of both hosts. Later reboots, and starts after a boot of the host, use the new devices."""
    cloud = parted.cloud
    server = parted.boot('vgpus')
    first, before = cloud.host_of(server), check_parts(parted, server, 2)
    held: list[int] = []

    def migrate(real: Callable[..., None], instance: Any, offer: Any, told: Any) -> None:
        held.append(len(parted.cyborg.held()))
        assert len(parted.bus.made(offer['host'])) == 2
        real(instance, offer, told)

    for _ in range(2):
        source = cloud.host_of(server)
        migrate_as(parted, migrate)
        live_migrate(parted, server)
        assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != source, cloud.story(server)
        after = check_parts(parted, server, 2)
        assert {one['uuid'] for one in parted.of(server)} == set()
        for name, body in (('reboot', {'type': 'HARD'}), ('os-stop', None), ('os-start', None)):
            cloud.action(server, name, body)
            assert check_parts(parted, server, 2) == after
        cloud.crash_compute(cloud.host_of(server))
        cloud.start_compute(cloud.host_of(server))
        assert check_parts(parted, server, 2) == after
    assert (cloud.host_of(server), after, held) == (first, before, [4, 4])
    parted.delete(server)
    parted.assert_empty()


def test_a_live_migration_with_handles_of_the_fake_driver(accelerated: Accelerated) -> None:
    """Its guest has nothing that could stay behind; the requests go along all the same."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot('fake')
    source = cloud.host_of(server)
    live_migrate(accelerated, server)
    host = cloud.host_of(server)
    assert host != source and cloud.placement.allocations()[server][f'{host}_FakeDevice'] == {'CUSTOM_FAKE': 1}
    assert [one['hostname'] for one in cyborg.requests.values()] == [host] and accelerated.of(server) == []
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def migrate_as(accelerated: Accelerated, act: Callable[..., Any]) -> None:
    """From now on sources carry guests by ``act(real, instance, offer, told)``."""
    for compute in accelerated.cloud.computes.values():
        live = compute.host.driver.live_migrations
        live.migrate = functools.partial(act, live.migrate)


def test_what_is_refused(parted: Accelerated) -> None:
    """A live migration is refused if a handle has the type PCI, a request is not bound, or no request is found. The
    refusal sends no message to a host and asks Cyborg for the profile and the requests only. If Cyborg does not
    answer, the status is 503."""
    cloud, cyborg = parted.cloud, parted.cyborg
    said = 'Feature not supported with instances that have accelerators: accelerator request %s'
    server = parted.boot()
    (request,) = parted.of(server)

    def refused(status: int = 400) -> str:
        asked = len(cyborg.asked)
        response = cloud.action(server, 'os-migrateLive', LIVE, expect=status)
        assert [path.partition('=')[0] for _, path in cyborg.asked[asked : asked + 2]] == [
            '/device_profiles?name',
            '/accelerator_requests?instance',
        ]
        (body,) = response.json.values()
        return str(body['message'])

    assert (
        refused()
        == (
            f'{said} has an attach handle of type PCI, which cannot be live migrated; '
            'only those of types MDEV and TEST_PCI can.'
        )
        % request['uuid']
    )
    parted.delete(server)
    server = parted.boot('vgpu')
    (request,) = parted.of(server)
    request['state'] = 'BindFailed'
    assert refused() == f'{said} is in the state BindFailed, not Bound.' % request['uuid']
    request.update(state='Bound', instance_uuid=None)
    assert refused() == f'Failed to get accelerator requests: no accelerator is bound to {server}'
    request['instance_uuid'] = server

    def broken(method: str, path: str) -> None:
        if path == '/accelerator_requests':
            raise cyborg.broken()

    cyborg.before = broken
    assert 'The accelerator service does not answer' in refused(503)
    cyborg.before = None
    assert cloud.status(server) == 'ACTIVE'
    check_parts(parted, server, 1)


def stays(
    parted: Accelerated, number: int, disturb: Callable[[str], Any], said: str, kinds_left: tuple[str, ...] = ()
) -> None:
    """A live migration that ``disturb(source)`` keeps from its end leaves the server as it was, and says why; what that
    returns is called when it has failed."""
    cloud = parted.cloud
    server = parted.boot('vgpus' if number == 2 else 'vgpu')
    source, before = cloud.host_of(server), check_parts(parted, server, number)
    end = disturb(source)
    assert cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': LIVE}).status_int == 202
    cloud.settle(kinds_left=kinds_left)
    cloud.on_message = None
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source), cloud.story(server)
    assert said in str(cloud.story(server))
    if end is not None:
        end()
        cloud.settle()
    assert check_parts(parted, server, number) == before
    parted.delete(server)
    parted.assert_empty()


def at(cloud: Cloud, wanted: str, act: Callable[[], object]) -> None:
    """``act()`` before the first message of this method."""
    left = [act]

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if method == wanted and left:
            left.pop()()
        return deliver()

    cloud.on_message = on_message


def test_a_destination_without_a_free_handle(parted: Accelerated) -> None:
    def disturb(source: str) -> Callable[[], None]:
        free = [handle for handles in parted.cyborg.handles.values() for handle in handles if not handle.holder]

        def hold(holder: str) -> None:
            for handle in free:
                handle.holder = holder

        hold('somebody')
        return lambda: hold('')

    stays(parted, 1, disturb, ERROR)


@pytest.mark.parametrize('state', ['Bound', 'BindFailed'])
def test_a_live_migration_whose_devices_are_programmed(
    parted: Accelerated, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The guest runs at the source meanwhile; the event is about the migration, and finds the destination."""
    cloud, cyborg = parted.cloud, parted.cyborg
    monkeypatch.setattr('kilonova.compute.accelerators.LOOK', 3600)
    server = parted.boot('vgpus')
    source, before = cloud.host_of(server), check_parts(parted, server, 2)
    cyborg.programming = True
    assert cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': LIVE}).status_int == 202
    parted.await_look(2)
    assert cloud.computes[source].host.driver.guests.get_info(Namespace(uuid=server)) == 1
    parted.told.clear()
    cyborg.program(state)
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and parted.told == [200, 200]
    after = check_parts(parted, server, 2)
    assert (cloud.host_of(server) == source, after == before) == ((state != 'Bound',) * 2)
    assert state == 'Bound' or 'is BindFailed' in str(cloud.story(server))


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'attach_handle_type': 'PCI'}, 'is a PCI function of its host'),
        ({'attach_handle_type': 'TEST_PCI'}, 'no device like'),
        ({'asked_type': OTHER}, 'no device like'),
        ({'function': '7'}, 'are no longer on its host'),
    ],
)
def test_a_destination_with_another_kind_of_device(parted: Accelerated, change: dict[str, Any], said: str) -> None:
    """It turns up when the destination looks."""

    def turn_up(source: str) -> None:
        (one,) = [one for one in parted.cyborg.requests.values() if one['hostname'] != source]
        info = one['attach_handle_info']
        one.update(change, attach_handle_info={**info, **change})

    step = 'check_can_live_migrate_destination'
    stays(parted, 1, lambda source: at(parted.cloud, step, lambda: turn_up(source)), said)


def test_a_destination_with_another_card(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """Types of its mediated devices may be called the same."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    devices = {
        host: [mdev_card(PARTED, {NVIDIA35: 2}, product=product)]
        for host, product in (('gpu1', '13f2'), ('gpu2', '1eb8'))
    }
    with mdev_bus():
        stays(Accelerated(make_cloud, devices=devices), 1, lambda source: None, 'no device like')


def test_a_profile_that_asks_for_more_by_now(parted: Accelerated) -> None:
    """The guest has no place for a second one."""

    def disturb(source: str) -> None:
        parted.cyborg.profiles['vgpu'] = [{'resources:VGPU': '2'}]

    stays(parted, 1, disturb, 'but the guest has no such device')


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'attach_handle_type': 'PCI'}, 'is a PCI function of its host'),
        ({'function': '7'}, 'which does not exist on its host'),
    ],
)
def test_a_source_whose_device_turns_out_to_stay(parted: Accelerated, change: dict[str, Any], said: str) -> None:
    """It was changed after the request was accepted."""

    def disturb(source: str) -> Callable[[], None]:
        (one,) = parted.cyborg.requests.values()
        before = dict(one)
        at(
            parted.cloud,
            'check_can_live_migrate_source',
            lambda: one.update(change, attach_handle_info={**before['attach_handle_info'], **change}),
        )
        return lambda: one.update(before)

    stays(parted, 1, disturb, said)


def fail(*args: Any, **kwargs: Any) -> None:
    raise MigrationError(reason='boom')


@pytest.mark.parametrize('silent', [False, True])
@pytest.mark.parametrize('step', ['prepare', 'migrate'])
def test_a_live_migration_that_fails(parted: Accelerated, step: str, silent: bool) -> None:
    """The new requests go, the old ones stay. ``silent``: Cyborg is; the undo doesn't wait for it."""

    def disturb(source: str) -> Callable[[], None] | None:
        for compute in parted.cloud.computes.values():
            setattr(compute.host.driver.live_migrations, step, fail)
        return silence(parted, 'DELETE') if silent else None

    stays(parted, 2, disturb, 'boom', ('release',) if silent else ())


def abort(parted: Accelerated, server: str) -> Callable[..., None]:
    """A guest stands on its way, and a user aborts that."""

    def act(real: Callable[..., None], instance: Any, offer: Any, told: Any) -> None:
        (row,) = parted.cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
        assert parted.cloud.request('DELETE', f'/servers/{server}/migrations/{row["id"]}').status_int == 202
        for _ in range(3000):
            told(
                dict.fromkeys(
                    (
                        'memory_total',
                        'memory_processed',
                        'memory_remaining',
                        'disk_total',
                        'disk_processed',
                        'disk_remaining',
                    ),
                    0,
                )
            )
            time.sleep(0.01)

    return act


def test_a_live_migration_that_is_aborted(parted: Accelerated) -> None:
    cloud = parted.cloud
    server = parted.boot('vgpus')
    source, before = cloud.host_of(server), check_parts(parted, server, 2)
    migrate_as(parted, abort(parted, server))
    live_migrate(parted, server)
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    (row,) = cloud.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    assert row['status'] == 'cancelled' and check_parts(parted, server, 2) == before


@pytest.mark.parametrize('late', [False, True])
def test_a_delete_in_the_middle_of_a_live_migration(parted: Accelerated, late: bool) -> None:
    """``late``: the guest has gone."""
    server = parted.boot('vgpus')

    def act(real: Callable[..., None], *args: Any) -> None:
        if late:
            real(*args)
        assert parted.cloud.request('DELETE', f'/servers/{server}').status_int == 204
        if not late:
            real(*args)

    migrate_as(parted, act)
    live_migrate(parted, server)
    parted.assert_empty()


@pytest.mark.parametrize('ended', [False, True])
def test_a_live_migration_ends_while_cyborg_is_silent(parted: Accelerated, ended: bool) -> None:
    """What is to give back waits, nothing else. ``ended``: somebody ended it when the guest had gone."""
    cloud = parted.cloud
    server = parted.boot('vgpus')
    source = cloud.host_of(server)
    speak: list[Callable[[], None]] = []

    def act(real: Callable[..., None], *args: Any) -> None:
        real(*args)
        speak.append(silence(parted, 'DELETE'))
        if ended:
            fail()

    migrate_as(parted, act)
    assert cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': LIVE}).status_int == 202
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != source, cloud.story(server)
    assert len(parted.cyborg.held()) == 4
    speak[0]()
    cloud.settle()
    check_parts(parted, server, 2)


def test_what_no_flavor_can_ask_for(accelerated: Accelerated, make_cloud: Callable[..., Cloud]) -> None:
    cloud = accelerated.cloud
    accelerated.cyborg.profiles['odd'] = [{'resources:FPGA': '900'}]
    for profile, said in (('none', 'got nothing'), ('fpga,two', "'fpga,two'"), ('odd', '1 to 64 accelerators')):
        response = cloud.request(
            'POST',
            '/servers',
            {
                'server': {
                    'name': 's',
                    'flavorRef': accelerated.flavor(profile),
                    'imageRef': IMAGE_ID,
                    'networks': 'none',
                }
            },
        )
        assert response.status_int == 400 and said in response.json['badRequest']['message']
    without = make_cloud()
    response = without.request(
        'POST',
        '/servers',
        {
            'server': {
                'name': 's',
                'flavorRef': without.flavor(**{'accel:device_profile': 'fpga'}),
                'imageRef': IMAGE_ID,
                'networks': 'none',
            }
        },
    )
    assert response.status_int == 400
    assert response.json['badRequest']['message'].startswith('There is no accelerator service')


def test_a_query_that_no_web_server_reads_ends_the_create(
    accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('kilonova.clients.candidates.MOST', 20)
    server = accelerated.cloud.boot(accelerated.flavor())
    assert 'Ask for fewer devices, ports or accelerators' in accelerated.fault(server)


# --- waiting for a device that is programmed -------------------------------------------------------------------------
@pytest.mark.parametrize('lost', [False, True])
def test_a_build_waits_for_the_event(accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """A build waits until Cyborg's event tells that the device is programmed. If the event is lost, the host finds
    out by polling."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    monkeypatch.setattr('kilonova.compute.accelerators.LOOK', 0.05 if lost else 3600)
    cyborg.programming = True
    server = cloud.create(accelerated.flavor())['server']['id']
    accelerated.await_look()
    assert cloud.status(server) == 'BUILD'
    if lost:
        cyborg.notify = None
    cyborg.program()
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == [CARDS[0]]
    # By now it has a host.
    assert accelerated.told == ([] if lost else [200])
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_binding_that_fails_late(accelerated: Accelerated) -> None:
    """No other host is tried, and nothing is left; Placement has it free again."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    cyborg.programming = True
    server = cloud.create(accelerated.flavor())['server']['id']
    accelerated.await_look()
    cyborg.program('BindFailed')
    cloud.settle()
    assert ERROR in accelerated.fault(server) and 'is BindFailed' in accelerated.fault(server)
    assert (cyborg.requests, cloud.placement.allocations()) == ({}, {})
    cloud.assert_clean()


def test_a_binding_that_takes_too_long(make_cloud: Callable[..., Cloud]) -> None:
    """A binding that takes longer than arq_binding_timeout fails the build. The fault says so, and the requests are
    deleted."""
    accelerated = Accelerated(make_cloud, arq_binding_timeout=1)
    accelerated.cyborg.programming = True
    server = accelerated.cloud.boot(accelerated.flavor())
    assert 'not bound after 1 s' in accelerated.fault(server)
    assert accelerated.cyborg.requests == {}
    accelerated.cloud.assert_clean()


# --- what goes wrong -------------------------------------------------------------------------------------------------
def test_a_device_that_only_placement_has_free(accelerated: Accelerated) -> None:
    """If Placement has a free device and Cyborg no free attach handle, the binding fails, the server goes to ERROR,
    and nothing stays allocated."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    for handles in cyborg.handles.values():
        for handle in handles:
            handle.holder = 'somebody'
    server = cloud.boot(accelerated.flavor())
    assert accelerated.fault(server).startswith(f'{ERROR} {server}: AttachHandle not found')
    assert (cyborg.requests, cloud.placement.allocations()) == ({}, {})
    cloud.assert_clean()


def test_no_more_than_there_are(accelerated: Accelerated) -> None:
    cloud = accelerated.cloud
    for _ in range(4):
        accelerated.boot()
    full = cloud.boot(accelerated.flavor())
    assert 'No valid host' in accelerated.fault(full)
    assert len(accelerated.cyborg.held()) == 4
    cloud.assert_clean()


def test_a_host_that_refuses(accelerated: Accelerated) -> None:
    """The alternate gets requests of its own; those of the first are deleted after its guest is gone."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    refused: list[str] = []

    def refuse(kind: str, topic: str, server: str | None, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if method == 'build_and_run_instance' and not refused:
            refused.append(server or '')
            cloud.computes[server or ''].host.driver.guests.spawn = _fail
        return deliver()

    def _fail(*args: Any, **kwargs: Any) -> None:
        raise OSError('disk full')

    cloud.on_message = refuse
    server = accelerated.boot()
    assert [cloud.host_of(server)] != refused
    assert [one['hostname'] for one in cyborg.requests.values()] == [cloud.host_of(server)]
    assert accelerated.asked('POST') == 2
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def silence(accelerated: Accelerated, *methods: str, after: bool = False) -> Callable[[], None]:
    """Cyborg doesn't answer these; what it returns ends that."""

    def broken(method: str, path: str) -> None:
        if method in methods:
            raise accelerated.cyborg.broken()

    name = 'after' if after else 'before'
    setattr(accelerated.cyborg, name, broken)
    return lambda: setattr(accelerated.cyborg, name, None)


@pytest.mark.parametrize(('method', 'after'), [('POST', False), ('PATCH', False), ('PATCH', True)])
def test_a_boot_waits_while_cyborg_is_silent(accelerated: Accelerated, method: str, after: bool) -> None:
    """It goes on when Cyborg is back, and what was bound without an answer is found."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    speak = silence(accelerated, method, after=after)
    server = cloud.create(accelerated.flavor())['server']['id']
    if after:
        # Profile, before the binding, and when it is tried again: then it finds what it bound, and goes on.
        accelerated.await_asked('GET', 3)
    else:
        accelerated.await_asked(method, 2)
        assert cloud.status(server) == 'BUILD'
    speak()
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and len(cyborg.requests) == 1
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_conductor_that_ends_between_making_and_binding(accelerated: Accelerated) -> None:
    """The next one binds what was made, and makes none."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg

    def end(method: str, path: str) -> None:
        if method == 'PATCH':
            cyborg.before = None
            cloud.crash_conductor()
            raise cyborg.broken()

    cyborg.before = end
    server = cloud.create(accelerated.flavor())['server']['id']
    accelerated.await_asked('PATCH', 1)
    cloud.start_conductor()
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert (accelerated.asked('POST'), len(cyborg.requests)) == (1, 1)
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_delete_does_not_wait_for_cyborg(accelerated: Accelerated) -> None:
    """A server is deleted although Cyborg does not answer. A pending release deletes its accelerator requests when
    Cyborg answers again."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot()
    speak = silence(accelerated, 'DELETE')
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'GONE' and cyborg.held() == [server]
    assert [row['kind'] for row in cloud.rows()] == ['release']
    speak()
    cloud.settle()
    accelerated.assert_empty()


def test_a_build_that_fails_does_not_wait_for_cyborg(accelerated: Accelerated) -> None:
    """By uuid: a release that comes late takes nothing from the server."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    for compute in cloud.computes.values():
        compute.host.conf.set_override('arq_binding_timeout', 1)
        compute.host.accelerators._timeout = 0.2
    cyborg.programming = True
    speak = silence(accelerated, 'DELETE')
    server = cloud.create(accelerated.flavor())['server']['id']
    cloud.settle(kinds_left=('release',))
    assert 'not bound after' in accelerated.fault(server) and len(cyborg.requests) == 1
    speak()
    cloud.settle()
    assert cyborg.requests == {}
    accelerated.delete(server)
    accelerated.assert_empty()


def test_a_delete_while_the_host_is_down(accelerated: Accelerated) -> None:
    """A delete while the host is down deletes the accelerator requests at once. When the host is back, nothing of
    the server is left there."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    host = cloud.host_of(server)
    lose_host(cloud, host)
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'GONE' and accelerated.cyborg.requests == {}
    bring_back(cloud, host)
    accelerated.assert_empty()


@pytest.mark.parametrize('ends', ['back', 'forced down'])
def test_a_delete_while_the_host_is_silent(
    accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its guest may run: nobody else gets the accelerator before it is off."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    host, down = cloud.host_of(server), silent_hosts(monkeypatch)
    cloud.crash_compute(host)
    down.add(host)
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'GONE' and accelerated.cyborg.held() == [server]
    if ends == 'forced down':
        force_down(cloud, host, True)
        end = time.monotonic() + 30
        while accelerated.cyborg.held():
            assert time.monotonic() < end
            cloud.go_on_with_releases()
            time.sleep(0.01)
    down.clear()
    bring_back(cloud, host)
    accelerated.assert_empty()


def test_a_start_while_cyborg_is_silent(accelerated: Accelerated) -> None:
    """A guest without its accelerators isn't started; the fault says why."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    cloud.action(server, 'os-stop')
    speak = silence(accelerated, 'GET')
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'SHUTOFF'
    assert 'The accelerator service does not answer' in str(cloud.story(server))
    speak()
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == [CARDS[0]]


# --- each request to Cyborg gets lost --------------------------------------------------------------------------------
def resize_and(end: str) -> Callable[[Accelerated, str], None]:
    def act(accelerated: Accelerated, server: str) -> None:
        accelerated.cloud.action(server, 'resize', {'flavorRef': accelerated.large})
        if accelerated.cloud.status(server) == 'VERIFY_RESIZE':
            accelerated.cloud.action(server, end)

    return act


def shelve_and_back(accelerated: Accelerated, server: str) -> None:
    accelerated.cloud.action(server, 'shelve')
    accelerated.cloud.action(server, 'unshelve')


def live_migrate_it(accelerated: Accelerated, server: str) -> None:
    live_migrate(accelerated, server)
    assert accelerated.of(server) == [], accelerated.cloud.story(server)


ACTS: dict[str, Callable[[Accelerated, str], None]] = {
    'boot': lambda accelerated, server: None,
    'confirm': resize_and('confirmResize'),
    'revert': resize_and('revertResize'),
    'shelve and unshelve': shelve_and_back,
    'delete': Accelerated.delete,
    'live migration': live_migrate_it,
}


@pytest.mark.parametrize('name', ACTS)
def test_each_request_that_gets_lost(parted: Accelerated, name: str) -> None:
    """One after the other, on its way to Cyborg and on the way back. The server comes to what it comes to without; of
    requests that Cyborg made, and whose answer was lost, it still has nothing that holds a device."""
    accelerated, cloud, cyborg = parted, parted.cloud, parted.cyborg
    small = accelerated.flavor('vgpu' if name == 'live migration' else 'fpga')
    accelerated.large = accelerated.flavor('two')
    for way in ('before', 'after'):
        number, more = places.first(), True
        while more:
            server = '' if name == 'boot' else cloud.boot(small)
            begin, lost = len(cyborg.asked), []

            def lose(method: str, path: str, at: int = begin + number + 1, lost: list[str] = lost) -> None:
                # The profile is the front door's, which says 503.
                if len(cyborg.asked) == at and not path.startswith('/device_profiles'):
                    lost.append(method)
                    raise cyborg.broken()

            setattr(cyborg, way, lose)
            server = server or cloud.boot(small)
            ACTS[name](accelerated, server)
            setattr(cyborg, way, None)
            # Of those that are looked at only the profile's is let through.
            more = bool(lost) or len(cyborg.asked) > begin + number
            assert (cloud.status(server) == 'GONE') is (name == 'delete'), (way, number, cloud.story(server))
            assert len(cyborg.given()) == {'confirm': 2, 'delete': 0}.get(name, 1), (way, cyborg.asked[begin:])
            if name != 'delete':
                assert cloud.hostdevs(server) == [one.split()[1] for one in cyborg.given()]
                accelerated.delete(server)
            for uuid in [uuid for uuid, one in cyborg.requests.items() if one['instance_uuid'] is None]:
                assert (way, lost, cyborg.requests[uuid]['state']) == ('after', ['POST'], 'Initial')
                cyborg.client.delete([uuid])
            accelerated.assert_empty()
            number += places.STEP


def test_requests_that_were_made_for_nothing_go(accelerated: Accelerated) -> None:
    """Of our own account, hours later; what is bound, or another's, stays."""
    cyborg = accelerated.cyborg
    server = accelerated.boot()
    (bound,), (old,), (new,), (other,) = (
        accelerated.of(server),
        *([cyborg.requests[one.uuid] for one in cyborg.client.create('fpga')] for _ in range(3)),
    )
    for one in (bound, old, other):
        one['created_at'] = '2026-01-01T00:00:00+00:00'
    other['project_id'] = '6' * 32
    bound['project_id'] = old['project_id']
    (conductor,) = accelerated.cloud.conductors
    assert conductor.expiry.drop_accelerators() == 1
    assert set(cyborg.requests) == {one['uuid'] for one in (bound, new, other)}
    speak = silence(accelerated, 'GET')
    assert conductor.expiry.drop_accelerators() == 0
    speak()


def test_the_audit_finds_what_cyborg_and_servers_disagree_about(
    accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('kilonova.conductor.audit.compare.PAUSE', 0.0)
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot()
    (lost,) = cyborg.client.create('fpga')
    assert cloud.audit().disagreements == [f'accelerators: requests {lost.uuid} belong to no server']
    cyborg.client.delete([lost.uuid])
    (request,) = accelerated.of(server)
    request['instance_uuid'] = gone = server[:-4] + 'ffff'
    found = cloud.audit().disagreements
    assert f'accelerators: requests {request["uuid"]} belong to {gone}, which is not a server' in found
    assert f'accelerators: server {server} has a device profile and no bound accelerator request' in found
    assert f"libvirt: domain {server} on {cloud.host_of(server)} has devices ['{CARDS[0]}'], its rows say []" in found
    request['instance_uuid'] = server
    speak = silence(accelerated, 'GET')
    assert [line.partition(':')[0] for line in cloud.audit().silent][:1] == ['accelerators']
    speak()
    cloud.assert_clean()
