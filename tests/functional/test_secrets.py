"""Passwords, files, tokens and keys of a server are readable only in the guest's config drive.

Before each message and at the end, the tests search all rows of all databases, messages and answers, logs at DEBUG,
notifications, and every file of the cloud.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import pathlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import sealing
from kilonova.errors import Unanswered
from kilonova.rpc.transport import DirectTransport
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud, Crash
from tests.fixtures.notifications import Recorder

PASSWORD, CONTENT, USER = 'Tr0ub4dor-and-3', b'-----BEGIN A PRIVATE THING-----', 'mallory-of-the-token'
ENCODED = base64.b64encode(CONTENT).decode()
# It is no secret (the API shows it), but nobody has to read it in a log.
USER_DATA = base64.b64encode(b'#!/bin/sh # set up').decode()
# What anybody on a host may know, and a description that the fixture wrote.
PUBLIC = {'compute_id', '.storage_id', 'gpu1.xml', 'gpu2.xml'}


class Log(logging.Handler):
    """All that is logged, formatted, with tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class Watch:
    """``look()`` asserts that nothing secret is where it must not be; ``drives`` are the config drives that hold it."""

    def __init__(self, cloud: Cloud, told: Recorder, log: Log, wires: list[str]) -> None:
        self.cloud, self._told, self._log, self._wires = cloud, told, log, wires
        keys = sealing.read_file(cloud.conf.secrets.key_file)
        self.needles = {
            'password': PASSWORD.encode(),
            'content': CONTENT,
            'encoded content': ENCODED.encode(),
            'token': f'{USER}:{PROJECT}'.encode(),
            **{f'key {key[:4]}…': key.encode() for key in keys},
        }
        self.looks = 0
        self.kinds: set[str] = set()

    def found(self, data: bytes) -> list[str]:
        """What of the secrets is in there."""
        return [name for name, needle in self.needles.items() if needle in data]

    def look(self) -> None:
        self.looks += 1
        for where, text in (
            *self._rows(),
            *(('a message', text) for text in list(self._wires)),
            *(('a log', text) for text in list(self._log.texts)),
            *(('a notification', repr((ctxt.to_dict(), vars(message)))) for ctxt, message in list(self._told.sent)),
        ):
            assert (where, self.found(text.encode(errors='replace'))) == (where, [])
            assert where not in ('a log', 'a notification') or USER_DATA not in text
        for path in self._files():
            if path.name != 'disk.config':
                assert (path, self.found(content(path))) == (path, [])

    def _rows(self) -> Iterator[tuple[str, str]]:
        """(database and table, a row) of all."""
        for database in [self.cloud.databases.api(), *self.cloud.cells.databases()]:
            with database.read() as connection:
                for table in sa.inspect(connection).get_table_names():
                    for row in connection.execute(sa.text(f'SELECT * FROM {table}')):
                        if table == 'operations':
                            self.kinds.add(f'{database.name} {row.kind}')
                        yield f'{database.name}.{table}', repr(tuple(row))

    def _files(self) -> list[pathlib.Path]:
        return [pathlib.Path(folder, name) for folder, _, names in os.walk(self.cloud.directory) for name in names]

    @property
    def drives(self) -> list[pathlib.Path]:
        return [path for path in self._files() if path.name == 'disk.config' and self.found(content(path))]

    def end(self) -> None:
        """Nothing is under way: nothing is left in a row, sealed or not, and no file is open to others."""
        self.look()
        assert self.cloud.rows() == []
        assert not [where for where, row in self._rows() if 'gAAAA' in row]
        assert {path.name for path in self._files() if mode(path) & 0o077} <= PUBLIC
        assert {mode(path) for path in self.drives} <= {0o600}

    def create(self, **more: Any) -> str:
        """A server with a password and a file, of somebody with the token."""
        server = {
            'name': 's',
            'imageRef': IMAGE_ID,
            'networks': 'none',
            'adminPass': PASSWORD,
            'personality': [{'path': '/etc/thing', 'contents': ENCODED}],
            'user_data': USER_DATA,
            **more,
        }
        server.setdefault('flavorRef', self.cloud.flavor(gpus=1))
        answer = self.cloud.ok('POST', '/servers', {'server': server}, version='2.56', user=USER)
        assert answer['server']['adminPass'] == PASSWORD
        return answer['server']['id']


