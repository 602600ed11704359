"""Servers with ports that guarantee a bandwidth and a packet rate: Placement holds them on the providers that Neutron
reports below each host, and the ports' bindings say on which, wherever the server goes. In the end nothing is held.

``tests/fixtures/neutron.py`` plays Neutron; ``tests/integration/test_neutron.py`` has the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.conductor.flows import FLOWS
from tests.fixtures.cloud import PROJECT, Cloud
from tests.fixtures.neutron import EGRESS, PACKETS
from tests.flows.cases import bring_back, disturb, force_down, lose_host
from tests.functional.test_ports import HOSTS, Networked, broken, other


class Guaranteed(Networked):
    """The agent of each host has reported two bridges of 1000 kbit/s each, and 100 packets; ``providers``: {name:
    uuid}."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        super().__init__(make_cloud, **options)
        self.providers: dict[str, str] = {}
        for host in HOSTS:
            self.providers |= self.neutron.report(self.cloud.placement.client, host)

    def port(self, kbits: int = 600, packets: int = 0, *, is_flat: bool = False) -> str:
        """One that belongs to nobody, with a key of its owner's in its profile."""
        port = self.neutron.add_port(self.network, PROJECT, **{'binding:profile': {'note': 'mine'}})
        self.neutron.guarantee(port, kbits, packets, is_flat=is_flat)
        return port

    def groups(self, port: str) -> list[str]:
        return [group['id'] for group in self.neutron.ports[port]['resource_request']['request_groups']]

    def said(self, port: str) -> Any:
        """Of which providers the port's binding says that it has them, by name."""
        names = {uuid: name for name, uuid in self.providers.items()}
        found = self.neutron.ports[port]['binding:profile'].get('allocation')
        return [names[uuid] for uuid in found.values()] if isinstance(found, dict) else names.get(found)

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """What a server holds for ports, by the name of the provider."""
        given = self.cloud.placement.client.get_allocations(consumer)['allocations']
        return {name: given[uuid]['resources'] for name, uuid in self.providers.items() if uuid in given}

    def assert_at(self, server: str, host: str, **kbits: int) -> None:
        """The server is there, and holds this much on its bridge: the ports and the info cache say so, too."""
        self.cloud.assert_clean()
        bridge = f'{host}:OVN Controller agent:br-ex'
        assert self.cloud.host_of(server) == host
        assert self.held(server) == ({bridge: {EGRESS: sum(kbits.values())}} if kbits else {})
        cached = {vif['id']: vif for vif in self.cache(server)}
        for port in kbits:
            assert self.neutron.ports[port]['binding:host_id'] == host and self.said(port) in (bridge, [bridge])
            assert cached[port]['profile'] == self.neutron.ports[port]['binding:profile']

    def gone(self, server: str, *ports: str) -> None:
        self.delete(server)
        self.assert_empty(kept=len(ports))
        assert [self.neutron.ports[port]['binding:profile'] for port in ports] == [{'note': 'mine'}] * len(ports)


