"""Servers with volumes of Cinder: booted with them, attached, detached, moved, deleted; what is left behind: nothing.

``tests/fixtures/cinder.py`` plays Cinder; ``tests/integration/test_cinder.py`` has the real one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from kilonova.conductor.flows.volume import volumes as flow_volumes
from kilonova.db.queries import volumes as rows
from kilonova.virt.parts.volumes import VolumeCounters
from tests.fixtures import places
from tests.fixtures.cinder import ENCRYPTION, FakeCinder
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud, Crash
from tests.fixtures.notifications import Recorder
from tests.flows.cases import crash_at, disturb

HOSTS = ('gpu1', 'gpu2')
KINDS = ('attach', 'detach')
KEY = '5e' * 32
LIVE = {'host': None, 'block_migration': 'auto'}
RBD = {
    'driver_volume_type': 'rbd',
    'name': 'volumes/volume',
    'hosts': ['192.0.2.1'],
    'ports': ['6789'],
    'cluster_name': 'ceph',
    'auth_enabled': True,
    'auth_username': 'cinder',
    'secret_type': 'ceph',
    'secret_uuid': '99999999-0000-4000-8000-000000000000',
    'access_mode': 'rw',
    'encrypted': False,
}


class Storing:
    """A cloud with Cinder, and two hosts."""

    def __init__(self, make_cloud: Callable[..., Cloud], hosts: Sequence[str] = HOSTS, **options: Any) -> None:
        self.cinder = FakeCinder()
        self.cinder.connection = RBD
        self.cinder.users.update({f'{user}:{PROJECT}': PROJECT for user in ('admin', 'demo')})
        self.cloud = make_cloud(
            {host: ['0000:08:00.0'] for host in hosts},
            cinder=self.cinder,
            **{'block_device_allocate_retries_interval': 0, 'key_manager__fixed_key': KEY, **options},
        )
        self.flavor = self.cloud.flavor()

    def boot(self, *devices: dict[str, Any], status: str = 'ACTIVE', **more: Any) -> str:
        """With these disks besides its root disk."""
        root = {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE_ID, 'boot_index': 0}
        if any(device.get('boot_index') == 0 for device in devices):
            mapping, more = list(devices), {'imageRef': '', **more}
        else:
            mapping = [root, *devices]
        server: str = self.cloud.create(self.flavor, block_device_mapping_v2=mapping, **more)['server']['id']
        self.cloud.settle(kinds_left=('release',))
        assert self.cloud.status(server) == status, (self.cloud.story(server), self.cloud.show(server).get('fault'))
        return server

    def volume(self, **fields: Any) -> str:
        return self.cinder.add_volume(PROJECT, **fields)

    def with_volume(self, *, root: bool = False, **more: Any) -> tuple[str, str]:
        """A server with a volume of its user's, which it boots from if that is its ``root``: both ids."""
        volume = self.volume(bootable='true' if root else 'false', **more)
        return self.boot(there(volume, **({'boot_index': 0} if root else {}))), volume

    def attach(self, server: str, volume: str, status: int = 202, version: str = '2.101', **more: Any) -> Any:
        answer = self.cloud.request(
            'POST',
            f'/servers/{server}/os-volume_attachments',
            {'volumeAttachment': {'volumeId': volume, **more}},
            version=version,
        )
        assert answer.status_int == status, answer.text
        self.cloud.settle(kinds_left=('release',))
        return answer

    def detach(self, server: str, volume: str, status: int = 202) -> Any:
        answer = self.cloud.request('DELETE', f'/servers/{server}/os-volume_attachments/{volume}')
        assert answer.status_int == status, answer.text
        self.cloud.settle(kinds_left=('release',))
        return answer

    def delete(self, server: str) -> None:
        self.cloud.ok('DELETE', f'/servers/{server}')
        self.cloud.settle()

    def volumes(self, server: str) -> list[str]:
        """What a server has, by its rows, Cinder, the API and its guest, which all say the same."""
        self.cloud.assert_clean()
        host = self.cloud.host_of(server)
        with self.cloud.cell.read() as conn:
            found = [row['volume_id'] for row in rows.of_servers(conn, [server]).get(server, ())]
        assert [(volume, at) for volume, _, at in self.held(server)] == sorted((volume, host) for volume in found)
        assert {status for _, status, _ in self.held(server)} <= ({'attached'} if host else {'attached', 'reserved'})
        shown = [one['id'] for one in self.cloud.show(server)['os-extended-volumes:volumes_attached']]
        listed = [
            one['volumeId']
            for one in self.cloud.ok('GET', f'/servers/{server}/os-volume_attachments')['volumeAttachments']
        ]
        assert shown == listed == found
        if host:
            # The test driver of libvirt puts nothing into a guest that runs: its next start is looked at.
            xml = self.driver(host).guests._libvirt.find(server).call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
            assert sorted(re.findall('<serial>(.*?)</serial>', xml)) == sorted(found)
        return found

    def held(self, server: str) -> list[tuple[str, str, str | None]]:
        """(volume, status, host) of a server's attachments in Cinder."""
        return sorted(
            (one['volume_id'], one['status'], one['host'])
            for one in self.cinder.attachments.values()
            if one['instance'] == server
        )

    def driver(self, host: str) -> Any:
        return self.cloud.computes[host].host.driver

    def story(self, server: str) -> tuple[str, bool]:
        """The last action: its name, and whether it failed."""
        name, message = self.cloud.story(server)[0][:2]
        return name, message is not None

    def assert_empty(self, *kept: str) -> None:
        """No server is left, and nothing of one in Cinder; these volumes are free."""
        self.cloud.assert_empty()
        assert self.cinder.attachments == {}
        assert self.cinder.statuses() == dict.fromkeys(kept, 'available')


