"""Rebuild of servers that boot from a volume, which gets the image: the volume is the server's all the while, and is
attached to its host in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from tests.fixtures import places
from tests.fixtures.cloud import IMAGE_ID, OTHER_IMAGE_ID, Cloud
from tests.flows.cases import bring_back, dies_at, disturb
from tests.functional.test_volumes import Storing, crash_after

STEPS = ('check_host', 'save_spec', 'stop_guest', 'reserve_root_volume', 'reimage', 'rebuild_from_volume')


class Rebuilding(Storing):
    """With one server that boots from a volume of its user's."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        super().__init__(make_cloud, **options)
        self.cinder.images = {IMAGE_ID: {}, OTHER_IMAGE_ID: {}}
        self.server, self.root = self.with_volume(
            root=True, volume_image_metadata={'image_id': IMAGE_ID, 'hw_rng_model': 'virtio'}
        )

    def rebuild(self, image: str = OTHER_IMAGE_ID, **more: Any) -> None:
        """Begin it."""
        answer = self.cloud.request('POST', f'/servers/{self.server}/action', {'rebuild': {'imageRef': image, **more}})
        assert answer.status_int == 202, answer.text

    def rebuilt(self, image: str = OTHER_IMAGE_ID, status: str = 'ACTIVE') -> None:
        """Once more, whatever came before; all goes well."""
        self.rebuild(image)
        self.cloud.settle()
        self.assert_rebuilt(image, status)

    def assert_rebuilt(self, image: str = OTHER_IMAGE_ID, status: str = 'ACTIVE') -> None:
        assert self.cloud.status(self.server) == status, self.cloud.story(self.server)
        assert self.written() == image and self.volumes(self.server) == [self.root]
        assert self.cinder.statuses()[self.root] == 'in-use'

    def written(self) -> str:
        """The image that the volume has."""
        found: str = self.cinder.volumes[self.root]['volume_image_metadata']['image_id']
        return found

    def another(self) -> str:
        """The image that it hasn't."""
        return OTHER_IMAGE_ID if self.written() == IMAGE_ID else IMAGE_ID

    def asks(self) -> int:
        """How often an image was asked for."""
        return self.cinder.asked.count(('POST', f'/volumes/{self.root}/action'))

    def until_written(self) -> None:
        """Until the volume service is at it, and the flow waits."""
        while self.cinder.statuses()[self.root] != 'downloading' or any(row['owner'] for row in self.cloud.rows()):
            threading.Event().wait(0.02)

    def tell(self) -> None:
        """The volume service tells that it has written the image."""
        answer = self.cloud.request(
            'POST',
            '/os-server-external-events',
            {'events': [{'name': 'volume-reimaged', 'server_uuid': self.server, 'tag': self.root}]},
            version='2.93',
        )
        assert [event['code'] for event in answer.json['events']] == [200]

    def fault(self) -> str:
        found: str = self.cloud.show(self.server)['fault']['message']
        return found

    def power(self) -> int:
        """1: the guest runs, 4: it is off."""
        host = self.cloud.host_of(self.server)
        return int(self.driver(host).guests._libvirt.find(self.server).power_state())


