"""Cinder moves a volume to another back end while a server has it, and its guest goes along. What becomes of it where a
step fails, Cinder is silent or the host dies is in tests/flows/test_ports_and_volumes.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from tests.fixtures import places
from tests.fixtures.cloud import Cloud
from tests.fixtures.notifications import Recorder
from tests.flows.cases import disturb, hear_again, silent_hosts
from tests.functional.test_volumes import Storing, crash_after, there

STEPS = ('attach_copy', 'copy', 'swap', 'merge_records')


class Moving(Storing):
    """With one server that has a volume."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        super().__init__(make_cloud, **options)
        self.server, self.volume = self.with_volume()
        self.copy = ''

    def swap(self, **fields: Any) -> None:
        """Begin it, as Cinder does."""
        self.copy = self.cinder.migrate(self.volume, retype=True, **fields)
        answer = self.cloud.request(
            'PUT',
            f'/servers/{self.server}/os-volume_attachments/{self.volume}',
            {'volumeAttachment': {'volumeId': self.copy}},
            version='2.1',
        )
        assert answer.status_int == 202, answer.text

    def place(self) -> str | None:
        """Where the guest's next start finds the volume."""
        host = self.cloud.host_of(self.server)
        guest = self.driver(host).guests._libvirt.find(self.server)
        for disk in ElementTree.fromstring(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)).iter('disk'):
            if disk.findtext('serial') == self.volume:
                source = disk.find('source')
                return None if source is None else source.get('name')
        return None

    def assert_swapped(self, status: str = 'ACTIVE') -> None:
        """The volume has what its copy had, and nothing else is left."""
        assert self.story(self.server) == ('swap_volume', False), self.cloud.story(self.server)
        assert self.place() == f'volumes/{self.copy}'
        self.assert_one('success', status)

    def assert_as_before(self, place: str | None) -> None:
        assert self.story(self.server) == ('swap_volume', True) and self.place() == place
        self.assert_one('error')

    def assert_one(self, said: str, status: str = 'ACTIVE') -> None:
        assert self.cloud.status(self.server) == status and self.volumes(self.server) == [self.volume]
        assert self.cinder.statuses() == {self.volume: 'in-use'}
        assert self.cinder.volumes[self.volume]['os-vol-mig-status-attr:migstat'] == said

    def wait_for(self, method: str) -> threading.Event:
        """Set when a host is asked for that, and doesn't answer then."""
        asked = threading.Event()

        def on_message(kind: str, topic: str, host: str, called: str, args: Any, deliver: Callable[[], Any]) -> Any:
            if called == method:
                asked.set()
                raise errors.Unanswered(who=host, reason='it was lost')
            return deliver()

        self.cloud.on_message = on_message
        return asked