@pytest.fixture
def storing(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Storing:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return Storing(make_cloud)


def there(volume: str, **more: Any) -> dict[str, Any]:
    """A volume of the user's, as a boot asks for it."""
    return {'source_type': 'volume', 'destination_type': 'volume', 'uuid': volume, **more}


def made(**more: Any) -> dict[str, Any]:
    """One that is made for the server, and goes with it."""
    return {
        'source_type': 'blank',
        'destination_type': 'volume',
        'volume_size': 1,
        'delete_on_termination': True,
        **more,
    }


def other(host: str) -> str:
    (found,) = [each for each in HOSTS if each != host]
    return found


# --- boot and delete -------------------------------------------------------------------------------------------------
def test_a_boot_with_a_volume(storing: Storing) -> None:
    """Three requests for it, none of them for a key; the guest has it; a delete frees it."""
    volume = storing.volume()
    storing.cinder.asked.clear()
    server = storing.boot(there(volume), user='demo')
    assert len(storing.cinder.asked) <= 5, storing.cinder.asked
    assert not [path for _method, path in storing.cinder.asked if path.endswith('/encryption')]
    assert storing.volumes(server) == [volume]
    assert storing.cinder.attachments[next(iter(storing.cinder.attachments))]['device'] == '/dev/vdb'
    storing.delete(server)
    storing.assert_empty(volume)


def test_volumes_that_are_made_for_a_server(storing: Storing) -> None:
    """Of nothing, a snapshot and an image; those that go with it do, the other stays."""
    cinder = storing.cinder
    cinder.images[IMAGE_ID] = {}
    snapshot = cinder.add_snapshot(storing.volume())
    server = storing.boot(
        made(),
        made(source_type='snapshot', uuid=snapshot, delete_on_termination=False),
        made(source_type='image', uuid=IMAGE_ID, volume_size=2),
    )
    blank, of_snapshot, of_image = storing.volumes(server)
    assert cinder.volumes[of_snapshot]['snapshot_id'] == snapshot and cinder.volumes[of_image]['size'] == 2
    storing.delete(server)
    assert blank not in cinder.volumes and of_image not in cinder.volumes
    storing.cloud.assert_empty()
    assert cinder.statuses()[of_snapshot] == 'available' and cinder.attachments == {}


def test_a_volume_that_is_made_slowly(storing: Storing) -> None:
    """The boot goes on when it is there."""
    storing.cinder.slow = True
    server = storing.cloud.create(
        storing.flavor,
        block_device_mapping_v2=[
            {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE_ID, 'boot_index': 0},
            made(),
        ],
    )['server']
    (volume,) = storing.cinder.volumes
    seen = sum(path == f'/volumes/{volume}' for _, path in storing.cinder.asked)
    while sum(path == f'/volumes/{volume}' for _, path in storing.cinder.asked) < seen + 2:
        threading.Event().wait(0.05)
    assert storing.cloud.status(server['id']) == 'BUILD' and storing.held(server['id']) == []
    storing.cinder.slow = False
    storing.cinder.finish(volume)
    storing.cloud.settle()
    # Nothing that an earlier try left is looked for where there was none.
    assert [path for _, path in storing.cinder.asked if path.startswith('/attachments/detail')] == []
    assert storing.volumes(server['id']) == [volume]


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_a_conductor_dies_behind_the_wait_for_a_volume(storing: Storing) -> None:
    """Whoever goes on finds what it attached."""
    cloud, cinder = storing.cloud, storing.cinder
    cinder.slow = True
    server = cloud.create(
        storing.flavor,
        block_device_mapping_v2=[
            {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE_ID, 'boot_index': 0},
            made(),
        ],
    )['server']
    (volume,) = cinder.volumes
    crashed = threading.Event()

    def crash(method: str, path: str) -> None:
        if (method, path) == ('GET', f'/volumes/{volume}'):
            # From the second look on it is there.
            looks.append(path)
            if len(looks) > 1:
                cinder.finish(volume)
        elif path.endswith('/action') and not crashed.is_set():
            crashed.set()
            raise Crash

    looks: list[str] = []
    cinder.before = crash
    assert crashed.wait(30)
    cloud.crash_conductor()
    cloud.start_conductor()
    cloud.settle()
    assert cloud.status(server['id']) == 'ACTIVE' and storing.volumes(server['id']) == [volume]


@pytest.mark.parametrize('how', ['error', 'never'])
def test_a_volume_that_does_not_become_available(make_cloud: Callable[..., Cloud], how: str) -> None:
    """The fault names it and its state; what was made goes."""
    storing = Storing(make_cloud, block_device_allocate_retries=0 if how == 'never' else 60)
    storing.cinder.slow = True
    real = storing.cinder.add_volume

    def failing(*args: Any, **kwargs: Any) -> str:
        volume = real(*args, **kwargs)
        if how == 'error':
            storing.cinder.before = lambda method, path: (
                storing.cinder.volumes[volume].update(status='error')
                if (volume in storing.cinder.volumes and method == 'GET')
                else None
            )
        return volume

    storing.cinder.add_volume = failing  # type: ignore[method-assign]
    server = storing.boot(made(), status='ERROR')
    message = storing.cloud.show(server)['fault']['message']
    assert 'did not finish being created' in message
    assert f'its status is {"error" if how == "error" else "creating"}' in message
    storing.cinder.before, storing.cinder.slow = None, False
    for volume in list(storing.cinder.volumes):
        storing.cinder.finish(volume)
    storing.delete(server)
    storing.cloud.settle()
    storing.assert_empty()


def test_a_server_that_no_host_takes(storing: Storing) -> None:
    """A volume that was made for it goes, also where no host was found at all; its user's is free."""
    volume = storing.volume()
    big = storing.cloud.flavor(vcpus=500)
    for flavor, spoil in ((big, False), (storing.flavor, True)):
        storing.flavor = flavor
        for host in HOSTS if spoil else ():
            storing.driver(host).guests.spawn = no_room
        server = storing.boot(there(volume), made(), status='ERROR')
        assert storing.cinder.statuses() == {volume: 'available'} and storing.cinder.attachments == {}
        storing.delete(server)
    storing.assert_empty(volume)


def no_room(*args: Any, **kwargs: Any) -> None:
    raise errors.HostRejected('no room for a guest')


def test_the_next_host_gets_the_volume(storing: Storing) -> None:
    """One attachment in the end, to the host that took the server."""
    volume, refused = storing.volume(), []
    for host in HOSTS:
        real = storing.driver(host).guests.spawn

        def first_refuses(*args: Any, real: Callable[..., None] = real, **kwargs: Any) -> None:
            refused.append(1)
            if len(refused) == 1:
                no_room()
            real(*args, **kwargs)

        storing.driver(host).guests.spawn = first_refuses
    server = storing.boot(there(volume))
    assert len(refused) == 2 and storing.volumes(server) == [volume]


def test_a_back_end_that_can_not_connect(storing: Storing) -> None:
    """Each host is tried; the fault says what Cinder said; nothing is left."""
    storing.cinder.fails.add('connect')
    volume = storing.volume()
    server = storing.boot(there(volume), status='ERROR')
    assert f'Volume {volume} cannot be connected to host' in storing.cloud.show(server)['fault']['message']
    storing.cloud.settle()
    storing.delete(server)
    storing.assert_empty(volume)


def test_one_volume_after_the_other_is_attached(storing: Storing) -> None:
    """While one server is about to get a volume, Cinder gives it to no other."""
    volume = storing.volume(volume_type='shared')
    row, tried = storing.cinder.volumes[volume], []

    def busy(method: str, path: str) -> None:
        if (method, path) == ('POST', '/attachments'):
            tried.append(path)
            row['status'] = 'attaching' if len(tried) < 3 else 'in-use'

    storing.cinder.before = busy
    server = storing.boot(there(volume))
    assert len(tried) == 3 and storing.volumes(server) == [volume]


@pytest.mark.parametrize('why', ['shelved', 'single', 'error'])
def test_a_volume_that_others_keep(storing: Storing, why: str) -> None:
    """The fault is what Cinder says; at once, where waiting is of no use."""
    volume = storing.volume(**({} if why == 'single' else {'volume_type': 'shared'}))
    tried: list[str] = []

    def taken(method: str, path: str) -> None:
        if (method, path) == ('POST', '/attachments'):
            tried.append(path)
            storing.cinder.volumes[volume]['status'] = 'error' if why == 'error' else 'reserved'

    storing.cinder.before = taken
    server = storing.boot(there(volume), status='ERROR')
    assert len(tried) == (flow_volumes.TURNS + 1 if why == 'shelved' else 1)
    assert 'Invalid volume: Volume' in storing.cloud.show(server)['fault']['message']
    assert storing.held(server) == []


# --- attach and detach -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize('state', ['run', 'os-stop', 'pause'])
def test_attached_and_detached(storing: Storing, state: str) -> None:
    """A guest that runs, is off or stands still; a hard reboot changes nothing."""
    server, first, second = storing.boot(), storing.volume(), storing.volume(size=2)
    if state != 'run':
        storing.cloud.action(server, state)
    storing.attach(server, first)
    assert storing.story(server) == ('attach_volume', False)
    storing.attach(server, second, delete_on_termination=True)
    assert storing.volumes(server) == [first, second]
    storing.detach(server, first)
    assert storing.volumes(server) == [second] and storing.story(server) == ('detach_volume', False)
    assert storing.cinder.statuses()[first] == 'available'
    if state == 'run':
        storing.cloud.action(server, 'reboot', {'type': 'HARD'})
        assert storing.volumes(server) == [second]
    storing.delete(server)
    storing.assert_empty(first)


def refuse(*args: Any, **kwargs: Any) -> None:
    raise errors.KilonovaError('its system does not give it up')


def test_a_guest_that_does_not_take_it(storing: Storing) -> None:
    """The volume is free, the action says why."""
    server, volume = storing.boot(), storing.volume()
    storing.driver(storing.cloud.host_of(server)).volumes.attach = refuse
    storing.attach(server, volume)
    assert storing.volumes(server) == [] and storing.story(server) == ('attach_volume', True)
    assert 'does not give it up' in json.dumps(storing.cloud.story(server))
    assert storing.cinder.statuses() == {volume: 'available'}


def test_a_guest_that_keeps_it(storing: Storing) -> None:
    """All is as it was."""
    server, volume = storing.with_volume()
    storing.driver(storing.cloud.host_of(server)).volumes.detach = refuse
    storing.detach(server, volume)
    assert storing.volumes(server) == [volume] and storing.story(server) == ('detach_volume', True)


def act(storing: Storing, kind: str, server: str, volume: str) -> None:
    """Attach it, or detach it, which was attached before."""
    (storing.attach if kind == 'attach' else storing.detach)(server, volume)


def prepared(storing: Storing, kind: str) -> tuple[str, str]:
    """A server, and a volume that it has where it is to be detached."""
    server, volume = storing.boot(), storing.volume()
    if kind == 'detach':
        storing.attach(server, volume)
    return server, volume


def test_several_are_asked_for_at_once(storing: Storing) -> None:
    """One comes after the other, and a server that has just got one is stopped at once."""
    volumes = [storing.volume() for _ in range(3)]
    server = storing.boot()
    path = f'/servers/{server}/os-volume_attachments'

    def ask(method: str, number: int) -> None:
        end, body = (
            ('', {'volumeAttachment': {'volumeId': volumes[number]}})
            if method == 'POST'
            else (f'/{volumes[number]}', None)
        )
        answers.append(storing.cloud.request(method, path + end, body).status_int)

    for method in ('POST', 'DELETE'):
        answers: list[int] = []
        asking = [threading.Thread(target=ask, args=(method, number)) for number in range(3)]
        for each in asking:
            each.start()
        for each in asking:
            each.join(60)
        assert answers == [202] * 3
        storing.cloud.settle()
        assert sorted(storing.volumes(server)) == sorted(volumes if method == 'POST' else [])
    assert storing.cloud.request('POST', path, {'volumeAttachment': {'volumeId': volumes[0]}}).status_int == 202
    storing.cloud.action(server, 'os-stop')
    assert storing.cloud.status(server) == 'SHUTOFF' and storing.volumes(server) == [volumes[0]]


def test_what_waited_for_its_turn_is_looked_at_once_more(storing: Storing) -> None:
    """A volume that goes meanwhile can't be detached again."""
    volume = storing.volume()
    server = storing.boot(there(volume))
    path, answers = f'/servers/{server}/os-volume_attachments/{volume}', []
    asking = [
        threading.Thread(target=lambda: answers.append(storing.cloud.request('DELETE', path).status_int))
        for _ in range(2)
    ]
    for each in asking:
        each.start()
    for each in asking:
        each.join(60)
    assert sorted(answers) == [202, 404]
    storing.cloud.settle()
    assert storing.volumes(server) == []


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('step', [0, 1])
def test_deleted_meanwhile(storing: Storing, kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete at each step wins, and the volume is free."""
    server, volume = prepared(storing, kind)

    def delete(real: Callable[..., None], work: Any) -> None:
        storing.cloud.ok('DELETE', f'/servers/{server}')
        real(work)

    disturb(monkeypatch, f'{kind}_volume', step, delete)
    if kind == 'attach':
        storing.attach(server, volume)
    else:
        storing.detach(server, volume)
    storing.cloud.settle()
    storing.assert_empty(volume)


@pytest.mark.parametrize('step', [0, 1])
def test_a_detach_that_is_cancelled(storing: Storing, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reset of the state: before the guest has let it go all is as it was; behind that it goes to its end."""
    server, volume = storing.with_volume()

    def reset(real: Callable[..., None], work: Any) -> None:
        storing.cloud.ok('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'active'}})
        real(work)

    disturb(monkeypatch, 'detach_volume', step, reset)
    storing.detach(server, volume)
    storing.cloud.settle()
    assert storing.volumes(server) == [[volume], []][step]


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('kind', KINDS)
def test_the_conductor_crashes_after_each_effect_in_turn(
    storing: Storing, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Another one goes on, and comes to the same."""
    cloud, number, happened = storing.cloud, places.first(), True
    server, volume = prepared(storing, kind)

    def begin() -> None:
        if kind == 'attach':
            cloud.ok('POST', f'/servers/{server}/os-volume_attachments', {'volumeAttachment': {'volumeId': volume}})
        else:
            cloud.ok('DELETE', f'/servers/{server}/os-volume_attachments/{volume}')

    while happened:
        happened = crash_after(cloud, monkeypatch, number, begin)
        assert storing.volumes(server) == ([volume] if kind == 'attach' else [])
        (storing.detach if kind == 'attach' else storing.attach)(server, volume)
        number += places.STEP
    assert number > 4, f'only {number} effects'


def crash_after(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, number: int, begin: Callable[[], None]) -> bool:
    """The conductor dies behind so many effects of what ``begin`` asks for, and another one goes on to the end; False:
    there are not so many."""
    with crash_at(cloud, monkeypatch, number) as crashed:
        begin()
        while not crashed.is_set() and cloud.rows():
            crashed.wait(0.02)
    if crashed.is_set():
        cloud.crash_conductor()
        cloud.start_conductor()
    cloud.settle()
    return crashed.is_set()


# --- moves -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
@pytest.mark.parametrize('root', [False, True])
def test_a_resize_takes_the_volume_along(storing: Storing, end: str, root: bool) -> None:
    """It is connected at one host at a time."""
    server, volume = storing.with_volume(root=root)
    cloud, source = storing.cloud, storing.cloud.host_of(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    assert cloud.host_of(server) == other(source) and storing.volumes(server) == [volume]
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE'
    assert cloud.host_of(server) == (other(source) if end == 'confirmResize' else source)
    assert storing.volumes(server) == [volume]
    storing.delete(server)
    storing.assert_empty(volume)


def test_an_encrypted_volume(storing: Storing, caplog: pytest.LogCaptureFixture) -> None:
    """Its host is told how it is encrypted: one request more whenever it is attached to one. The key is in no row and
    no log. What QEMU can't decrypt is refused, and so is a volume whose key this cloud hasn't got."""
    storing.cloud.settle()
    server, volume = storing.boot(), storing.volume(encrypted=True)
    other_one, asked = storing.volume(encrypted=True), storing.cinder.asked
    asked.clear()

    def inquired() -> list[str]:
        found = [path for _method, path in asked if path.endswith('/encryption')]
        asked.clear()
        return found

    caplog.set_level(logging.DEBUG)
    storing.attach(server, volume)
    assert len(asked) <= 6 and inquired() == [f'/volumes/{volume}/encryption']
    source = storing.cloud.host_of(server)
    storing.cloud.action(server, 'reboot', {'type': 'HARD'})
    storing.cloud.action(server, 'os-migrateLive', LIVE)
    storing.cloud.action(server, 'migrate')
    storing.cloud.action(server, 'revertResize')
    assert inquired() == [f'/volumes/{volume}/encryption'] * 3
    assert storing.cloud.host_of(server) == other(source) and storing.volumes(server) == [volume]
    xml = storing.driver(other(source)).guests._libvirt.find(server).xml()
    assert f"<secret type='passphrase' uuid='{volume}'/>" in xml
    with storing.cloud.cell.read() as conn:
        (row,) = rows.of_servers(conn, [server])[server]
    assert json.loads(row['connection_info'])['data']['encryption'] == ENCRYPTION and KEY not in repr(row)
    assert KEY not in caplog.text
    for values, reason in (
        ({'provider': 'plain'}, "its encryption has the provider 'plain'; accepted: luks"),
        ({'encryption_key_id': server}, f'Key {server} cannot be read: AuthTypeInvalidError'),
    ):
        storing.cinder.encryption = {**ENCRYPTION, **values}
        storing.attach(server, other_one)
        assert storing.story(server) == ('attach_volume', True) and storing.volumes(server) == [volume]
        assert reason in json.dumps(storing.cloud.story(server))
    storing.delete(server)
    storing.assert_empty(volume, other_one)


@pytest.mark.parametrize('what', ['back end', 'guest'])
@pytest.mark.parametrize('root', [False, True])
def test_a_move_that_fails_comes_back(storing: Storing, what: str, root: bool) -> None:
    server, volume = storing.with_volume(root=root)
    cloud, source = storing.cloud, storing.cloud.host_of(server)

    def connects(method: str, path: str) -> None:
        """The back end connects nothing to the other host."""
        if method == 'POST' and path == '/attachments':
            storing.cinder.fails.add('connect')
            storing.cinder.before = None

    if what == 'back end':
        storing.cinder.before = connects
        storing.cinder.after = lambda method, path: storing.cinder.fails.clear() if method == 'POST' else None
    else:
        storing.driver(other(source)).moves.finish_migration = no_room
    cloud.action(server, 'migrate')
    storing.cinder.after = None
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) == source, cloud.story(server)
    assert storing.volumes(server) == [volume]


def test_a_back_end_that_does_not_disconnect(storing: Storing) -> None:
    """A move ends, and the source's attachment goes when that works again."""
    server, volume = storing.with_volume()
    source = storing.cloud.host_of(server)
    storing.cinder.fails.add('disconnect')
    storing.cloud.request('POST', f'/servers/{server}/action', {'migrate': None})
    storing.cloud.settle(kinds_left=('release',))
    assert storing.cloud.status(server) == 'VERIFY_RESIZE', storing.cloud.story(server)
    assert storing.held(server) == [(volume, 'attached', host) for host in HOSTS]
    storing.cinder.fails.clear()
    storing.cloud.settle()
    assert storing.cloud.host_of(server) == other(source) and storing.volumes(server) == [volume]


def test_a_volume_that_is_gone_is_the_servers_no_more(storing: Storing) -> None:
    """Somebody deleted it in Cinder by force: a move goes on without it."""
    (server, lost), kept = storing.with_volume(), storing.volume()
    storing.attach(server, kept)
    del storing.cinder.volumes[lost]
    storing.cinder.attachments = {
        key: one for key, one in storing.cinder.attachments.items() if one['volume_id'] != lost
    }
    storing.cloud.action(server, 'migrate')
    assert storing.cloud.status(server) == 'VERIFY_RESIZE', storing.cloud.story(server)
    assert storing.volumes(server) == [kept]


def test_a_server_whose_root_volume_is_gone_stays_where_it_is(storing: Storing) -> None:
    server, volume = storing.with_volume(root=True)
    source = storing.cloud.host_of(server)
    del storing.cinder.volumes[volume]
    storing.cinder.attachments = {}
    storing.cloud.action(server, 'migrate')
    assert storing.cloud.status(server) == 'ACTIVE' and storing.cloud.host_of(server) == source
    assert f'Volume {volume} could not be found.' in json.dumps(storing.cloud.story(server))
    assert volume in storing.cloud.xml(server)


def test_a_way_back_ends_without_a_volume_that_can_not_be_attached(storing: Storing) -> None:
    """The server is as it was but for that; a hard reboot brings it when Cinder lets it."""
    server, volume = storing.with_volume()
    cloud, source = storing.cloud, storing.cloud.host_of(server)

    def breaks(*args: Any, **kwargs: Any) -> None:
        storing.cinder.volumes[volume]['status'] = 'error'
        no_room()

    storing.driver(other(source)).moves.finish_migration = breaks
    cloud.action(server, 'migrate')
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) == source, cloud.story(server)
    assert volume not in storing.cloud.xml(server)
    storing.cinder.volumes[volume]['status'] = 'in-use'
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert storing.volumes(server) == [volume]


def test_a_resize_on_its_host_asks_cinder_nothing(make_cloud: Callable[..., Cloud]) -> None:
    storing = Storing(make_cloud, allow_resize_to_same_host=True)
    (service,) = storing.cloud.ok('GET', '/os-services?host=gpu2&binary=nova-compute')['services']
    storing.cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled'})
    server, volume = storing.with_volume()
    asked = len(storing.cinder.asked)
    storing.cloud.action(server, 'resize', {'flavorRef': storing.cloud.flavor(vcpus=2)})
    assert storing.cloud.status(server) == 'VERIFY_RESIZE', storing.cloud.story(server)
    assert len(storing.cinder.asked) == asked and storing.volumes(server) == [volume]


@pytest.mark.parametrize('root', [False, True])
def test_shelved_and_unshelved(storing: Storing, root: bool) -> None:
    """Off its host the volume stays reserved for its server."""
    server, volume = storing.with_volume(root=root)
    cloud = storing.cloud
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED' and storing.volumes(server) == [volume]
    assert storing.cinder.statuses() == {volume: 'reserved'}
    for host in HOSTS:
        storing.driver(host).guests.spawn, kept = no_room, storing.driver(host).guests.spawn
        cloud.options[host] = kept
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED' and storing.volumes(server) == [volume]
    for host in HOSTS:
        storing.driver(host).guests.spawn = cloud.options.pop(host)
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert storing.volumes(server) == [volume]
    storing.delete(server)
    storing.assert_empty(volume)


def test_attached_and_detached_on_no_host(storing: Storing) -> None:
    """Cinder alone is asked; unshelve takes what is there then along."""
    (server, first), second, third = storing.with_volume(), storing.volume(), storing.volume()
    cloud = storing.cloud
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED'
    answer = storing.attach(server, second, status=200, version='2.100')
    assert (answer.json['volumeAttachment']['volumeId'], answer.json['volumeAttachment']['device']) == (
        second,
        '/dev/vdc',
    )
    storing.attach(server, third)
    assert storing.story(server) == ('attach_volume', False) and storing.volumes(server) == [first, second, third]
    assert storing.cinder.statuses() == {first: 'reserved', second: 'in-use', third: 'in-use'}
    for volume in (first, third):
        storing.detach(server, volume)
        assert storing.story(server) == ('detach_volume', False)
    assert storing.volumes(server) == [second]
    assert storing.cinder.statuses() == {first: 'available', second: 'in-use', third: 'available'}
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'ACTIVE' and storing.volumes(server) == [second]
    storing.delete(server)
    storing.assert_empty(first, second, third)


@pytest.mark.parametrize(('root', 'status'), [(False, 'SHELVED'), (True, 'SHELVED_OFFLOADED')])
def test_what_stays_on_its_host_when_it_is_shelved(make_cloud: Callable[..., Cloud], root: bool, status: str) -> None:
    """Nothing of a server that boots from a volume, whatever [DEFAULT]shelved_offload_time says."""
    storing = Storing(make_cloud, shelved_offload_time=-1)
    server, volume = storing.with_volume(root=root)
    storing.cloud.action(server, 'shelve')
    assert storing.cloud.status(server) == status and storing.volumes(server) == [volume]


@pytest.mark.parametrize('how', ['boot', 'root', 'attach'])
def test_a_running_guest_takes_it_along(storing: Storing, how: str) -> None:
    """Attached to both hosts meanwhile, and to the destination alone in the end; twice, there and back. With its root
    disk on it no storage of both is needed, whatever is said of that."""
    server, volume = (storing.boot(), storing.volume()) if how == 'attach' else storing.with_volume(root=how == 'root')
    if how == 'attach':
        storing.attach(server, volume)
    cloud, source = storing.cloud, storing.cloud.host_of(server)
    live, seen = storing.driver(source).live_migrations, []
    real = live.migrate

    def migrate(*args: Any) -> None:
        seen.append((storing.held(server), storing.cinder.statuses()))
        real(*args)

    live.migrate = migrate
    cloud.action(server, 'os-migrateLive', LIVE)
    assert cloud.host_of(server) == other(source), cloud.story(server)
    assert cloud.status(server) == 'ACTIVE' and storing.volumes(server) == [volume]
    assert seen == [
        (sorted([(volume, 'attached', source), (volume, 'attaching', other(source))]), {volume: 'attaching'})
    ]
    assert storing.cinder.statuses() == {volume: 'in-use'}
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': False} if how == 'root' else LIVE)
    assert cloud.host_of(server) == source and storing.volumes(server) == [volume]
    storing.delete(server)
    storing.assert_empty(volume)


def fails(*args: Any, **kwargs: Any) -> None:
    raise errors.KilonovaError('boom')


@pytest.mark.parametrize('where', ['describe', 'offer', 'prepare', 'migrate', 'back end', 'gone'])
def test_a_live_migration_that_fails(storing: Storing, where: str) -> None:
    """The guest has what it had, and the other host nothing."""
    (server, kept), volume = storing.with_volume(), storing.volume()
    storing.attach(server, volume)
    cloud, source = storing.cloud, storing.cloud.host_of(server)
    if where == 'back end':
        storing.cinder.fails.add('connect')
    elif where == 'gone':
        # It can't be had a second time; the guest has it still.
        storing.cinder.volumes[volume]['status'] = 'error'
    else:
        for host in HOSTS:
            setattr(storing.driver(host).live_migrations, where, fails)
    cloud.action(server, 'os-migrateLive', LIVE)
    assert cloud.host_of(server) == source and cloud.status(server) == 'ACTIVE'
    assert storing.story(server) == ('live-migration', True)
    assert storing.volumes(server) == [kept, volume]
    reason = {'back end': f'cannot be connected to host {other(source)}', 'gone': 'Invalid volume'}.get(where, '')
    assert reason in json.dumps(cloud.story(server))


@pytest.mark.parametrize(
    ('host', 'method'), [('source', 'check_can_live_migrate_source'), ('destination', 'pre_live_migration')]
)
def test_a_compute_of_the_release_before_moves_no_volumes(storing: Storing, host: str, method: str) -> None:
    """It says nothing of them: the guest stays."""
    server, volume = storing.with_volume()
    cloud, source = storing.cloud, storing.cloud.host_of(server)
    older = source if host == 'source' else other(source)
    endpoint = cloud.computes[older].endpoint
    real = getattr(endpoint, method)
    setattr(
        endpoint,
        method,
        lambda *args, **kwargs: {key: value for key, value in real(*args, **kwargs).items() if key != 'volumes'},
    )
    cloud.action(server, 'os-migrateLive', LIVE)
    assert f'the compute service of host {older} is of an older release' in json.dumps(cloud.story(server))
    assert cloud.host_of(server) == source and storing.volumes(server) == [volume]


def test_the_host_that_refuses_has_no_volume(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried, and has it in the end."""
    storing = Storing(make_cloud, hosts=('gpu1', 'gpu2', 'gpu3'))
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    server, volume = storing.with_volume()
    refused: list[str] = []
    for host in storing.cloud.computes:
        real = storing.driver(host).live_migrations.prepare

        def prepare(*args: Any, host: str = host, real: Callable[..., Any] = real) -> Any:
            if not refused:
                refused.append(host)
                no_room()
            return real(*args)

        storing.driver(host).live_migrations.prepare = prepare
    storing.cloud.action(server, 'os-migrateLive', LIVE)
    assert refused and storing.cloud.host_of(server) not in refused, storing.cloud.story(server)
    assert storing.volumes(server) == [volume]


@pytest.mark.parametrize('end', ['abort', 'delete'])
def test_a_live_migration_that_is_ended(storing: Storing, end: str) -> None:
    """In the middle of the way. Aborted all is as it was; deleted there is nothing."""
    server, volume = storing.with_volume()
    cloud, source = storing.cloud, storing.cloud.host_of(server)
    under_way = threading.Event()

    def stays(instance: Any, offer: Any, told: Callable[[dict[str, int]], None]) -> None:
        under_way.set()
        while True:
            time.sleep(0.02)
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

    storing.driver(source).live_migrations.migrate = stays
    assert cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': LIVE}).status_int == 202
    assert under_way.wait(30)
    if end == 'abort':
        (row,) = cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
        cloud.ok('DELETE', f'/servers/{server}/migrations/{row["id"]}')
        cloud.settle()
        assert cloud.host_of(server) == source and cloud.status(server) == 'ACTIVE'
        assert storing.volumes(server) == [volume]
        storing.delete(server)
    else:
        storing.delete(server)
    storing.assert_empty(volume)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('fate', ['goes', 'stays'])
def test_the_conductor_crashes_after_each_effect_of_a_live_migration(
    storing: Storing, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one goes on, and comes to the same."""
    monkeypatch.setattr('kilonova.conductor.flows.volume.volumes.LATE', 0.2)
    cloud, (server, volume) = storing.cloud, storing.with_volume()
    if fate == 'stays':
        for host in HOSTS:
            storing.driver(host).live_migrations.migrate = fails

    def begin() -> None:
        assert cloud.request('POST', f'/servers/{server}/action', {'os-migrateLive': LIVE}).status_int == 202

    number = places.first()
    while True:
        source = cloud.host_of(server)
        happened = crash_after(cloud, monkeypatch, number, begin)
        assert cloud.host_of(server) == (other(source) if fate == 'goes' else source), (number, cloud.story(server))
        assert storing.volumes(server) == [volume], number
        if not happened:
            break
        number += places.STEP
    assert number > 12, f'only {number} effects'


def test_a_server_that_boots_from_a_volume(storing: Storing) -> None:
    """Its guest's first disk, and no root disk on its host; three requests to Cinder."""
    data, volume = storing.volume(), storing.volume(bootable='true')
    asked = len(storing.cinder.asked)
    server = storing.boot(there(volume, boot_index=0, delete_on_termination=True))
    assert [method for method, _ in storing.cinder.asked[asked:]] == ['GET', 'POST', 'POST']
    storing.attach(server, data)
    assert storing.volumes(server) == [volume, data]
    with storing.cloud.cell.read() as conn:
        assert [row['device_name'] for row in rows.of_servers(conn, [server])[server]] == ['/dev/vda', '/dev/vdb']
    held = storing.cloud.placement.allocations()[server]
    assert [sorted(each) for each in held.values()] == [['MEMORY_MB', 'VCPU']]
    disks = ElementTree.fromstring(storing.cloud.xml(server)).findall('devices/disk')
    assert [(disk.find('serial').text, disk.find('boot') is not None) for disk in disks] == [(volume, True)]
    assert storing.cloud.show(server)['image'] == ''
    assert storing.cloud.request('DELETE', f'/servers/{server}/os-volume_attachments/{volume}').status_int == 400
    storing.delete(server)
    storing.assert_empty(data)


def test_an_image_of_volumes(storing: Storing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is made from it has volumes of its snapshots, which go with it where the first one's do. Of one
    that doesn't come to be nothing is left."""
    cloud, cinder = storing.cloud, storing.cinder
    volume = storing.volume(bootable='true')
    server = storing.boot(there(volume, boot_index=0, delete_on_termination=True))
    answer = cloud.action(server, 'createImage', {'name': 'image'})
    image_id = answer['image_id'] if isinstance(answer, dict) else answer.json['image_id']
    cloud.settle()
    assert len(cinder.snapshots) == 1 and cloud.images.get(image_id)['status'] == 'active'
    second: str = cloud.create(storing.flavor, imageRef=image_id)['server']['id']
    cloud.settle()
    (made_of,) = storing.volumes(second)
    assert cinder.volumes[made_of]['snapshot_id'] in cinder.snapshots and made_of != volume
    real, kept, snapshots = cloud.images.activate, dict(cinder.snapshots), list[int]()

    def dies(*args: Any, **kwargs: Any) -> None:
        snapshots.append(len(cinder.snapshots))
        raise errors.Unanswered(who='The image service', reason='broken')

    monkeypatch.setattr(cloud.images, 'activate', dies)
    monkeypatch.setattr('kilonova.api.services.snapshot.LATE', 0.2)
    assert cloud.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'second'}}).status_int == 503
    assert snapshots == [2]
    monkeypatch.setattr(cloud.images, 'activate', real)
    cloud.settle()
    assert cinder.snapshots == kept and [record['name'] for record in cloud.images.made.values()] == ['image']
    storing.delete(second)
    cloud.settle()
    assert made_of not in cinder.volumes and volume in cinder.volumes
    # One that has come to be stays, also where the API gets no further.
    monkeypatch.setattr('kilonova.db.queries.operations.unplan', dies)
    assert cloud.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'third'}}).status_int == 503
    cloud.settle()
    assert len(cinder.snapshots) == 2
    assert [record['name'] for record in cloud.images.made.values()] == ['image', 'third']