@pytest.fixture
def guaranteed(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Guaranteed:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Guaranteed(make_cloud)


# --- create ----------------------------------------------------------------------------------------------------------
def test_two_ports_on_one_host(guaranteed: Guaranteed) -> None:
    """Rows of both forms, on the bridge of the network that they are in: what doesn't fit goes to the other host, or
    nowhere."""
    first, second = guaranteed.port(600, packets=30), guaranteed.port(400, is_flat=True)
    server = guaranteed.boot({'port': first}, {'port': second})
    host = guaranteed.cloud.host_of(server)
    agent = f'{host}:OVN Controller agent'
    assert guaranteed.held(server) == {agent: {PACKETS: 30}, f'{agent}:br-ex': {EGRESS: 1000}}
    assert (guaranteed.said(first), guaranteed.said(second)) == ([f'{agent}:br-ex', agent], f'{agent}:br-ex')
    assert list(guaranteed.neutron.ports[first]['binding:profile']['allocation']) == guaranteed.groups(first)
    guaranteed.cloud.assert_clean()
    third, fourth = guaranteed.port(700), guaranteed.port(700)
    beside = guaranteed.boot({'port': third})
    guaranteed.assert_at(beside, other(host), **{third: 700})
    refused = guaranteed.boot({'port': fourth}, status='ERROR')
    assert EGRESS in guaranteed.cloud.show(refused)['fault']['message']
    guaranteed.delete(refused)
    guaranteed.delete(beside)
    guaranteed.gone(server, first, second, third, fourth)


def test_the_next_host_has_providers_of_its_own(guaranteed: Guaranteed) -> None:
    """A host that can't bind the port holds nothing."""
    port = guaranteed.port()
    guaranteed.neutron.hosts = {'gpu2'}
    for _ in range(2):
        server = guaranteed.boot({'port': port})
        guaranteed.assert_at(server, 'gpu2', **{port: 600})
        guaranteed.delete(server)
    guaranteed.assert_empty(kept=1)


def test_a_port_that_asks_for_something_else_by_now(guaranteed: Guaranteed) -> None:
    """Nothing of the create is left."""
    port, asked = guaranteed.port(), []

    def change(method: str, path: str) -> None:
        asked.append(path)
        if method == 'GET' and sum(path.startswith('/ports') for path in asked) == 2:
            guaranteed.neutron.guarantee(port, 300)

    guaranteed.neutron.before = change
    server = guaranteed.boot({'port': port}, status='ERROR')
    assert guaranteed.cloud.show(server)['fault']['message'] == f'Port {port} was changed since it was read.'
    guaranteed.gone(server, port)


# --- moves -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(('end', 'is_flat'), [('confirmResize', True), ('revertResize', False)])
def test_a_resize(guaranteed: Guaranteed, end: str, is_flat: bool) -> None:
    """Of the other host's provider; a revert says what was there before."""
    port = guaranteed.port(is_flat=is_flat)
    server = guaranteed.boot({'port': port})
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)
    for _ in range(2):
        source = cloud.host_of(server)
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
        assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
        guaranteed.assert_at(server, other(source), **{port: 600})
        cloud.action(server, end)
        guaranteed.assert_at(server, other(source) if end == 'confirmResize' else source, **{port: 600})
    guaranteed.gone(server, port)


def test_what_a_port_asks_for_by_now(guaranteed: Guaranteed) -> None:
    """A move asks for what Neutron says then, whatever the port asked for at first."""
    port, plain = guaranteed.port(), guaranteed.neutron.add_port(guaranteed.network, PROJECT)
    server = guaranteed.boot({'port': port}, {'port': plain})
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)
    guaranteed.neutron.guarantee(port, 300)
    guaranteed.neutron.guarantee(plain, 200)
    cloud.action(server, 'migrate')
    guaranteed.assert_at(server, other(source), **{port: 300, plain: 200})


def test_no_other_host_has_as_much(guaranteed: Guaranteed) -> None:
    """No move begins; the reason names what is missing."""
    ports = [guaranteed.port(700) for _ in HOSTS]
    server, blocked = (guaranteed.boot({'port': port}) for port in ports)
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)
    for action, body in (('migrate', None), ('os-migrateLive', {'host': None, 'block_migration': 'auto'})):
        cloud.action(server, action, body)
        assert EGRESS in json.dumps(cloud.story(server)) and cloud.status(server) == 'ACTIVE'
        guaranteed.assert_at(server, source, **{ports[0]: 700})
    assert cloud.host_of(blocked) == other(source)


def test_a_resize_that_fails_behind_the_binding(guaranteed: Guaranteed) -> None:
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)
    cloud.computes[other(source)].host.driver.moves.finish_migration = broken
    cloud.action(server, 'migrate')
    assert 'no room for a guest' in json.dumps(cloud.story(server))
    guaranteed.assert_at(server, source, **{port: 600})


@pytest.mark.parametrize('fails', [False, True])
def test_a_live_migration(guaranteed: Guaranteed, fails: bool) -> None:
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)

    def failed(*args: Any, **kwargs: Any) -> None:
        raise errors.MigrationError(reason='the guest is too busy')

    if fails:
        cloud.computes[source].host.driver.live_migrations.migrate = failed
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    guaranteed.assert_at(server, source if fails else other(source), **{port: 600})
    guaranteed.gone(server, port)