@pytest.fixture
def site(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Moving:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.volume.volumes.LATE', 0.2)
    return Moving(make_cloud)


def test_the_volume_is_where_its_copy_was(make_cloud: Callable[..., Cloud]) -> None:
    """Its id, tag and fate stay; its size is the copy's. Also while the guest is held; then it moves on."""
    recorder = Recorder()
    site = Moving(
        make_cloud,
        sender=recorder,
        oslo_messaging_notifications__driver=['messagingv2'],
        notifications__notification_format='versioned',
    )
    cloud = site.cloud
    site.detach(site.server, site.volume)
    site.attach(site.server, site.volume, tag='data', delete_on_termination=True)
    recorder.sent.clear()
    site.swap(size=3)
    cloud.settle()
    site.assert_swapped()
    told = [(message.event, message.payload['nova_object.data']) for message in recorder.of(True)]
    assert [(event, payload['old_volume_id'], payload['new_volume_id']) for event, payload in told] == [
        (f'instance.volume_swap.{phase}', site.volume, site.copy) for phase in ('start', 'end')
    ]
    (row,) = cloud.ok('GET', f'/servers/{site.server}/os-volume_attachments')['volumeAttachments']
    assert (row['tag'], row['delete_on_termination']) == ('data', True)
    assert cloud.story(site.server)[0][2][0][:2] == ('compute_swap_volume', 'Success')
    cloud.action(site.server, 'pause')
    site.swap(size=3)
    cloud.settle()
    site.assert_swapped('PAUSED')
    cloud.action(site.server, 'unpause')
    cloud.action(site.server, 'migrate')
    cloud.action(site.server, 'confirmResize')
    assert site.volumes(site.server) == [site.volume] and site.place() == f'volumes/{site.copy}'
    site.delete(site.server)
    site.assert_empty()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_the_conductor_crashes_after_each_effect_in_turn(site: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    number = places.first()
    while crash_after(site.cloud, monkeypatch, number, site.swap):
        site.assert_swapped()
        number += places.STEP
    site.assert_swapped()
    assert number > 6


@pytest.mark.parametrize('silent', [False, True])
def test_deleted_meanwhile(site: Moving, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is gone at once. The volume is free then, and there is one of both; so it is when Cinder, who was
    silent, answers again. Behind the copy it goes to its end."""

    def broken(method: str, path: str) -> None:
        raise site.cinder.broken()

    def delete(real: Callable[..., None], work: Any) -> None:
        real(work)
        if silent:
            site.cinder.before = broken
        site.cloud.ok('DELETE', f'/servers/{site.server}')

    for index, step in enumerate(STEPS):
        with monkeypatch.context() as patch:
            disturb(patch, 'swap_volume', index, delete)
            site.swap()
            site.cloud.settle(kinds_left=('release',))
        assert site.cloud.status(site.server) == 'GONE'
        site.cinder.before = None
        site.cloud.settle()
        site.assert_empty(site.volume)
        moved = site.cinder.volumes[site.volume]['os-vol-mig-status-attr:migstat'] == 'success'
        assert moved is (step != 'attach_copy'), step
        site.server = site.boot(there(site.volume))


def test_a_guest_that_does_not_go_along(site: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume is what it was, its copy is gone, and another try works."""
    was, volumes = site.place(), site.driver(site.cloud.host_of(site.server)).volumes

    def break_it(*args: Any) -> None:
        raise errors.KilonovaError('The copy is broken.')

    for what, refuse, said in (('copy', break_it, 'broken'), ('swap', lambda *args: False, 'still has volume')):
        with monkeypatch.context() as patch:
            patch.setattr(volumes, what, refuse)
            site.swap()
            site.cloud.settle()
        site.assert_as_before(was)
        assert said in str(site.cloud.story(site.server)[0])
    site.swap()
    site.cloud.settle()
    site.assert_swapped()


@pytest.mark.parametrize('forced', [True, False])
def test_nobody_knows_what_the_guest_has(site: Moving, forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is down after it was asked to swap. The server waits for it, or until it is forced down; the copy has
    all that the guest wrote."""
    cloud, host, silent = site.cloud, site.cloud.host_of(site.server), silent_hosts(monkeypatch)
    was, asked = site.place(), site.wait_for('swap_volume')
    site.swap()
    assert asked.wait(10)
    silent.add(host)
    threading.Event().wait(0.2)
    assert [row['kind'] for row in cloud.rows()] == ['swap_volume'] and site.place() == was
    assert {volume for volume, _, _ in site.held(site.server)} == {site.volume, site.copy}
    hear_again(cloud, site.server, silent, forced)
    assert site.place() == f'volumes/{site.copy}'
    site.assert_one('success')


def test_cinder_forgets_the_move(site: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator of it said so. The guest has what was the copy, and so has the server, under the id of that."""

    def forget(real: Callable[..., None], work: Any) -> None:
        for volume in site.cinder.volumes.values():
            volume['os-vol-mig-status-attr:migstat'] = None
        real(work)

    disturb(monkeypatch, 'swap_volume', STEPS.index('merge_records'), forget)
    site.swap()
    site.cloud.settle()
    site.cloud.action(site.server, 'reboot', {'type': 'HARD'})
    assert site.volumes(site.server) == [site.copy]
    assert site.cinder.statuses() == {site.volume: 'available', site.copy: 'in-use'}