@pytest.fixture
def site(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Rebuilding:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.rebuild.LOOK', 0.05)
    monkeypatch.setattr('kilonova.conductor.flows.volume.volumes.LATE', 0.2)
    return Rebuilding(make_cloud)


def test_a_volume_gets_the_image_while_no_host_has_it(site: Rebuilding) -> None:
    """The guest is off meanwhile, and the volume reserved for the server. One that is off stays so."""
    cloud, seen = site.cloud, []
    host = cloud.host_of(site.server)

    def look(method: str, path: str) -> None:
        if (method, path) == ('POST', f'/volumes/{site.root}/action'):
            seen.append((site.held(site.server), site.power()))

    site.cinder.before = look
    site.rebuild(name='new', metadata={'a': 'b'})
    cloud.settle()
    site.assert_rebuilt()
    shown = cloud.show(site.server)
    assert (shown['name'], shown['metadata'], shown['image']) == ('new', {'a': 'b'}, '')
    assert cloud.host_of(site.server) == host
    assert site.power() == 1 and cloud.story(site.server)[0][0] == 'rebuild'
    assert [event[:2] for event in cloud.story(site.server)[0][2]] == [
        ('compute_rebuild_instance', 'Success'),
        ('rebuild_server', 'Success'),
    ]
    cloud.action(site.server, 'os-stop')
    site.rebuilt(IMAGE_ID, 'SHUTOFF')
    assert site.power() == 4 and seen == [([(site.root, 'reserved', None)], 4)] * 2
    site.delete(site.server)
    site.assert_empty(site.root)


@pytest.mark.parametrize('told', [True, False])
def test_an_image_that_is_written_slowly(site: Rebuilding, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild goes on when Cinder says so; if it doesn't, at the next look."""
    if told:
        monkeypatch.setattr('kilonova.conductor.flows.rebuild.LOOK', 3600.0)
    site.cinder.slow = True
    site.rebuild()
    site.until_written()
    assert site.cloud.status(site.server) == 'REBUILD'
    site.cinder.finish_image(site.root)
    if told:
        site.tell()
    site.cloud.settle()
    site.assert_rebuilt()
    assert site.asks() == 1
    # Nobody waits for this one.
    site.tell()


def test_what_cinder_refuses_leaves_all_as_it_was(site: Rebuilding) -> None:
    """Also an image that is gone meanwhile."""
    cloud = site.cloud
    site.cinder.images[OTHER_IMAGE_ID]['min_disk'] = '7'
    for reason in ('cannot be smaller', 'could not be found'):
        site.rebuild(name='new')
        cloud.settle()
        assert cloud.status(site.server) == 'ACTIVE' and cloud.show(site.server)['name'] != 'new'
        assert site.volumes(site.server) == [site.root] and site.written() == IMAGE_ID and site.power() == 1
        assert reason in str(cloud.story(site.server)[0]), cloud.story(site.server)[0]
        site.cinder.images.pop(OTHER_IMAGE_ID, None)
    site.cinder.images[OTHER_IMAGE_ID] = {}
    site.rebuilt()


@pytest.mark.parametrize('how', ['error', 'never'])
def test_an_image_that_is_not_written(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """ERROR, with a fault that says why; the volume stays reserved, and another rebuild makes all good. A server whose
    volume is broken is deleted like any other."""
    monkeypatch.setattr('kilonova.conductor.flows.rebuild.LOOK', 0.05)
    site = Rebuilding(make_cloud, reimage_timeout_per_gb=1)
    cloud, cinder = site.cloud, site.cinder
    if how == 'error':
        cinder.fails.add('reimage')
    else:
        cinder.slow = True
    site.rebuild()
    cloud.settle()
    assert cloud.status(site.server) == 'ERROR'
    assert f'Volume {site.root} did not get image {OTHER_IMAGE_ID} even after we waited' in site.fault()
    assert f'its status is {"error" if how == "error" else "downloading"}' in site.fault()
    assert site.held(site.server) == [(site.root, 'reserved', None)]
    # Until then no guest runs from it.
    cloud.action(site.server, 'reboot', {'type': 'HARD'})
    assert cloud.status(site.server) == 'ERROR' and site.held(site.server) == [(site.root, 'reserved', None)]
    if how == 'error':
        site.rebuild()
        cloud.settle()
        assert cloud.status(site.server) == 'ERROR'
        cinder.fails.clear()
        site.rebuilt()
        cinder.fails.add('reimage')
        site.rebuild(IMAGE_ID)
    else:
        site.rebuild()
        while not site.cloud.rows():
            threading.Event().wait(0.02)
        cinder.finish_image(site.root)
        cinder.slow = False
        cloud.settle()
        site.assert_rebuilt()
    cloud.settle()
    site.delete(site.server)
    site.assert_empty(site.root)


def test_a_volume_that_can_not_be_attached_again(site: Rebuilding) -> None:
    """Its guest is off: that is ERROR, not what it was; what the rebuild changed of the server is taken back. A hard
    reboot starts it when the volume can be attached."""
    del site.cinder.images[OTHER_IMAGE_ID]
    site.cinder.fails.add('connect')
    site.rebuild(name='new')
    site.cloud.settle()
    assert site.cloud.status(site.server) == 'ERROR' and 'could not be found' in site.fault()
    assert site.cloud.show(site.server)['name'] != 'new' and site.written() == IMAGE_ID
    site.cinder.fails.clear()
    site.cloud.action(site.server, 'reboot', {'type': 'HARD'})
    site.assert_rebuilt(IMAGE_ID)


@pytest.mark.parametrize('lost', ['request', 'answer'])
def test_cinder_is_silent_at_each_request_in_turn(site: Rebuilding, lost: str) -> None:
    """It is asked again, and comes to the same."""
    cinder, number, asked = site.cinder, -places.first(), [1]

    def broken(method: str, path: str) -> None:
        if threading.current_thread().name.startswith('flow-'):
            asked.append(number)
            if len(asked) - 1 == number:
                raise cinder.broken()

    setattr(cinder, 'before' if lost == 'request' else 'after', broken)
    while len(asked) > number:
        number, asked[:] = number + places.STEP, []
        site.rebuilt(site.another())
    assert number > 8, f'only {number} requests'


@pytest.mark.parametrize('moment', ['before', 'after'])
def test_the_host_dies_at_each_thing_that_it_tells(site: Rebuilding, moment: str) -> None:
    """All is as it was when it is back, or ERROR, and another rebuild works."""
    cloud, number, ends, gone = site.cloud, 0, set(), True
    while gone:
        was, death = site.written(), dies_at(cloud, number, moment)
        site.rebuild(site.another())
        cloud.settle(kinds_left=('release',))
        cloud.on_message = None
        gone = death.gone is not None
        if death.gone is not None:
            bring_back(cloud, death.gone)
        cloud.settle()
        ends.add((cloud.status(site.server), site.written() == was))
        assert site.held(site.server) == [(site.root, 'attached', cloud.host_of(site.server))], number
        site.rebuilt(site.another())
        number += 1
    assert number > 3 and ends == {('ACTIVE', True), ('ERROR', False), ('ACTIVE', False)}, (number, ends)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('fate', ['goes well', 'is refused', 'fails'])
def test_the_conductor_crashes_after_each_effect_in_turn(
    site: Rebuilding, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one goes on, and comes to the same; also one that doesn't know whether the image was refused before."""
    number, happened = places.first(), True
    while happened:
        image = site.another()
        kept = site.cinder.images.pop(image) if fate == 'is refused' else None
        if fate == 'fails':
            site.cinder.fails.add('reimage')
        happened = crash_after(site.cloud, monkeypatch, number, lambda wanted=image: site.rebuild(wanted))
        if fate == 'goes well':
            site.assert_rebuilt(image)
        elif fate == 'is refused':
            assert site.cloud.status(site.server) == 'ACTIVE', number
            site.cinder.images[image] = kept or {}
            assert site.power() == 1 and site.written() != image
            site.assert_rebuilt(site.written())
        else:
            assert site.cloud.status(site.server) == 'ERROR', number
            assert site.held(site.server) == [(site.root, 'reserved', None)], number
            site.cinder.fails.clear()
            site.rebuilt()
        number += places.STEP
    assert number > 8


@pytest.mark.parametrize('step', STEPS)
def test_deleted_meanwhile(site: Rebuilding, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(real: Callable[..., None], work: Any) -> None:
        site.cloud.ok('DELETE', f'/servers/{site.server}')
        real(work)

    disturb(monkeypatch, 'reimage', STEPS.index(step), delete)
    site.rebuild()
    site.cloud.settle()
    site.assert_empty(site.root)


def test_deleted_while_the_image_is_written(site: Rebuilding) -> None:
    """The server is gone at once; the volume is free when Cinder has done with it, and not reserved for nobody."""
    site.cinder.slow = True
    site.rebuild()
    site.until_written()
    site.cloud.ok('DELETE', f'/servers/{site.server}')
    site.cloud.settle(kinds_left=('release',))
    assert site.cloud.status(site.server) == 'GONE' and site.held(site.server) == [(site.root, 'reserved', None)]
    site.cinder.finish_image(site.root)
    site.cloud.settle()
    site.assert_empty(site.root)


def test_reset_while_the_image_is_written(site: Rebuilding) -> None:
    """No guest gets the volume before Cinder has done with it."""
    cloud = site.cloud
    site.cinder.slow = True
    site.rebuild()
    site.until_written()
    cloud.action(site.server, 'os-resetState', {'state': 'error'})
    cloud.action(site.server, 'reboot', {'type': 'HARD'})
    assert cloud.status(site.server) == 'ERROR'
    assert 'while an image is written to it' in str(cloud.story(site.server)[0])
    site.cinder.finish_image(site.root)
    cloud.action(site.server, 'reboot', {'type': 'HARD'})
    site.assert_rebuilt()


def test_before_293_the_volume_stays_as_it_is(site: Rebuilding) -> None:
    """The rest of a rebuild is done, with the volume's image."""
    site.cinder.asked.clear()
    site.cloud.action(site.server, 'rebuild', {'imageRef': IMAGE_ID, 'name': 'new'}, version='2.92')
    site.assert_rebuilt(IMAGE_ID)
    assert site.asks() == 0 and site.cloud.show(site.server)['name'] == 'new'
    refused = site.cloud.action(site.server, 'rebuild', {'imageRef': OTHER_IMAGE_ID}, version='2.92', expect=400)
    assert 'different image for a volume-backed server' in refused.text


def test_a_host_of_the_release_before_changes_nothing(site: Rebuilding) -> None:
    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if method == 'stop_to_reimage':
            raise errors.KilonovaError('too old')
        return deliver()

    site.cloud.on_message = on_message
    site.rebuild()
    site.cloud.settle()
    site.cloud.on_message = None
    site.assert_rebuilt(IMAGE_ID)
    assert site.asks() == 0 and site.power() == 1