def mode(path: pathlib.Path) -> int:
    """Who may do what with a file; 0 if it is gone by now, as a database's log is after its last connection."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0


def content(path: pathlib.Path) -> bytes:
    """A file without its holes. A database's by another process: closing it here would drop SQLite's locks."""
    if '.db' in path.suffixes or path.name.endswith(('.db-wal', '.db-shm')):
        return subprocess.run(['cat', str(path)], capture_output=True, check=False).stdout
    data = b''
    with contextlib.suppress(FileNotFoundError), open(path, 'rb') as stream:
        end = 0
        with contextlib.suppress(OSError):  # ENXIO: nothing but a hole is left
            while True:
                start = os.lseek(stream.fileno(), end, os.SEEK_DATA)
                end = os.lseek(stream.fileno(), start, os.SEEK_HOLE)
                data += os.pread(stream.fileno(), end - start, start)
    return data


@pytest.fixture
def watch(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A cloud that tells and logs all that it can, and is looked at with each message."""
    wires: list[str] = []
    deliver = DirectTransport._deliver

    def delivered(self: Any, topic: str, namespace: Any, server: Any, version: str, method: str, wire: str) -> Any:
        wires.append(f'{method} {wire}')
        try:
            reply = deliver(self, topic, namespace, server, version, method, wire)
        except Exception as error:
            wires.append(f'{method} refused: {error}')
            raise
        wires.append(f'{method} answered: {reply}')
        return reply

    monkeypatch.setattr(DirectTransport, '_deliver', delivered)
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    log, root = Log(), logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    told = Recorder()
    cloud = make_cloud(
        sender=told,
        oslo_messaging_notifications__driver=['messagingv2'],
        notifications__notification_format='both',
        notifications__bdms_in_notifications=True,
    )
    made = Watch(cloud, told, log, wires)

    def on_message(kind: str, topic: str, server: Any, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if kind != 'call':
            made.look()
        return deliver()

    cloud.on_message = on_message
    yield made
    root.removeHandler(log)
    root.setLevel(level)


def also(watch: Watch, act: Callable[..., Any]) -> None:
    """``act(topic, host, method, deliver)`` stands between the look and the message."""
    look = watch.cloud.on_message

    def on_message(kind: str, topic: str, server: Any, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        return look(kind, topic, server, method, args, lambda: act(topic, server, method, deliver))

    watch.cloud.on_message = on_message


def test_a_boot(watch: Watch) -> None:
    """Also a resize and a delete: the drive moves along and goes. The watch itself sees what it should."""
    server = watch.create(min_count=2)
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ACTIVE'
    watch.end()
    assert {'api boot', 'cell1 boot'} <= watch.kinds and watch.looks > 4
    drives = watch.drives
    assert len(drives) == 2 and all(watch.found(content(drive)) == ['password', 'content'] for drive in drives)
    assert any('Starting instance' in text for text in watch._log.texts)
    assert {'instance.create.start', 'instance.create.end'} <= set(watch._told.events)
    assert any(wire.startswith('build_and_run_instance ') and 'gAAAA' in wire for wire in watch._wires)
    watch.cloud.action(server, 'resize', {'flavorRef': watch.cloud.flavor(gpus=2)})
    watch.end()
    assert len(watch.drives) == 3
    watch.cloud.action(server, 'confirmResize')
    for one in watch.cloud.ok('GET', '/servers?all_tenants=1')['servers']:
        watch.cloud.request('DELETE', f'/servers/{one["id"]}')
    watch.cloud.settle()
    watch.end()
    assert watch.drives == []
    watch.cloud.assert_empty()


@pytest.mark.parametrize('moment', ['before the disks', 'after the disks'])
def test_hosts_that_refuse(watch: Watch, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The row stays while it is unwound; fault and events hold nothing, and neither do the hosts afterwards."""
    spawned, method = [], 'remove' if moment == 'before the disks' else 'replace'
    whole = LibvirtGuests.spawn

    def spawn(self: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as patch:

            def fail(*args: Any, **kwargs: Any) -> None:
                spawned.append(watch.drives)
                watch.look()
                raise GuestFailed(act='start', uuid=instance.uuid, reason='the machine halts')

            patch.setattr(Domains, method, fail)
            return whole(self, instance, *args, **kwargs)

    monkeypatch.setattr(LibvirtGuests, 'spawn', spawn)
    server = watch.create()
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ERROR' and len(spawned) == 2
    assert [bool(drives) for drives in spawned] == [moment == 'after the disks'] * 2
    watch.end()
    assert watch.drives == []


def test_a_changed_password(watch: Watch) -> None:
    """It is in no row, log or file in clear, and nowhere when it is done."""
    watch.cloud.images.offered[IMAGE_ID]['hw_qemu_guest_agent'] = 'yes'
    server = watch.cloud.boot(watch.cloud.flavor())
    looked = watch.looks
    watch.cloud.action(server, 'changePassword', {'adminPass': PASSWORD}, expect=202)
    assert watch.looks > looked and 'cell1 set_admin_password' in watch.kinds
    assert any(wire.startswith('set_admin_password ') and 'gAAAA' in wire for wire in watch._wires)
    assert watch.cloud.story(server)[0][:2] == ('changePassword', None)
    watch.end()


def test_a_server_that_is_buried(watch: Watch) -> None:
    """cell0 has what is left of it."""
    server = watch.create(flavorRef=watch.cloud.flavor(gpus=9))
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ERROR' and 'api boot' in watch.kinds
    watch.end()


def test_a_host_that_lacks_the_key(watch: Watch, tmp_path: pathlib.Path) -> None:
    """It refuses, the next one builds."""
    lacking = []

    def take_away(topic: str, host: Any, method: str, deliver: Callable[[], Any]) -> Any:
        if method == 'build_and_run_instance' and not lacking:
            lacking.append(host)
            watch.cloud.computes[host].conf.set_override('key_file', str(tmp_path / 'none'), group='secrets')
        return deliver()

    also(watch, take_away)
    server = watch.create()
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ACTIVE' and [watch.cloud.host_of(server)] != lacking
    assert 'none does not exist' in repr(watch.cloud.story(server))
    watch.end()


def test_a_host_crashes_in_the_middle(watch: Watch) -> None:
    """Right before it says that the guest runs; it comes back and builds again under the same key."""
    workers, gone = {}, []

    def crash(topic: str, host: Any, method: str, deliver: Callable[[], Any]) -> Any:
        me = threading.get_ident()
        if method == 'build_and_run_instance' and not gone:
            workers[me] = host
            try:
                return deliver()
            except Crash:
                watch.cloud.crash_compute(host)
                raise Unanswered(who=host, reason='crashed') from None
        if method == 'save_instance' and me in workers and not gone:
            gone.append(workers[me])
            raise Crash
        return deliver()

    also(watch, crash)
    server = watch.create()
    while not gone or gone[0] in watch.cloud.computes:
        threading.Event().wait(0.01)
    watch.look()
    assert len(watch.drives) == 1 and [row['kind'] for row in watch.cloud.rows()] == ['boot']
    watch.cloud.start_compute(gone[0])
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ACTIVE', watch.cloud.story(server)
    watch.end()
    assert len(watch.drives) == 1


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('at', ['select_destinations', 'build_and_run_instance'])
def test_a_conductor_crashes_in_the_middle(watch: Watch, at: str) -> None:
    """The row stays, in the API's database or in the cell's; another conductor goes on from it."""
    crashed = threading.Event()

    def crash(topic: str, host: Any, method: str, deliver: Callable[[], Any]) -> Any:
        if method == at and not crashed.is_set():
            crashed.set()
            raise Crash
        return deliver()

    also(watch, crash)
    server = watch.create()
    assert crashed.wait(60)
    watch.cloud.crash_conductor()
    watch.look()
    assert [row['kind'] for row in watch.cloud.rows()] == ['boot']
    watch.cloud.start_conductor()
    watch.cloud.settle()
    assert watch.cloud.status(server) == 'ACTIVE', watch.cloud.story(server)
    watch.end()
    assert len(watch.drives) == 1


def test_deleted_while_it_is_built(watch: Watch) -> None:
    """What waits, is cancelled or pends holds nothing either."""
    asked = []

    def delete(topic: str, host: Any, method: str, deliver: Callable[[], Any]) -> Any:
        if method == 'build_and_run_instance' and not asked:
            asked.append(watch.cloud.request('DELETE', f'/servers/{servers[0]}').status_int)
            watch.look()
        return deliver()

    also(watch, delete)
    servers: list[str] = []
    go_on, hold = threading.Event(), watch.cloud.on_message

    def on_message(kind: str, topic: str, server: Any, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        # Not before the answer has told its id.
        go_on.wait(60)
        return hold(kind, topic, server, method, args, deliver)

    watch.cloud.on_message = on_message
    servers.append(watch.create())
    go_on.set()
    watch.cloud.settle()
    assert asked == [204] and watch.cloud.status(servers[0]) == 'GONE'
    watch.end()
    assert watch.drives == []
