"""Snapshots of volumes that are files of a share: Cinder asks for them, and the guest goes on in another file. The
files are real, and read from each other; what QEMU does with them is in tests/integration/test_libvirtd.py."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import libvirt
import pytest

from kilonova import errors
from kilonova.db.queries import volumes as rows
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.libvirt.storage.volume_connections import sources
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import Cloud
from tests.flows.cases import disturb, hear_again, lose_host, silent_hosts
from tests.functional.test_expiry import until
from tests.functional.test_swap import Moving
from tests.functional.test_volumes import crash_after, there
from tests.unit.virt.builders import Share

URL = '/os-assisted-volume-snapshots'
FILES = {'driver_volume_type': 'nfs', 'export': 'filer:/v', 'access_mode': 'rw', 'encrypted': False}
STEPS = {'volume_snapshot_create': ('take', 'tell'), 'volume_snapshot_delete': ('merge', 'tell')}


class Filing(Moving):
    """With one server that has a volume, which is a file."""

    def __init__(self, make_cloud: Callable[..., Cloud], path: Path) -> None:
        self.share = path
        super().__init__(make_cloud)

    def with_volume(self, **more: Any) -> tuple[str, str]:
        """Hosts get to the share from the start."""
        self.cinder.connection = FILES
        for host in self.cloud.computes:
            self.driver(host).volumes._volumes._bricks = Share(self.share)
        self.make('base')
        return super().with_volume(file=('base', 'raw'), **more)

    def make(self, name: str, *below: str) -> None:
        arguments = [] if not below else ['-b', below[0], '-F', below[1]]
        subprocess.run(
            ['qemu-img', 'create', '-q', '-f', 'qcow2' if below else 'raw', *arguments, self.share / name, '64K'],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def ask(self, method: str, path: str = URL, body: Any = None, status: int = 200, **more: Any) -> Any:
        answer = self.cloud.request(method, path, body, **more)
        assert answer.status_int == status, answer.text
        return answer

    def create(self) -> str:
        """As Cinder does it; the snapshot's id, and the file's."""
        made = self.cinder.begin_snapshot(self.volume)
        self.make(made, *self.cinder.volumes[self.volume]['file'])
        answer = self.ask(
            'POST',
            body={
                'snapshot': {
                    'volume_id': self.volume,
                    'create_info': {'snapshot_id': made, 'type': 'qcow2', 'new_file': made},
                }
            },
        )
        assert answer.json == {'snapshot': {'id': made, 'volumeId': self.volume}}
        return made

    def delete_snapshot(self, snapshot: str, file: str | None, into: str | None) -> None:
        self.cinder.begin_delete(snapshot)
        info = {'volume_id': self.volume, 'type': 'qcow2', 'file_to_merge': file, 'merge_target_file': into}
        self.ask('DELETE', f'{URL}/{snapshot}?delete_info={quote(json.dumps(info))}', status=204)

    def chain(self) -> list[str]:
        """Names of the files behind the volume, from the one with which its guest is started next; the row says so
        too."""
        guest = self.driver(self.cloud.host_of(self.server)).guests._libvirt.find(self.server)
        (path,) = sources(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)).values()
        with self.cloud.cell.read() as conn:
            (row,) = rows.of_servers(conn, [self.server])[self.server]
        name, format_ = AttachedVolume.read(row).file
        assert path == str(self.share / name)
        info = subprocess.run(
            ['qemu-img', 'info', '--output=json', '--backing-chain', '-f', format_, path],
            check=True,
            capture_output=True,
        ).stdout
        return [Path(one['filename']).name for one in json.loads(info)]

    def told(self) -> dict[str, str]:
        """{snapshot: status} in Cinder."""
        return {name: one['status'] for name, one in self.cinder.snapshots.items()}

    def assert_failed(self, snapshot: str, status: str, *chain: str) -> None:
        """The volume is in the files in which it was, and Cinder knows."""
        assert self.story(self.server)[1] and self.told()[snapshot] == status, self.cloud.story(self.server)
        assert tuple(self.chain()) == chain and self.volumes(self.server) == [self.volume]

    def silence(self) -> None:
        """Of Cinder."""

        def broken(method: str, path: str) -> None:
            raise self.cinder.broken()

        self.cinder.before = broken


@pytest.fixture
def site(make_cloud: Callable[..., Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filing:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.volume.volumes.LATE', 0.2)
    monkeypatch.setattr('kilonova.conductor.flows.volume.volume_snapshots.LOOK', 0.02)
    return Filing(make_cloud, tmp_path)


def test_the_guest_goes_on_in_another_file(site: Filing) -> None:
    """While it runs, and while it is off; also of a locked server. Where it goes it has that file. libvirt's test
    driver merges nothing of a guest that runs."""
    cloud = site.cloud
    cloud.ok('POST', f'/servers/{site.server}/action', {'lock': None})
    first = site.create()
    cloud.settle()
    assert site.chain() == [first, 'base'] and site.told() == {first: 'available'}
    assert cloud.story(site.server)[0][2][0][:2] == ('compute_volume_snapshot_create', 'Success')
    cloud.ok('POST', f'/servers/{site.server}/action', {'unlock': None})
    cloud.action(site.server, 'reboot', {'type': 'HARD'})
    second = site.create()
    cloud.settle()
    cloud.action(site.server, 'migrate')
    cloud.action(site.server, 'confirmResize')
    cloud.action(site.server, 'os-stop')
    third = site.create()
    cloud.settle()
    assert site.chain() == [third, second, first, 'base'] and set(site.told().values()) == {'available'}
    # The first in the middle, the one of the file that it writes to, and the last of all.
    site.delete_snapshot(second, first, 'base')
    cloud.settle()
    assert site.chain() == [third, second, 'base']
    site.delete_snapshot(third, 'base', None)
    cloud.settle()
    assert site.chain() == [third, 'base']
    site.delete_snapshot(first, None, None)
    cloud.settle()
    assert site.chain() == [third] and site.told() == {}
    assert site.story(site.server) == ('volume_snapshot_delete', False)
    cloud.action(site.server, 'os-start')
    assert site.volumes(site.server) == [site.volume]
    site.delete(site.server)
    site.assert_empty(site.volume)


@pytest.mark.parametrize('broken', [False, True])
@pytest.mark.parametrize('fails', [False, True])
def test_cinder_takes_a_while_to_know_the_new_file(
    site: Filing, fails: bool, broken: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then a host that the server came to would get the file before, without what the guest wrote since: nothing
    else begins, also where its host fails behind that (``broken``). Where Cinder fails the guest has the file before
    again, or an operator is told."""
    site.cloud.action(site.server, 'os-stop')
    host = site.driver(site.cloud.host_of(site.server)).volume_snapshots
    take = host.take

    def take_and_fail(*args: Any) -> None:
        take(*args)
        raise GuestFailed(act='take a snapshot of', uuid=site.server, reason='it is too warm')

    if broken:
        monkeypatch.setattr(host, 'take', take_and_fail)
    site.cinder.slow = True
    snapshot = site.create()
    until(lambda: bool(site.cinder.snapshots[snapshot]['progress'] == '90%'))
    site.ask('POST', f'/servers/{site.server}/action', {'migrate': None}, status=409)
    if fails:
        site.cinder.snapshots[snapshot]['status'] = 'error'
        site.cloud.settle()
        site.assert_failed(snapshot, 'error', *([snapshot] * broken), 'base')
        assert (f'volume {site.volume} is in file {snapshot}, which the' in caplog.text) == broken
    else:
        site.cinder.finish_snapshot(snapshot)
        site.cloud.settle()
    site.cinder.slow = False
    site.cloud.action(site.server, 'migrate')
    assert site.chain() == (['base'] if fails else [snapshot, 'base'])


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_the_conductor_crashes_after_each_effect_in_turn(site: Filing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after Cinder has heard of it: it is told once more, and what it says then is no refusal."""
    site.cloud.action(site.server, 'os-stop')
    made: list[str] = ['base']
    while crash_after(site.cloud, monkeypatch, len(made) - 1, lambda: made.insert(0, site.create())):
        assert site.chain() == made and site.told()[made[0]] == 'available', len(made)
    assert len(made) > 3 and not site.story(site.server)[1]
    number = 0
    while len(made) > 1 and crash_after(
        site.cloud,
        monkeypatch,
        number,
        lambda: (
            site.delete_snapshot(made[-2], made[1], None)
            if len(made) == 2
            else site.delete_snapshot(made[-2], made[-2], made[-1])
        ),
    ):
        gone = made.pop(-2)
        assert site.chain() == made and gone not in site.told()
        number += 1
    assert number > 2 and not site.story(site.server)[1]


@pytest.mark.parametrize('silent', [False, True])
@pytest.mark.parametrize('kind', STEPS)
def test_deleted_meanwhile(site: Filing, kind: str, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is gone at once, and Cinder hears how it ended, also later."""
    deletes = kind == 'volume_snapshot_delete'

    def delete(real: Callable[..., None], work: Any) -> None:
        real(work)
        if silent:
            site.silence()
        site.cloud.ok('DELETE', f'/servers/{site.server}')

    for index, step in enumerate(STEPS[kind]):
        snapshot = ''
        if deletes:
            snapshot = site.create()
            site.cloud.settle()
            site.cloud.action(site.server, 'os-stop')
        with monkeypatch.context() as patch:
            disturb(patch, kind, index, delete)
            if deletes:
                site.delete_snapshot(snapshot, None, None)
            else:
                snapshot = site.create()
            site.cloud.settle(kinds_left=('release',))
        assert site.cloud.status(site.server) == 'GONE'
        site.cinder.before = None
        site.cloud.settle()
        site.assert_empty(site.volume)
        assert site.told() == ({} if deletes else {snapshot: 'available'}), step
        site.cinder.snapshots.clear()
        site.server = site.boot(there(site.volume))


@pytest.mark.parametrize('kind', STEPS)
def test_deleted_while_its_host_is_at_it(site: Filing, kind: str) -> None:
    """What the host says of it counts, whose answer was lost."""
    deletes, asked = kind == 'volume_snapshot_delete', threading.Event()
    if deletes:
        snapshot = site.create()
        site.cloud.settle()
        site.cloud.action(site.server, 'os-stop')

    def on_message(kind: str, topic: str, host: str, called: str, args: Any, deliver: Callable[[], Any]) -> Any:
        answer = deliver()
        if called in ('snapshot_volume', 'merge_volume') and not asked.is_set():
            asked.set()
            site.cloud.ok('DELETE', f'/servers/{site.server}')
            raise errors.Unanswered(who=host, reason='it was lost')
        return answer

    site.cloud.on_message = on_message
    if deletes:
        site.delete_snapshot(snapshot, None, None)
    else:
        snapshot = site.create()
    site.cloud.settle()
    site.assert_empty(site.volume)
    assert asked.is_set() and site.told() == ({} if deletes else {snapshot: 'available'})


def test_a_host_that_can_not(site: Filing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume is in the files in which it was, and another try works."""

    def break_it(*args: Any) -> None:
        raise GuestFailed(act='freeze', uuid=site.server, reason='it is too warm')

    host = site.driver(site.cloud.host_of(site.server)).volume_snapshots
    with monkeypatch.context() as patch:
        patch.setattr(host, 'take', break_it)
        snapshot = site.create()
        site.cloud.settle()
    site.assert_failed(snapshot, 'error', 'base')
    assert 'too warm' in str(site.cloud.story(site.server)[0])
    snapshot = site.create()
    site.cloud.settle()
    site.cloud.action(site.server, 'os-stop')
    with monkeypatch.context() as patch:
        patch.setattr(host, 'merge', break_it)
        site.delete_snapshot(snapshot, None, None)
        site.cloud.settle()
    site.assert_failed(snapshot, 'error_deleting', snapshot, 'base')
    site.delete_snapshot(snapshot, snapshot, 'other')
    site.cloud.settle()
    site.assert_failed(snapshot, 'error_deleting', snapshot, 'base')
    assert f'the guest does not use the file other, only {snapshot}, base' in str(site.cloud.story(site.server)[0])
    site.delete_snapshot(snapshot, None, None)
    site.cloud.settle()
    assert site.chain() == [snapshot] and site.told().get(snapshot) is None


@pytest.mark.parametrize('off', [False, True])
def test_cinder_does_not_want_it_any_more(site: Filing, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has waited for too long, and knows nothing of the new file: the guest has the one before again, with what it
    wrote since. A server that had moved meanwhile would lose that."""
    if off:
        site.cloud.action(site.server, 'os-stop')

    def late(real: Callable[..., None], work: Any) -> None:
        name = next(iter(site.cinder.snapshots))
        if off:
            subprocess.run(
                ['qemu-io', '-f', 'qcow2', '-c', 'write -P 7 0 512', site.share / name],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        site.cinder.snapshots[name]['status'] = 'error'
        real(work)

    disturb(monkeypatch, 'volume_snapshot_create', 1, late)
    snapshot = site.create()
    site.cloud.settle()
    site.assert_failed(snapshot, 'error', 'base')
    assert 'rejected snapshot' in str(site.cloud.story(site.server)[0])
    assert (site.share / 'base').read_bytes()[:1] == (b'\x07' if off else b'\0')


def test_its_host_is_off_when_cinder_does_not_want_it_any_more(
    site: Filing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody gives the guest the file before: an operator is told, and does what the documentation says."""

    def late(real: Callable[..., None], work: Any) -> None:
        name = next(iter(site.cinder.snapshots))
        subprocess.run(
            ['qemu-io', '-f', 'qcow2', '-c', 'write -P 7 0 512', site.share / name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        site.cinder.snapshots[name]['status'] = 'error'
        lose_host(site.cloud, site.cloud.host_of(site.server))
        real(work)

    with monkeypatch.context() as patch:
        disturb(patch, 'volume_snapshot_create', 1, late)
        snapshot = site.create()
        site.cloud.settle()
    assert site.story(site.server)[1] and site.told() == {snapshot: 'error'}
    assert f'{site.server} wrote to volume {site.volume} is in file {snapshot}, which the volume service' in caplog.text
    subprocess.run(['qemu-img', 'commit', '-q', '-d', '-f', 'qcow2', site.share / snapshot], check=True)
    site.ask('POST', f'/servers/{site.server}/action', {'evacuate': {}})
    site.cloud.settle(kinds_left=('release',))
    assert site.chain() == ['base'] and (site.share / 'base').read_bytes()[:1] == b'\x07'


def test_its_host_is_off_before_it_is_asked(
    site: Filing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its guest has the file before, and so has the row: Cinder has given the snapshot up by then."""

    def lost(real: Callable[..., None], work: Any) -> None:
        site.cinder.snapshots[next(iter(site.cinder.snapshots))]['status'] = 'error'
        lose_host(site.cloud, site.cloud.host_of(site.server))
        real(work)

    with monkeypatch.context() as patch:
        disturb(patch, 'volume_snapshot_create', 0, lost)
        snapshot = site.create()
        site.cloud.settle()
    assert site.story(site.server)[1] and site.told() == {snapshot: 'error'}
    assert 'which the volume service does not know' not in caplog.text
    site.ask('POST', f'/servers/{site.server}/action', {'evacuate': {}})
    site.cloud.settle(kinds_left=('release',))
    assert site.chain() == ['base']


@pytest.mark.parametrize('forced', [True, False])
def test_nobody_knows_what_the_guest_has(site: Filing, forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is down after it was asked. It is waited for, or until it is forced down: the new file has all."""
    cloud, host, silent = site.cloud, site.cloud.host_of(site.server), silent_hosts(monkeypatch)
    asked = site.wait_for('snapshot_volume')
    snapshot = site.create()
    assert asked.wait(10)
    silent.add(host)
    threading.Event().wait(0.2)
    assert [row['kind'] for row in cloud.rows()] == ['volume_snapshot_create']
    assert site.told() == {snapshot: 'creating'}
    hear_again(cloud, site.server, silent, forced)
    assert site.chain() == [snapshot, 'base'] and site.told() == {snapshot: 'available'}