def test_a_root_disk_that_is_made_goes_if_nothing_comes_of_it(storing: Storing) -> None:
    for host in HOSTS:
        storing.driver(host).guests.spawn = no_room
    server = storing.boot(made(boot_index=0), status='ERROR')
    assert storing.cinder.volumes == {} and storing.cinder.attachments == {}
    storing.delete(server)
    storing.assert_empty()


@pytest.mark.parametrize('root', [False, True])
@pytest.mark.parametrize('action', ['rescue', 'suspend', 'rebuild', 'os-stop'])
def test_other_operations_keep_it(storing: Storing, action: str, root: bool) -> None:
    if root and action in ('rescue', 'rebuild'):
        pytest.skip('tests/unit/api/test_volumes.py, tests/functional/test_reimage.py')
    server, volume = storing.with_volume(root=root)
    body = {'rebuild': {'imageRef': IMAGE_ID}}.get(action)
    storing.cloud.action(server, action, body)
    assert storing.volumes(server) == [volume]
    back = {'rescue': 'unrescue', 'suspend': 'resume', 'os-stop': 'os-start'}.get(action)
    if back:
        storing.cloud.action(server, back)
    assert storing.cloud.status(server) == 'ACTIVE' and storing.volumes(server) == [volume]


# --- what others change ----------------------------------------------------------------------------------------------
def test_a_volume_that_grows(storing: Storing) -> None:
    """Cinder tells; the row and the host hear of it."""
    server, volume = storing.with_volume()
    storing.cinder.volumes[volume]['size'] = 5
    answer = storing.cloud.request(
        'POST',
        '/os-server-external-events',
        {'events': [{'name': 'volume-extended', 'server_uuid': server, 'tag': volume}]},
    )
    assert [event['code'] for event in answer.json['events']] == [200]
    storing.cloud.settle()
    with storing.cloud.cell.read() as conn:
        (row,) = rows.of_servers(conn, [server])[server]
    assert row['volume_size'] == 5
    assert storing.volumes(server) == [volume]


