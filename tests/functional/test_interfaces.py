"""Interfaces that a server gets or gives up while it is there: what its guest, Neutron, the info cache and the audit
say, whatever goes wrong in between.

``tests/fixtures/neutron.py`` plays Neutron; libvirt's test driver puts nothing into a guest that runs, so its next
start is looked at (``tests/unit/virt/libvirt/test_hotplug.py`` has the rest).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import libvirt
import pytest

from kilonova import errors
from kilonova.api.services.backend import ApiOptions
from tests.fixtures import places
from tests.fixtures.cloud import PROJECT, Cloud
from tests.flows.cases import crash_at, disturb
from tests.functional.test_ports import Networked

KINDS = ('attach', 'detach')


class Attaching(Networked):
    """``server``: one with a port; requests are answered while the cloud works."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        super().__init__(make_cloud, **options)
        self.second = self.neutron.add_network('second', PROJECT, cidr='10.3.0.0/24')
        self.server = self.boot()
        self.host = self.cloud.host_of(self.server)
        self.path = f'/servers/{self.server}/os-interface'
        (self.first,) = (port['id'] for port in self.of(self.server))

    @property
    def guests(self) -> Any:
        return self.cloud.computes[self.host].host.driver.guests

    def attach(self, status: int = 200, **wanted: Any) -> Any:
        """The interface, or the text of a refusal."""
        answer = self.cloud.request('POST', self.path, {'interfaceAttachment': wanted})
        assert answer.status_int == status, answer.text
        self.cloud.settle(kinds_left=('release',))
        (body,) = answer.json.values()
        return body if status == 200 else body['message']

    def detach(self, port: str, status: int = 202) -> Any:
        answer = self.cloud.request('DELETE', f'{self.path}/{port}')
        assert answer.status_int == status, answer.text
        self.cloud.settle(kinds_left=('release',))
        return answer

    def ports(self) -> list[str]:
        """What the server has, in its info cache and nothing else in Neutron: the audit compares them."""
        self.cloud.assert_clean()
        found = [vif['id'] for vif in self.cache(self.server)]
        assert sorted(found) == sorted(port['id'] for port in self.of(self.server))
        xml = (
            self.cloud.computes[self.host]
            .host.driver.guests._libvirt.find(self.server)
            .call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        )
        assert sorted(found) == sorted(re.findall("interfaceid='(.*?)'", xml))
        return found

    def act(self, kind: str, status: int | None = None, given: str | None = None) -> tuple[list[str], list[str]]:
        """Attach a port of the second network (or a given one), or detach such a one: what it has when that failed, and
        when it was done."""
        if kind == 'attach':
            before = [self.first]
            wanted = {'port_id': given} if given else {'net_id': self.second}
            self.attach(200 if status is None else status, **wanted)
            return before, before + [port['id'] for port in self.of(self.server) if port['id'] != self.first]
        new = self.attach(**({'port_id': given} if given else {'net_id': self.second}))['port_id']
        self.detach(new)
        return [self.first, new], [self.first]

    def story(self) -> tuple[str, bool]:
        """The last action: its name, and whether it failed."""
        name, message = self.cloud.story(self.server)[0][:2]
        return name, message is not None


