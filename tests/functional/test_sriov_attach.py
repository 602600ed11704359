"""Ports that are functions of PCI devices come to servers and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.compute.operation import HostTask
from kilonova.db.queries import instances
from tests.fixtures import places
from tests.fixtures.neutron import FUNCTIONS
from tests.flows.cases import bring_back, crash_at, disturb, force_down, lose_host
from tests.functional.carded import VIRTUAL, Carded
from tests.functional.test_ports import broken, other

KINDS = ('attach', 'detach')


class Attaching:
    """``server``: one with a plain port; ``port``: one that is a function, and belongs to nobody yet. Requests are
    answered while the cloud works."""

    def __init__(self, carded: Carded, vnic_type: str = 'direct') -> None:
        self.carded, self.cloud = carded, carded.cloud
        self.server, self.port = carded.boot({'uuid': carded.network}), carded.port(vnic_type)
        self.host = self.cloud.host_of(self.server)
        self.path = f'/servers/{self.server}/os-interface'

    def act(self, kind: str) -> Any:
        if kind == 'attach':
            answer = self.cloud.request('POST', self.path, {'interfaceAttachment': {'port_id': self.port}})
        else:
            answer = self.cloud.request('DELETE', f'{self.path}/{self.port}')
        self.cloud.settle(kinds_left=('release',))
        return answer

    def before(self, kind: str) -> None:
        """What the act finds."""
        if kind == 'detach':
            assert self.act('attach').status_int == 200
            self.assert_has(True)

    def assert_has(self, it: bool) -> None:
        """Whether the server, its guest and the ledger have the function; nothing else has anything of it."""
        cloud, profile = self.cloud, self.carded.profile(self.port)
        report = cloud.audit()
        assert [one for one in report.disagreements if not one.startswith(f'libvirt: domain {self.server} on')] == []
        assert report.in_flight == []
        slot, function = profile.get('pci_slot'), self.carded.neutron.ports[self.port]['binding:vnic_type']
        assert cloud.owned(self.server) == ([f'{self.host} {slot}'] if it else [])
        assert {status for status, owner in cloud.devices().values() if owner} == ({'allocated'} if it else set())
        given = {
            'macvtap': 'direct',
            'direct': 'pci' if FUNCTIONS[function] == 'ib_hostdev' else 'hostdev',
            'direct-physical': 'pci',
        }[function]
        assert self.carded.defined(self.server) == ['bridge'] + [given] * it
        assert (self.port in (self.row()['extra_pci_requests'] or '')) == it
        if not it:
            assert self.carded.neutron.ports[self.port]['device_id'] == '' and profile == {'note': 'mine'}

    def row(self) -> dict[str, Any]:
        with self.cloud.cell.read() as conn:
            return dict(instances.get(conn, self.server) or {})

    def places(self) -> list[str]:
        """The MAC addresses of the functions that the guest's metadata tell."""
        found = self.row()['extra_device_metadata']
        return [one.mac for one in objects.InstanceDeviceMetadata.from_json(found).devices] if found else []

    def gone(self) -> None:
        """The server is deleted, and nothing of it is left."""
        self.carded.delete(self.server)
        self.carded.assert_empty(kept=1)
        assert self.carded.profile(self.port) == {'note': 'mine'}


@pytest.mark.parametrize(
    ('vnic_type', 'bound'),
    [('direct', 'hw_veb'), ('macvtap', 'hw_veb'), ('direct-physical', 'hostdev_physical'), ('direct', 'ib_hostdev')],
)
def test_attached_and_detached(carded: Carded, monkeypatch: pytest.MonkeyPatch, vnic_type: str, bound: str) -> None:
    """A function comes and goes, also of a guest that is off; its next start has it."""
    monkeypatch.setitem(FUNCTIONS, vnic_type, bound)
    attaching = Attaching(carded, vnic_type)
    cloud = carded.cloud
    for is_off in (False, True):
        if is_off:
            cloud.action(attaching.server, 'os-stop')
        body = attaching.act('attach').json['interfaceAttachment']
        port = carded.neutron.ports[attaching.port]
        assert (body['port_id'], body['mac_addr']) == (attaching.port, port['mac_address'])
        assert (port['binding:host_id'], carded.profile(attaching.port)['note']) == (attaching.host, 'mine')
        attaching.assert_has(True)
        cloud.action(attaching.server, 'os-start' if is_off else 'reboot', None if is_off else {'type': 'HARD'})
        assert cloud.status(attaching.server) == 'ACTIVE', cloud.story(attaching.server)
        attaching.assert_has(True)
        if is_off:
            cloud.action(attaching.server, 'os-stop')
        assert not is_off or attaching.places() == [port['mac_address']] * (vnic_type != 'macvtap')
        assert attaching.act('detach').status_int == 202
        attaching.assert_has(False)
        assert not is_off or attaching.places() == []
    cloud.action(attaching.server, 'os-start')
    attaching.act('attach')
    cloud.action(attaching.server, 'migrate')
    cloud.action(attaching.server, 'confirmResize')
    attaching.host = other(attaching.host)
    attaching.assert_has(True)
    attaching.gone()