def test_the_audit_compares_volumes(storing: Storing) -> None:
    """One that Cinder does not know of, one that a server has no row of, one elsewhere, one of no server."""
    (server, volume), (second, elsewhere) = storing.with_volume(), storing.with_volume()
    client, cinder = storing.cinder.client, storing.cinder
    (lost,) = [one for one in cinder.attachments.values() if one['instance'] == server]
    del cinder.attachments[lost['id']]
    extra = client.create_attachment(storing.volume(), server, None)
    stray = client.create_attachment(storing.volume(), IMAGE_ID, None)
    with storing.cloud.cell.write() as conn:
        (row,) = rows.of_servers(conn, [second])[second]
        info = json.loads(row['connection_info']) | {'attached_to': 'elsewhere'}
        rows.change(conn, row['uuid'], row['attachment_id'], {'connection_info': json.dumps(info)})
    assert sorted(storing.cloud.audit().disagreements) == sorted(
        [
            (
                f'volumes: server {server} has volume {volume} with attachment {lost["id"]}, which does not exist '
                f'in Cinder'
            ),
            (
                f'volumes: attachment {extra.id} of volume {extra.volume_id} belongs to server {server}, which has no '
                f'row for '
                f'it'
            ),
            (
                f'volumes: volume {elsewhere} of server {second} is attached to elsewhere, and the server is on '
                f'{storing.cloud.host_of(second)}'
            ),
            f'volumes: attachment {stray.id} of volume {stray.volume_id} belongs to {IMAGE_ID}, which is not a server',
        ]
    )
    cinder.before = lambda method, path: (_ for _ in ()).throw(cinder.broken())
    (silent,) = storing.cloud.audit().silent
    assert silent.startswith('volumes: The volume service does not answer: ')


