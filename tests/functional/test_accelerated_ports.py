"""Servers with ports that are accelerators (SmartNICs): Cyborg chooses the function, and the port names it. In the end
nothing is left, in Cyborg or anywhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures import places
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud
from tests.fixtures.cyborg import FakeCyborg
from tests.fixtures.hosts import sriov_nic
from tests.flows.cases import bring_back, crash_at, dies_at, force_down
from tests.functional.test_ports import HOSTS, Networked, broken

CARD, FUNCTIONS = '0000:91:00.0', ('0000:91:00.2', '0000:91:00.3')
REFUSED = 'Feature not supported with Ports that have accelerators.'


class Site(Networked):
    """Each host has a card with two functions that Cyborg gives away, and one more accelerator."""

    def __init__(self, make_cloud: Callable[..., Cloud]) -> None:
        self.cyborg = FakeCyborg()
        super().__init__(make_cloud, devices={host: sriov_nic(CARD, FUNCTIONS) for host in HOSTS}, cyborg=self.cyborg)
        for host in HOSTS:
            self.cyborg.offer(self.cloud.placement, host, f'{host}_nic', 'CUSTOM_NIC', [('PCI', FUNCTIONS[0])])
            self.cyborg.offer(self.cloud.placement, host, f'{host}_fpga', 'FPGA', [('PCI', FUNCTIONS[1])])
        for handle in self.cyborg._all():
            handle.info['physical_network'] = 'physnet1'
        self.wire = self.neutron.add_network(
            'wire', PROJECT, cidr='10.5.0.0/24', **{'provider:physical_network': 'physnet1'}
        )
        self.cyborg.profiles |= {
            'nic': [{'resources:CUSTOM_NIC': '1'}],
            'fpga': [{'resources:FPGA': '1'}],
            'nics': [{'resources:CUSTOM_NIC': '2'}],
        }

    def port(self, profile: str | None = 'nic', vnic_type: str = 'accelerator-direct', **more: Any) -> str:
        return self.neutron.add_port(
            self.wire,
            PROJECT,
            **{'binding:vnic_type': vnic_type, 'binding:profile': {'note': 'mine'}, 'device_profile': profile, **more},
        )

    def profile(self, port: str) -> dict[str, Any]:
        found: dict[str, Any] = self.neutron.ports[port]['binding:profile']
        return found

    def assert_empty(self, kept: int = 0) -> None:
        super().assert_empty(kept=kept)
        assert (self.cyborg.requests, self.cyborg.held()) == ({}, [])

    def assert_at(self, server: str, port: str, *, others: int = 0) -> None:
        """The guest has the function that the port names, and Cyborg says so, too."""
        self.cloud.assert_clean()
        host, profile = self.cloud.host_of(server), self.profile(port)
        requests = [one for one in self.cyborg.requests.values() if one['instance_uuid'] == server]
        (request,) = [one for one in requests if one['uuid'] == profile['arq_uuid']]
        assert len(requests) == 1 + others and (request['state'], request['hostname']) == ('Bound', host)
        assert profile == {
            'note': 'mine',
            'arq_uuid': request['uuid'],
            'pci_slot': FUNCTIONS[0],
            'physical_network': 'physnet1',
        }
        assert self.neutron.ports[port]['binding:host_id'] == host
        assert [vif['profile'] for vif in self.cache(server)] == [profile]
        xml = self.cloud.xml(server)
        assert ('<interface' in xml, xml.count('<hostdev')) == (
            (True, others)
            if self.neutron.ports[port]['binding:vnic_type'] == 'accelerator-direct'
            else (False, 1 + others)
        )

    def gone(self, server: str, port: str) -> None:
        self.delete(server)
        self.assert_empty(kept=1)
        assert self.profile(port) == {'note': 'mine'}


@pytest.fixture
def site(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Site(make_cloud)


def test_from_create_to_delete(site: Site) -> None:
    """Beside the flavor's accelerator, bound with it; started anew it has the same; what would give it another one is
    refused before anything is written."""
    port, cloud = site.port(), site.cloud
    site.flavor = cloud.flavor(**{'accel:device_profile': 'fpga'})
    server = site.boot({'port': port})
    site.assert_at(server, port, others=1)
    assert [method for method, _ in site.cyborg.asked][:5] == ['GET', 'POST', 'POST', 'PATCH', 'GET']
    for body in (
        {'suspend': None},
        {'shelve': None},
        {'migrate': None},
        {'resize': {'flavorRef': cloud.flavor()}},
        {'os-migrateLive': {'host': None, 'block_migration': 'auto'}},
    ):
        answer = cloud.request('POST', f'/servers/{server}/action', body)
        assert (answer.status_int, REFUSED in answer.text) == (400, True), body
    other = site.port(device_profile='nic')
    answer = cloud.request('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': other}})
    assert (answer.status_int, REFUSED in answer.text) == (400, True)
    answer = cloud.request('DELETE', f'/servers/{server}/os-interface/{port}')
    assert (answer.status_int, REFUSED in answer.text) == (400, True)
    del site.neutron.ports[other]
    for action, body in (
        ('reboot', {'type': 'HARD'}),
        ('os-stop', None),
        ('os-start', None),
        ('rebuild', {'imageRef': IMAGE_ID}),
        ('rescue', None),
        ('unrescue', None),
    ):
        cloud.action(server, action, body)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    site.assert_at(server, port, others=1)
    force_down(cloud, cloud.host_of(server), True)
    answer = cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}})
    assert (answer.status_int, REFUSED in answer.text) == (400, True)
    force_down(cloud, cloud.host_of(server), False)
    site.gone(server, port)


def test_a_physical_function_and_the_next_host(site: Site) -> None:
    """What one host had is free when the next one tries; without any the create fails, and nothing is left. A port that
    its owner deletes takes nothing along: a delete frees all."""
    port = site.port(vnic_type='accelerator-direct-physical')
    site.neutron.hosts = {'gpu2'}
    for _ in range(2):
        server = site.boot({'port': port})
        assert site.cloud.host_of(server) == 'gpu2'
        site.assert_at(server, port)
        site.gone(server, port)
    site.cloud.computes['gpu2'].host.driver.guests.spawn = broken
    server = site.boot({'port': port}, status='ERROR')
    assert site.cyborg.requests == {}
    site.gone(server, port)
    del site.cloud.computes['gpu2'].host.driver.guests.spawn
    server = site.boot({'port': port})
    del site.neutron.ports[port]
    site.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': port}])
    site.cloud.settle()
    for action in ('os-stop', 'os-start'):
        site.cloud.action(server, action)
    assert site.cloud.status(server) == 'ACTIVE' and '<hostdev' in site.cloud.xml(server), site.cloud.story(server)
    site.cloud.assert_clean()
    answer = site.cloud.request('POST', f'/servers/{server}/action', {'shelve': None})
    assert (answer.status_int, REFUSED in answer.text) == (400, True)
    site.delete(server)
    site.assert_empty()


def test_nothing_else_is_such_a_port(site: Site) -> None:
    for port, reason in (
        (site.port(None), "its vnic_type is 'accelerator-direct', but it has no device profile"),
        (site.port(vnic_type='direct'), "profile 'nic', but its vnic_type is 'direct'"),
        (site.port(resource_request={'request_groups': []}), 'it has a resource request'),
        (site.port('nics'), 'the device profile of a port must request exactly one accelerator'),
        (site.port('none'), 'Expected 1 device profile but got nothing'),
    ):
        answer = site.cloud.request(
            'POST',
            '/servers',
            {'server': {'name': 's', 'flavorRef': site.flavor, 'imageRef': IMAGE_ID, 'networks': [{'port': port}]}},
        )
        assert answer.status_int == 400 and reason in answer.text, answer.text


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_whoever_crashes_leaves_no_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conductor that ends at any moment of a boot: the next one goes on, and a delete frees all. Requests whose
    making was not written yet are bound to nothing, and deleted when they are old."""
    port, number, happened = site.port(), places.first(), True
    while happened:
        with crash_at(site.cloud, monkeypatch, number) as crashed:
            server = site.create({'port': port})
            while not crashed.is_set() and site.cloud.rows():
                crashed.wait(0.02)
        happened = crashed.is_set()
        if happened:
            site.cloud.crash_conductor()
            site.cloud.start_conductor()
        site.cloud.settle()
        assert site.cloud.status(server) == 'ACTIVE', site.cloud.story(server)
        bound = [one for one in site.cyborg.requests.values() if one['instance_uuid'] == server]
        assert [one['uuid'] for one in bound] == [site.profile(port)['arq_uuid']]
        site.delete(server)
        left = [one for one in site.cyborg.requests.values() if one['instance_uuid'] is not None]
        assert (left, site.cyborg.held()) == ([], [])
        assert site.profile(port) == {'note': 'mine'}
        number += places.STEP
    assert number > 4, f'only {number} effects'