@pytest.fixture
def attaching(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Attaching:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Attaching(make_cloud)


# --- what it comes to ------------------------------------------------------------------------------------------------
def test_attached_and_detached(attaching: Attaching) -> None:
    """A port is made and bound, the answer shows it; what was detached is deleted."""
    body = attaching.attach(net_id=attaching.second)
    made = attaching.neutron.ports[body['port_id']]
    assert body == {
        'port_id': made['id'],
        'net_id': attaching.second,
        'mac_addr': made['mac_address'],
        'port_state': 'ACTIVE',
        'fixed_ips': made['fixed_ips'],
        'tag': None,
    }
    assert (made['binding:host_id'], made['device_owner']) == (attaching.host, 'compute:nova')
    assert attaching.ports() == [attaching.first, made['id']]
    assert set(attaching.addresses(attaching.server)) == {'private', 'second'}
    assert attaching.story() == ('attach_interface', False)
    assert attaching.detach(attaching.first).text == ''
    assert attaching.ports() == [made['id']] and attaching.first not in attaching.neutron.ports
    assert attaching.story() == ('detach_interface', False)
    attaching.cloud.action(attaching.server, 'reboot', {'type': 'HARD'})
    assert attaching.ports() == [made['id']]
    attaching.delete(attaching.server)
    attaching.assert_empty()


def test_a_port_of_the_users_own(attaching: Attaching) -> None:
    """It is bound and unbound; a delete leaves it as well."""
    own = attaching.neutron.add_port(attaching.second, PROJECT)
    for _again in range(2):
        assert attaching.attach(port_id=own)['port_id'] == own
        assert attaching.ports() == [attaching.first, own]
        assert f'Port {own} is still in use.' in attaching.attach(409, port_id=own)
        attaching.detach(own)
        assert attaching.ports() == [attaching.first] and attaching.neutron.ports[own]['device_id'] == ''
    attaching.attach(port_id=own)
    attaching.delete(attaching.server)
    attaching.assert_empty(kept=1)


def test_a_server_without_interfaces_gets_its_first(attaching: Attaching) -> None:
    attaching.detach(attaching.first)
    assert attaching.ports() == []
    attaching.attach(net_id=attaching.second, fixed_ips=[{'ip_address': '10.3.0.77'}])
    assert len(attaching.ports()) == 1 and attaching.addresses(attaching.server) == {'second': ['10.3.0.77']}
    bare = attaching.cloud.boot(attaching.flavor, networks='none')
    attaching.server, attaching.host = bare, attaching.cloud.host_of(bare)
    attaching.path = f'/servers/{bare}/os-interface'
    attaching.attach(net_id=attaching.second)
    assert len(attaching.ports()) == 1


@pytest.mark.parametrize('action', ['os-stop', 'pause'])
def test_a_guest_that_does_not_run(attaching: Attaching, action: str) -> None:
    attaching.cloud.action(attaching.server, action)
    status = attaching.cloud.status(attaching.server)
    before, after = attaching.act('attach')
    assert attaching.ports() == after != before
    attaching.detach(after[-1])
    assert attaching.ports() == before and attaching.cloud.status(attaching.server) == status


def test_an_order_of_requests(attaching: Attaching) -> None:
    """One attach of a network is six requests of the conductor's, the answer one more."""
    attaching.neutron.asked.clear()
    attaching.attach(net_id=attaching.second)
    assert [method for method, _ in attaching.neutron.asked].count('POST') == 1
    assert len(attaching.neutron.asked) <= 10, attaching.neutron.asked


def test_addresses_that_come_and_go(attaching: Attaching) -> None:
    """By the actions of old versions: the server shows them when the answer is there and its conductor has looked."""
    neutron, server = attaching.neutron, attaching.server
    outside = neutron.add_network('public', 'p9', cidr='203.0.113.0/29', shared=True, **{'router:external': True})
    floating = attaching.cloud.request('POST', '/os-floating-ips', {'pool': outside}, version='2.35').json[
        'floating_ip'
    ]['ip']
    (first,) = attaching.addresses(server)['private']

    def act(action: str, **body: str) -> list[str]:
        answer = attaching.cloud.request('POST', f'/servers/{server}/action', {action: body}, version='2.43')
        assert answer.status_int == 202, answer.text
        attaching.cloud.settle()
        return attaching.addresses(server)['private']

    one, more = act('addFixedIp', networkId=attaching.network)
    assert one == first != more
    assert sorted(act('addFloatingIp', address=floating, fixed_address=more)) == sorted([first, more, floating])
    assert sorted(act('removeFloatingIp', address=floating)) == sorted([first, more])
    assert act('removeFixedIp', address=first) == [more]


# --- what goes wrong -------------------------------------------------------------------------------------------------
def refuse(*args: Any, **kwargs: Any) -> None:
    raise errors.KilonovaError('its system does not give up the card')


@pytest.mark.parametrize('own', [False, True])
def test_a_guest_that_takes_no_card(attaching: Attaching, own: bool) -> None:
    """The reason is answered; the port is deleted, or its user's again."""
    given = attaching.neutron.add_port(attaching.second, PROJECT) if own else None
    attaching.guests.attach_interface = refuse
    answer = attaching.attach(409, **({'port_id': given} if given else {'net_id': attaching.second}))
    assert answer.startswith(f'Failed to attach the interface to server {attaching.server}: its system does not')
    assert attaching.ports() == [attaching.first] and attaching.story() == ('attach_interface', True)
    assert len(attaching.neutron.ports) == 1 + own
    assert given is None or attaching.neutron.ports[given]['device_id'] == ''


def test_a_guest_that_keeps_its_card(attaching: Attaching) -> None:
    """All is as it was, and the action says why."""
    attaching.guests.detach_interface = refuse
    attaching.detach(attaching.first)
    assert attaching.ports() == [attaching.first] and attaching.story() == ('detach_interface', True)
    assert 'does not give up the card' in str(attaching.cloud.story(attaching.server))


def test_a_host_that_can_not_bind(attaching: Attaching) -> None:
    attaching.neutron.hosts.discard(attaching.host)
    assert 'Binding failed for port' in attaching.attach(409, net_id=attaching.second)
    assert attaching.cache(attaching.server)[0]['id'] == attaching.first and len(attaching.neutron.ports) == 1


def test_neutron_falls_silent_when_a_port_is_attached(attaching: Attaching) -> None:
    """The answer says what the server has, as Neutron says it later."""

    def silent(method: str, path: str) -> None:
        if method == 'GET' and path.startswith('/ports/'):
            raise attaching.neutron.broken()

    attaching.neutron.before = silent
    answer = attaching.attach(net_id=attaching.second, tag='inner')
    attaching.neutron.before = None
    assert attaching.ports() == [attaching.first, answer['port_id']]
    shown = attaching.cloud.ok('GET', f'{attaching.path}/{answer["port_id"]}')['interfaceAttachment']
    assert {**answer, 'port_state': 'ACTIVE'} == shown and answer['tag'] == 'inner'


def test_what_waits_to_be_freed_is_not_attached_anew(attaching: Attaching) -> None:
    """A user's port that a detach could not unbind yet: an attach to its network makes another one."""
    own = attaching.neutron.add_port(attaching.second, PROJECT)
    attaching.attach(port_id=own)
    puts: list[str] = []

    def broken(method: str, path: str) -> None:
        if method == 'PUT':
            puts.append(path)
            raise attaching.neutron.broken()

    attaching.neutron.before = broken
    attaching.detach(own)
    made = attaching.attach(net_id=attaching.second)['port_id']
    attaching.neutron.before = None
    attaching.cloud.settle()
    assert puts and made != own
    assert attaching.ports() == [attaching.first, made] and attaching.neutron.ports[own]['device_id'] == ''


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('step', [-2, -1])
def test_deleted_meanwhile(attaching: Attaching, kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete at each step wins, and nothing of the server is left but its user's port."""
    own = attaching.neutron.add_port(attaching.second, PROJECT)
    if kind == 'detach':
        attaching.attach(port_id=own)

    def delete(real: Callable[..., None], work: Any) -> None:
        attaching.cloud.ok('DELETE', f'/servers/{attaching.server}')
        real(work)

    disturb(monkeypatch, f'{kind}_interface', step, delete)
    if kind == 'attach':
        answer = attaching.cloud.request('POST', attaching.path, {'interfaceAttachment': {'port_id': own}})
        assert answer.status_int in (404, 409), answer.text
    else:
        attaching.cloud.request('DELETE', f'{attaching.path}/{own}')
    attaching.cloud.settle()
    attaching.assert_empty(kept=1)
    assert list(attaching.neutron.ports) == [own]


@pytest.mark.parametrize('step', [0, 1])
def test_a_detach_that_is_cancelled(attaching: Attaching, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reset of the state: before the guest has let it go all is as it was; behind that it goes to its end."""

    def reset(real: Callable[..., None], work: Any) -> None:
        attaching.cloud.ok('POST', f'/servers/{attaching.server}/action', {'os-resetState': {'state': 'active'}})
        real(work)

    disturb(monkeypatch, 'detach_interface', step, reset)
    attaching.detach(attaching.first)
    attaching.cloud.settle()
    assert attaching.ports() == [[attaching.first], []][step]
    assert list(attaching.neutron.ports) == [[attaching.first], []][step]


def test_one_at_a_time(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a guest is asked others wait for their turn, but not for ever."""
    monkeypatch.setattr(ApiOptions, 'answer_seconds', 0.3)
    attaching = Attaching(make_cloud)
    begun, go = threading.Event(), threading.Event()
    real = attaching.guests.detach_interface

    def slow(*args: Any) -> None:
        begun.set()
        assert go.wait(30)
        real(*args)

    attaching.guests.detach_interface = slow
    attaching.cloud.ok('DELETE', f'{attaching.path}/{attaching.first}')
    assert begun.wait(30)
    try:
        for method, path, body in (
            ('POST', attaching.path, {'interfaceAttachment': {'net_id': attaching.second}}),
            ('DELETE', f'{attaching.path}/{attaching.first}', None),
            ('POST', f'/servers/{attaching.server}/action', {'os-stop': None}),
        ):
            assert attaching.cloud.request(method, path, body).status_int == 409
    finally:
        go.set()
    attaching.cloud.settle()
    assert attaching.ports() == []


def test_an_attach_that_takes_long(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says that it goes on, and it does."""
    monkeypatch.setattr(ApiOptions, 'answer_seconds', 0.3)
    attaching = Attaching(make_cloud)
    go, real = threading.Event(), attaching.guests.attach_interface

    def slow(*args: Any) -> None:
        assert go.wait(30)
        real(*args)

    attaching.guests.attach_interface = slow
    answer = attaching.cloud.request('POST', attaching.path, {'interfaceAttachment': {'net_id': attaching.second}})
    go.set()
    assert answer.status_int == 503 and 'The request continues' in answer.text and 'attach_interface' in answer.text
    attaching.cloud.settle()
    assert len(attaching.ports()) == 2


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('kind', KINDS)
def test_the_conductor_crashes_after_each_effect_in_turn(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before the first statement of the flow's worker, and before the first one after all that it commits or asks for;
    another one goes on, and comes to the same."""
    cloud, number, happened = attaching.cloud, places.first(), True
    while happened:
        before = attaching.ports()
        answers: list[Any] = []

        def ask(port: str = before[-1], answers: list[Any] = answers) -> None:
            answers.append(
                cloud.request('POST', attaching.path, {'interfaceAttachment': {'net_id': attaching.second}})
                if kind == 'attach'
                else cloud.request('DELETE', f'{attaching.path}/{port}')
            )

        with crash_at(cloud, monkeypatch, number) as crashed:
            asking = threading.Thread(target=ask)
            asking.start()
            while not crashed.is_set() and (asking.is_alive() or cloud.rows()):
                crashed.wait(0.02)
        happened = crashed.is_set()
        if happened:
            cloud.crash_conductor()
            cloud.start_conductor()
        cloud.settle()
        asking.join(60)
        assert [answer.status_int for answer in answers] == [200 if kind == 'attach' else 202]
        if kind == 'attach':
            assert attaching.ports()[:-1] == before
            attaching.detach(answers[0].json['interfaceAttachment']['port_id'])
        else:
            assert attaching.ports() == before[:-1]
            attaching.attach(net_id=attaching.second)
        number += places.STEP
    assert number > 4, f'only {number} effects'