# --- what guests read and write --------------------------------------------------------------------------------------
def test_what_guests_read_and_write_is_counted_wherever_they_are(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host counts what its guests read from and write to volumes. The counters go on after a restart of the
    guest, and after the volume is attached to another server. A host with volumes sends two messages, a host
    without volumes none."""
    recorder = Recorder()
    storing = Storing(
        make_cloud,
        sender=recorder,
        oslo_messaging_notifications__driver=['messagingv2'],
        notifications__notification_format='both',
    )
    cloud, counted = storing.cloud, {'now': VolumeCounters()}

    def poll() -> list[tuple[str, str, str, list[int]]]:
        """(publisher, volume, server, counters) of what is told, in both forms the same."""
        recorder.sent.clear()
        for manager in cloud.computes.values():
            manager.poll_volume_usage()
        names = ('reads', 'read_bytes', 'writes', 'write_bytes')
        told = [message.payload['nova_object.data'] for message in recorder.of(True)]
        assert [
            {
                'volume_id': one['volume_id'],
                'tenant_id': one['project_id'],
                'instance_id': one['instance_uuid'],
                **{name: one[name] for name in names},
            }
            for one in told
        ] == [
            {name: message.payload[name] for name in ('volume_id', 'tenant_id', 'instance_id', *names)}
            for message in recorder.of(False)
        ]
        assert {message.event for _, message in recorder.sent} <= {'volume.usage'}
        return [
            (
                message.publisher.removeprefix('nova-compute:'),
                one['volume_id'],
                one['instance_uuid'],
                [one[name] for name in names],
            )
            for message, one in zip(recorder.of(True), told, strict=True)
        ]

    for host in HOSTS:
        volumes = storing.driver(host).volumes
        usage = volumes.usage
        monkeypatch.setattr(
            volumes, 'usage', lambda instance, usage=usage: dict.fromkeys(usage(instance), counted['now'])
        )
    server, volume = storing.with_volume()
    source = cloud.host_of(server)
    assert poll() == [(source, volume, server, [0, 0, 0, 0])]
    counted['now'] = VolumeCounters(10, 5120, 20, 10240)
    assert poll() == poll() == [(source, volume, server, [10, 5120, 20, 10240])]
    cloud.action(server, 'os-stop')
    assert poll() == []
    cloud.action(server, 'os-start')
    counted['now'] = VolumeCounters(1, 512, 2, 1024)
    assert poll() == [(source, volume, server, [11, 5632, 22, 11264])]
    cloud.action(server, 'migrate')
    cloud.action(server, 'confirmResize')
    counted['now'] = VolumeCounters(0, 0, 3, 2048)
    assert poll() == [(other(source), volume, server, [11, 5632, 25, 13312])]
    storing.delete(server)
    assert poll() == []
    server = storing.boot(there(volume))
    counted['now'] = VolumeCounters(100, 51200, 100, 51200)
    ((_, *told),) = poll()
    assert told == [volume, server, [111, 56832, 125, 64512]]