def test_a_host_dies_during_a_build(site: Site) -> None:
    """At each thing that it tells: the next one has the server, and what was bound to the first is free."""
    port, number = site.port(), 0
    while True:
        death = dies_at(site.cloud, number)
        server = site.boot({'port': port})
        site.cloud.on_message = None
        if death.gone is None:
            break
        assert site.cloud.host_of(server) != death.gone
        bring_back(site.cloud, death.gone)
        site.assert_at(server, port)
        site.gone(server, port)
        number += 1
    assert number > 2, death.seen


def test_cyborg_is_silent_once(site: Site) -> None:
    """At each of the requests to it: it is asked again."""
    for times, method in enumerate(('POST', 'PATCH', 'DELETE')):
        silences = []

        def silent(asked: str, path: str, method: str = method, silences: list[str] = silences) -> None:
            if asked == method and not silences:
                silences.append(path)
                raise site.cyborg.broken()

        site.cyborg.before = silent
        port = site.port()
        server = site.boot({'port': port})
        site.assert_at(server, port)
        site.gone(server, port) if not times else site.delete(server)
        assert silences and site.cyborg.requests == {}


@pytest.mark.parametrize('silent', [True, False])
def test_one_of_two_ports_gets_no_request(site: Site, silent: bool) -> None:
    """What was made for the other goes: nobody binds it."""
    made: list[str] = []

    def second(method: str, path: str) -> None:
        made.extend([path] * (method == 'POST'))
        if method == 'POST' and len(made) == 2:
            if silent:
                raise site.cyborg.broken()
            del site.cyborg.profiles['fpga']

    site.cyborg.before = second
    server = site.boot({'port': site.port()}, {'port': site.port('fpga')}, status='ACTIVE' if silent else 'ERROR')
    assert [one['instance_uuid'] for one in site.cyborg.requests.values()] == [server] * (2 * silent)
    site.delete(server)
    site.assert_empty(kept=2)


def test_a_function_that_is_programmed(site: Site) -> None:
    """Its host waits for the event; the audit misses a request that is gone."""
    told: list[int] = []
    site.cyborg.notify = lambda events: told.extend(
        event['code']
        for event in site.cloud.request('POST', '/os-server-external-events', {'events': events}, version='2.82').json[
            'events'
        ]
    )
    site.cyborg.programming = True
    port = site.port()
    server, end = site.create({'port': port}), time.monotonic() + 30
    while not any('bind_state' in path for _, path in site.cyborg.asked):
        assert time.monotonic() < end
        time.sleep(0.01)
    site.cyborg.program()
    site.cloud.settle()
    assert (site.cloud.status(server), told) == ('ACTIVE', [200])
    site.assert_at(server, port)
    site.cyborg.requests.clear()
    assert f'accelerators: server {server} has a device profile and no bound accelerator request' in (
        site.cloud.audit().disagreements
    )