def test_shelved_and_evacuated(guaranteed: Guaranteed) -> None:
    """A server without a host holds nothing; one that fails to come from a dead host has what it had there."""
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    cloud = guaranteed.cloud
    cloud.action(server, 'shelve')
    assert guaranteed.held(server) == {} and guaranteed.said(port) is None
    cloud.action(server, 'unshelve')
    source = cloud.host_of(server)
    guaranteed.assert_at(server, source, **{port: 600})
    lose_host(cloud, source)
    force_down(cloud, source, True)
    guaranteed.neutron.hosts.discard(source)
    guests = cloud.computes[other(source)].host.driver.guests
    spawn, guests.spawn = guests.spawn, broken
    guaranteed.evacuate(server)
    assert 'no room for a guest' in json.dumps(cloud.story(server))
    assert guaranteed.said(port) == [f'{source}:OVN Controller agent:br-ex']
    assert set(guaranteed.held(server)) == set(guaranteed.said(port))
    guests.spawn = spawn
    guaranteed.evacuate(server)
    assert set(guaranteed.held(server)) == {f'{other(source)}:OVN Controller agent:br-ex'}
    bring_back(cloud, source)
    cloud.settle()
    guaranteed.assert_at(server, other(source), **{port: 600})


# --- attach and detach -----------------------------------------------------------------------------------------------
def attach(guaranteed: Guaranteed, server: str, port: str, status: int = 200) -> str:
    answer = guaranteed.cloud.request(
        'POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': port}}
    )
    assert answer.status_int == status, answer.text
    guaranteed.cloud.settle(kinds_left=('release',))
    return str(answer.text)


def test_attached_and_detached(guaranteed: Guaranteed) -> None:
    """What the server holds is what its ports say; where its host has no more the attach is refused."""
    first, second, third = guaranteed.port(300), guaranteed.port(400, is_flat=True), guaranteed.port(400)
    server = guaranteed.boot({'port': first})
    host = guaranteed.cloud.host_of(server)
    attach(guaranteed, server, second)
    guaranteed.assert_at(server, host, **{first: 300, second: 400})
    assert EGRESS in attach(guaranteed, server, third, status=409)
    guaranteed.assert_at(server, host, **{first: 300, second: 400})
    guaranteed.cloud.ok('DELETE', f'/servers/{server}/os-interface/{first}')
    guaranteed.cloud.settle()
    guaranteed.assert_at(server, host, **{second: 400})
    attach(guaranteed, server, third)
    guaranteed.assert_at(server, host, **{second: 400, third: 400})
    guaranteed.gone(server, first, second, third)


