"""Servers with accelerators of Cyborg: booted, started, deleted, and what they can't do. Seed 004.

``tests/fixtures/cyborg.py`` plays Cyborg; ``tests/integration/test_cyborg.py`` has the real one.
"""
from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.hosts import pci_device
from tests.fixtures.mdev import NVIDIA35, mdev_bus, mdev_card
from tests.flows.cases import bring_back, lose_host

# Each host has two cards that Cyborg gives away, and one whose parts it does.
CARDS, PARTED = ('0000:21:00.0', '0000:22:00.0'), '0000:84:00.0'
DEVICES = [*(pci_device(card, '10ee', '5020', '0x120000') for card in CARDS), mdev_card(PARTED, {NVIDIA35: 2})]
HOSTS = ('gpu1', 'gpu2')
ERROR = 'Failed to bind accelerator requests for instance'


class Accelerated:
    """A cloud with Cyborg. ``told``: the codes of the compute API for each event that Cyborg told."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        self.cyborg = FakeCyborg()
        self.cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']},
                                devices=dict.fromkeys(HOSTS, DEVICES), cyborg=self.cyborg, **options)
        self.told: list[int] = []
        self.cyborg.notify = self.notify
        for host in HOSTS:
            self._offer(host, f'{host}_fpga', 'FPGA', [('PCI', card) for card in CARDS])
            self._offer(host, f'{host}_vgpu', 'VGPU', [('MDEV', PARTED)])
            self._offer(host, f'{host}_FakeDevice', 'CUSTOM_FAKE', [('TEST_PCI', '0000:0c:00.1')])
        for name, group in (('fpga', {'resources:FPGA': '1', 'trait:CUSTOM_FAST': 'required'}),
                            ('two', {'resources:FPGA': '2'}), ('vgpu', {'resources:VGPU': '1'}),
                            ('fake', {'resources:CUSTOM_FAKE': '1'})):
            self.cyborg.profiles[name] = [group]

    def _offer(self, host: str, name: str, resource_class: str, handles: list[tuple[str, str]]) -> None:
        """As cyborg-conductor reports what an agent found."""
        client = self.cloud.placement.client
        root = next(row['uuid'] for row in client.list_providers(name=host))
        made = client.ensure_provider(name, str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), root)
        client.ensure_resource_class(resource_class)
        generation = client.set_inventory(made['uuid'], made['generation'],
                                          {resource_class: {'total': len(handles), 'max_unit': len(handles)}})
        client.ensure_traits(['CUSTOM_FAST'])
        client.set_traits(made['uuid'], generation, ['CUSTOM_FAST'] if name.endswith('fpga') else [])
        self.cyborg.add_device(made['uuid'], handles)

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

    def of(self, server: str) -> list[dict[str, Any]]:
        return [one for one in self.cyborg.requests.values() if one['instance_uuid'] == server]

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
    """Rows 1.20, 4.3: the profile as the user; requests made and bound to the device that Placement chose, before the
    host builds; the card in the guest's XML. Row 4.10: a delete frees all."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = cloud.boot(cloud.flavor(**{'accel:device_profile': 'fpga'}), user='demo')
    host = cloud.host_of(server)
    assert [method for method, _ in cyborg.asked] == ['GET', 'POST', 'GET', 'PATCH', 'GET']
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
    """Row 4.5: a group of two comes from one provider; devices of both ways are in one guest."""
    cloud = accelerated.cloud
    server = cloud.boot(accelerated.flavor('two', gpus=1))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    gpu = [name.split()[1] for name in cloud.owned(server)]
    assert len(gpu) == 1 and cloud.hostdevs(server) == sorted([*gpu, *CARDS])
    cloud.assert_clean()
    accelerated.delete(server)
    accelerated.assert_empty()