def test_no_device_is_left_to_attach(carded: Carded) -> None:
    """The answer says what is lacking, and nothing has changed."""
    attaching = Attaching(carded)
    force_down(carded.cloud, other(attaching.host), True)
    for _ in VIRTUAL:
        carded.with_port()
    answer = attaching.act('attach')
    assert answer.status_int == 409
    assert f'{attaching.host} has fewer than 1 free type-VF devices of physical network physnet1' in answer.text
    assert carded.cloud.owned(attaching.server) == []
    assert carded.neutron.ports[attaching.port]['device_id'] == ''
    force_down(carded.cloud, other(attaching.host), False)
    carded.cloud.assert_clean()


# The steps in which something is done for such a port: it guarantees nothing.
STEPS = {'attach': (1, 2, 3), 'detach': (0, 1)}


@pytest.mark.parametrize(('kind', 'steps'), [('attach', STEPS['attach']), ('detach', (0,))])
def test_what_fails_leaves_all_as_it_was(
    carded: Carded, kind: str, steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step, when it was done."""
    attaching = Attaching(carded)
    attaching.before(kind)
    for step in steps:

        def fail(real: Callable[..., None], work: Any) -> None:
            real(work)
            broken()

        with monkeypatch.context() as patch:
            disturb(patch, f'{kind}_interface', step, fail)
            attaching.act(kind)
        # The last step ends the operation.
        attaching.assert_has((kind == 'detach') != (step == 3))
    attaching.gone()


@pytest.mark.parametrize('kind', KINDS)
def test_a_delete_wins_over_an_attach(carded: Carded, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step."""
    for step in STEPS[kind]:
        attaching = Attaching(carded)
        attaching.before(kind)

        def delete(real: Callable[..., None], work: Any, server: str = attaching.server) -> None:
            carded.cloud.ok('DELETE', f'/servers/{server}')
            real(work)

        with monkeypatch.context() as patch:
            disturb(patch, f'{kind}_interface', step, delete)
            attaching.act(kind)
            carded.cloud.settle()
        carded.assert_empty(kept=1)
        assert carded.profile(attaching.port) == {'note': 'mine'}
        del carded.neutron.ports[attaching.port]


@pytest.mark.parametrize('method', ['claim_function', 'attach_interface', 'detach_interface', 'free_function'])
@pytest.mark.parametrize('is_lost', [False, True])
def test_the_host_of_an_attach_dies(carded: Carded, method: str, is_lost: bool) -> None:
    """It did what it was asked, and then it died, or only its reply was lost; what it must take back it does when it
    returns."""
    attaching, kind = Attaching(carded), 'attach' if method in ('claim_function', 'attach_interface') else 'detach'
    attaching.before(kind)
    endpoint = carded.cloud.computes[attaching.host].endpoint
    real = getattr(endpoint, method)

    def dies(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        setattr(endpoint, method, real)
        if not is_lost:
            lose_host(carded.cloud, attaching.host)
            force_down(carded.cloud, attaching.host, True)
        raise errors.Unanswered(who=attaching.host, reason='it died')

    setattr(endpoint, method, dies)
    attaching.act(kind)
    if not is_lost:
        assert 'release' in [row['kind'] for row in carded.cloud.rows()]
        bring_back(carded.cloud, attaching.host)
        carded.cloud.settle()
    attaching.assert_has({'attach': is_lost, 'detach': method == 'detach_interface' and not is_lost}[kind])
    attaching.gone()


def test_a_claim_that_the_release_before_asked_for_under_a_former_step_name_is_not_made_twice(
    carded: Carded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conductor of that release called the host and ended; one of this release continues the operation."""
    attaching, claimed, make = Attaching(carded), [], HostTask.claim_more
    endpoint = carded.cloud.computes[attaching.host].endpoint
    real = endpoint.claim_function

    def called_before(*args: Any, key: str, **kwargs: Any) -> Any:
        endpoint.claim_function = real
        real(*args, key=f'{key.partition("/")[0]}/1.claim/1', **kwargs)
        raise errors.Unanswered(who=attaching.host, reason='the conductor ended')

    def claim_more(op: HostTask, request: objects.InstancePCIRequest) -> Any:
        claimed.append(op.key)
        return make(op, request)

    monkeypatch.setattr(HostTask, 'claim_more', claim_more)
    endpoint.claim_function = called_before
    attaching.act('attach')
    assert [key.partition('/')[2] for key in claimed] == ['1.claim/1']
    attaching.assert_has(True)
    attaching.gone()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('kind', KINDS)
def test_the_conductor_of_an_attach_crashes(carded: Carded, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """After each effect in turn; another one goes on, and comes to the same."""
    attaching, number, happened = Attaching(carded), places.first(), True
    while happened:
        attaching.before(kind)
        with crash_at(carded.cloud, monkeypatch, number) as crashed:
            answers: list[Any] = []
            asking = threading.Thread(
                target=lambda answers=answers: answers.append(
                    carded.cloud.request('POST', attaching.path, {'interfaceAttachment': {'port_id': attaching.port}})
                    if kind == 'attach'
                    else carded.cloud.request('DELETE', f'{attaching.path}/{attaching.port}')
                )
            )
            asking.start()
            while not crashed.is_set() and (asking.is_alive() or carded.cloud.rows()):
                crashed.wait(0.02)
        happened = crashed.is_set()
        if happened:
            carded.cloud.crash_conductor()
            carded.cloud.start_conductor()
        carded.cloud.settle()
        asking.join(60)
        assert [answer.status_int for answer in answers] == [200 if kind == 'attach' else 202]
        attaching.assert_has(kind == 'attach')
        if kind == 'attach':
            attaching.act('detach')
        number += places.STEP
    assert number > 4, f'only {number} effects'