@pytest.mark.parametrize('number', [0, 2])
def test_an_attach_whose_step_is_done_twice(
    guaranteed: Guaranteed, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whoever goes on allocates nothing twice, though there would be room."""
    port, tries = guaranteed.port(300), []

    def lost(real: Callable[[Any], None], work: Any) -> None:
        real(work)
        tries.append(work.uuid)
        if len(tries) == 1:
            raise errors.Unanswered(who='Placement', reason='the answer was lost')

    disturb(monkeypatch, 'attach_interface', number, lost)
    server = guaranteed.boot()
    attach(guaranteed, server, port)
    assert len(tries) == 2
    guaranteed.assert_at(server, guaranteed.cloud.host_of(server), **{port: 300})


def test_an_attach_that_fails(guaranteed: Guaranteed) -> None:
    port, server = guaranteed.port(), guaranteed.boot()
    host = guaranteed.cloud.host_of(server)
    guaranteed.neutron.hosts.discard(host)
    assert 'Binding failed' in attach(guaranteed, server, port, status=409)
    guaranteed.assert_at(server, host)
    assert guaranteed.neutron.ports[port]['binding:profile'] == {'note': 'mine'}


def test_a_port_that_its_owner_deletes(guaranteed: Guaranteed) -> None:
    """The server gives back what it held for it."""
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    del guaranteed.neutron.ports[port]
    guaranteed.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': port}])
    guaranteed.cloud.settle()
    guaranteed.assert_at(server, guaranteed.cloud.host_of(server))
    assert guaranteed.cache(server) == []


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_port_that_its_owner_deletes_before_a_move_is_over(guaranteed: Guaranteed, end: str) -> None:
    """Then, wherever the server is; until then the audit lists the port as in flight."""
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    cloud, source = guaranteed.cloud, guaranteed.cloud.host_of(server)
    cloud.action(server, 'migrate')
    del guaranteed.neutron.ports[port]
    guaranteed.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': port}])
    cloud.settle()
    report = cloud.audit()
    assert (report.disagreements, report.exit_code) == ([], 0)
    (waiting,) = report.in_flight
    assert f'port {port} of server {server}' in waiting and 'confirmed or reverted' in waiting
    cloud.action(server, end)
    assert guaranteed.cache(server) == [], cloud.story(server)
    guaranteed.assert_at(server, source if end == 'revertResize' else other(source))


def test_a_port_that_is_gone_when_its_server_arrives(guaranteed: Guaranteed) -> None:
    """A host was asked for what it guarantees, and Neutron's event is lost: nothing of it is held when the move is
    over, well or not."""
    for kind, end in (
        ('resize', 'confirmResize'),
        ('resize', 'revertResize'),
        ('resize', 'fails'),
        ('live_migrate', ''),
        ('unshelve', ''),
        ('evacuate', 'fails'),
        ('evacuate', ''),
    ):
        port = guaranteed.port()
        server = guaranteed.boot({'port': port})
        guaranteed.assert_at(server, guaranteed.moved(server, kind, end, port))
        assert guaranteed.cache(server) == [], guaranteed.cloud.story(server)
        guaranteed.delete(server)
    guaranteed.assert_empty()


def test_a_port_that_its_owner_deletes_while_its_server_is_unshelved(
    guaranteed: Guaranteed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was bound to the host that was chosen; the event comes before the server is there, the step comes again."""
    port, looked = guaranteed.port(), threading.Event()
    server = guaranteed.boot({'port': port})
    guaranteed.cloud.action(server, 'shelve')

    def look(real: Any, work: Any) -> None:
        try:
            real(work)
        finally:
            looked.set()

    def delete(real: Any, work: Any) -> None:
        real(work)
        if guaranteed.neutron.ports.pop(port, None):
            guaranteed.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': port}])
            assert looked.wait(10)
            raise errors.Unanswered(who='the host', reason='injected')

    disturb(monkeypatch, 'network_changed', 0, look)
    disturb(monkeypatch, 'unshelve', FLOWS['unshelve'].index('claim'), delete)
    guaranteed.cloud.action(server, 'unshelve')
    guaranteed.assert_at(server, guaranteed.cloud.host_of(server))
    assert guaranteed.cache(server) == []


def test_a_detach_while_neutron_is_silent(guaranteed: Guaranteed) -> None:
    """It ends; what the server held is given back later."""
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})

    def silent(method: str, path: str) -> None:
        raise guaranteed.neutron.broken()

    guaranteed.neutron.before = silent
    guaranteed.cloud.ok('DELETE', f'/servers/{server}/os-interface/{port}')
    guaranteed.cloud.settle(kinds_left=('release',))
    assert guaranteed.cache(server) == [] and guaranteed.held(server) != {}
    guaranteed.neutron.before = None
    guaranteed.cloud.settle()
    guaranteed.assert_at(server, guaranteed.cloud.host_of(server))
    guaranteed.gone(server, port)


def test_the_audit_compares_guarantees(guaranteed: Guaranteed) -> None:
    port = guaranteed.port()
    server = guaranteed.boot({'port': port})
    provider = guaranteed.providers[f'{guaranteed.cloud.host_of(server)}:OVN Controller agent:br-ex']
    guaranteed.neutron.ports[port]['resource_request']['request_groups'][0]['resources'][EGRESS] = 700
    assert guaranteed.cloud.audit().disagreements == [
        (
            f"Placement: server {server} holds {{'{provider}': {{'{EGRESS}': 600}}}} for its ports, whose bindings say "
            f"{{'{provider}': {{'{EGRESS}': 700}}}}"
        )
    ]