def test_handles_of_other_kinds(accelerated: Accelerated) -> None:
    """Row 4.9: a mediated device has its handle's uuid; handles of the fake driver are bound and not attached."""
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
    """Rows 4.1, 4.12, 4.13."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    before = accelerated.of(server)
    for name, body, status in (
            ('os-stop', None, 'SHUTOFF'), ('os-start', None, 'ACTIVE'), ('reboot', {'type': 'SOFT'}, 'ACTIVE'),
            ('reboot', {'type': 'HARD'}, 'ACTIVE'), ('pause', None, 'PAUSED'), ('unpause', None, 'ACTIVE'),
            ('rescue', None, 'RESCUE'), ('unrescue', None, 'ACTIVE'), ('rebuild', {'imageRef': IMAGE_ID}, 'ACTIVE'),
            ('createImage', {'name': 'i'}, 'ACTIVE'), ('lock', None, 'ACTIVE'), ('unlock', None, 'ACTIVE')):
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


REFUSED = 'Feature not supported with instances that have accelerators.'


def test_what_is_refused(accelerated: Accelerated) -> None:
    """Row 4.2; nothing is sent."""
    cloud = accelerated.cloud
    server, plain = accelerated.boot(), cloud.boot(cloud.flavor())
    asked = len(accelerated.cyborg.asked)
    other = accelerated.flavor('two')
    for who, name, body, said in (
            (server, 'resize', {'flavorRef': cloud.flavor()}, REFUSED),
            (plain, 'resize', {'flavorRef': other}, REFUSED),
            (server, 'migrate', None, REFUSED), (server, 'suspend', None, REFUSED),
            (server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'}, REFUSED),
            (server, 'shelve', None, 'Instances that have accelerators can not be shelved in this cloud.')):
        response = cloud.action(who, name, body, expect=400)
        assert response.json['badRequest']['message'] == said, name
    lose_host(cloud, cloud.host_of(server))
    response = cloud.action(server, 'evacuate', {}, expect=400)
    assert response.json['badRequest']['message'] == (
        'Instances that have accelerators can not be evacuated in this cloud.')
    assert len(accelerated.cyborg.asked) == asked


def test_what_no_flavor_can_ask_for(accelerated: Accelerated, make_cloud: Callable[..., Cloud]) -> None:
    cloud = accelerated.cloud
    accelerated.cyborg.profiles['odd'] = [{'resources:FPGA': '900'}]
    for profile, said in (('none', 'got nothing'), ('fpga,two', "'fpga,two'"), ('odd', '1 to 64 are accepted')):
        response = cloud.request('POST', '/servers', {'server': {
            'name': 's', 'flavorRef': accelerated.flavor(profile), 'imageRef': IMAGE_ID, 'networks': 'none'}})
        assert response.status_int == 400 and said in response.json['badRequest']['message']
    without = make_cloud()
    response = without.request('POST', '/servers', {'server': {
        'name': 's', 'flavorRef': without.flavor(**{'accel:device_profile': 'fpga'}), 'imageRef': IMAGE_ID,
        'networks': 'none'}})
    assert response.status_int == 400
    assert response.json['badRequest']['message'].startswith('There is no accelerator service')


# --- waiting for a device that is programmed -------------------------------------------------------------------------
@pytest.mark.parametrize('lost', [False, True])
def test_a_build_waits_for_the_event(accelerated: Accelerated, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """Row 4.7. An event that gets lost is made up for by looking."""
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
    """Row 4.7."""
    accelerated = Accelerated(make_cloud, arq_binding_timeout=1)
    accelerated.cyborg.programming = True
    server = accelerated.cloud.boot(accelerated.flavor())
    assert 'not bound after 1 s' in accelerated.fault(server)
    assert accelerated.cyborg.requests == {}
    accelerated.cloud.assert_clean()


# --- what goes wrong -------------------------------------------------------------------------------------------------
def test_a_device_that_only_placement_has_free(accelerated: Accelerated) -> None:
    """Row 4.6: no free handle: BindFailed, ERROR."""
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
        # Profile, before the binding, and when it is tried again.
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
    """Row 4.10: what is still to give back outlives the server, and goes when Cyborg is back."""
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
    """Row 4.11."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    host = cloud.host_of(server)
    lose_host(cloud, host)
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'GONE' and accelerated.cyborg.requests == {}
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


def test_the_audit_finds_what_cyborg_and_servers_disagree_about(accelerated: Accelerated,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('kilonova.conductor.audit.PAUSE', 0.0)
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot()
    (lost,) = cyborg.client.create('fpga')
    assert cloud.audit().disagreements == [f'accelerators: requests {lost.uuid} belong to no server']
    cyborg.client.delete([lost.uuid])
    (request,) = accelerated.of(server)
    request['instance_uuid'] = gone = server[:-4] + 'ffff'
    found = cloud.audit().disagreements
    assert f'accelerators: requests {request["uuid"]} belong to {gone}, which is no server' in found
    assert f'accelerators: server {server} has a device profile and no bound request' in found
    assert f"libvirt: domain {server} on {cloud.host_of(server)} has devices ['{CARDS[0]}'], its rows say []" in found
    request['instance_uuid'] = server
    speak = silence(accelerated, 'GET')
    assert [line.partition(':')[0] for line in cloud.audit().silent][:1] == ['accelerators']
    speak()
    cloud.assert_clean()
