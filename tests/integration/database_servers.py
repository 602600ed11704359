"""Private MariaDB and PostgreSQL servers of a test run: own directory, own port, gone afterwards.

    with mariadb() as server:
        server.create('kilonova')                       # a database
        server.url('kilonova')                          # for SQLAlchemy

Both refuse to run as root, so under root they run as the user that their package made.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cloud import process

START_TIMEOUT = 60.0
MEMORY = '/dev/shm'
Act = Callable[[], None]


@dataclass(frozen=True)
class Server:
    """A running server; ``stop`` ends it, ``kill`` does so with kill -9; ``start`` brings it back with its data and
    address. ``freeze``: it stands still (SIGSTOP) with all connections open, until ``thaw``."""

    dialect: str
    base_url: str
    run_sql: Callable[[str], None]
    stop: Act
    kill: Act
    start: Act
    freeze: Act
    thaw: Act
    options: str = ''

    def url(self, database: str) -> str:
        """SQLAlchemy URL of one of its databases."""
        return f'{self.base_url}/{database}{self.options}'

    def create(self, database: str) -> None:
        """Make an empty database."""
        self.run_sql(f'CREATE DATABASE {database}')


def mariadb_programs() -> tuple[str, str] | None:
    """mariadb-install-db and mariadbd, or None where they aren't installed."""
    path = os.pathsep.join((os.environ.get('PATH', ''), '/usr/sbin', '/usr/local/sbin'))
    install, daemon = shutil.which('mariadb-install-db', path=path), shutil.which('mariadbd', path=path)
    return (install, daemon) if install and daemon else None


def postgresql_programs() -> tuple[str, str] | None:
    """initdb and postgres of the newest installed version, or None."""
    places = [
        *sorted(glob.glob('/usr/lib/postgresql/*/bin'), key=_version, reverse=True),
        *os.environ.get('PATH', '').split(os.pathsep),
    ]
    for place in places:
        initdb, daemon = Path(place, 'initdb'), Path(place, 'postgres')
        if initdb.exists() and daemon.exists():
            return str(initdb), str(daemon)
    return None


def _version(path: str) -> int:
    name = Path(path).parent.name
    return int(name) if name.isdigit() else 0


@contextlib.contextmanager
def mariadb() -> Iterator[Server]:
    """A MariaDB server on a free port of the loopback address; user root without a password."""
    import pymysql

    programs = mariadb_programs()
    if programs is None:
        raise LookupError('mariadb-server is not installed')
    with _directory('mysql') as (directory, identity):
        data, port, log = directory / 'data', _free_port(), directory / 'log'
        subprocess.run(
            [
                programs[0],
                '--no-defaults',
                f'--datadir={data}',
                '--skip-test-db',
                '--auth-root-authentication-method=normal',
            ],
            check=True,
            capture_output=True,
            cwd=directory,
            **identity,
        )
        command = [
            programs[1],
            '--no-defaults',
            f'--datadir={data}',
            f'--socket={directory}/socket',
            f'--port={port}',
            '--bind-address=127.0.0.1',
            f'--pid-file={directory}/pid',
            # 2: a commit survives the end of the server (0: not a second of them), if not the machine's.
            '--innodb-buffer-pool-size=32M',
            '--innodb-flush-log-at-trx-commit=2',
            '--skip-name-resolve',
            '--innodb-lock-wait-timeout=5',
            '--max-connections=500',
            f'--log-error={log}',
        ]

        def connect() -> Any:
            return pymysql.connect(host='127.0.0.1', port=port, user='root', autocommit=True, ssl_disabled=True)

        run_sql = _session(connect)
        with _running(command, directory, log, identity, lambda: run_sql('SELECT 1'), signal.SIGTERM) as life:
            # Without this each new connection reads the certificates of the machine: 20 ms of CPU.
            yield Server('mysql', f'mysql+pymysql://root@127.0.0.1:{port}', run_sql, *life, '?ssl_disabled=true')


@contextlib.contextmanager
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server on a free port of the loopback address; user kilonova, trusted. Its texts order as in English
    and its clock is far from here: as distributions and operators set it up."""
    import psycopg2

    programs = postgresql_programs()
    if programs is None:
        raise LookupError('postgresql is not installed')
    with _directory('postgres') as (directory, identity):
        data, port, log = directory / 'data', _free_port(), directory / 'log'
        subprocess.run(
            [
                programs[0],
                '-D',
                str(data),
                '-U',
                'kilonova',
                '-A',
                'trust',
                '-E',
                'UTF8',
                '--locale=C.UTF-8',
                '--locale-provider=icu',
                '--icu-locale=en-US',
                '--no-sync',
            ],
            check=True,
            capture_output=True,
            cwd=directory,
            **identity,
        )
        command = [
            programs[1],
            '-D',
            str(data),
            '-p',
            str(port),
            '-h',
            '127.0.0.1',
            '-k',
            str(directory),
            '-c',
            'fsync=off',
            '-c',
            'timezone=Pacific/Auckland',
            '-c',
            'max_connections=300',
        ]

        def connect() -> Any:
            connection = psycopg2.connect(host='127.0.0.1', port=port, user='kilonova', dbname='postgres')
            connection.autocommit = True
            return connection

        run_sql = _session(connect)
        with _running(command, directory, log, identity, lambda: run_sql('SELECT 1'), signal.SIGINT) as life:
            yield Server('postgresql', f'postgresql+psycopg2://kilonova@127.0.0.1:{port}', run_sql, *life)


def _session(connect: Callable[[], Any]) -> Callable[[str], None]:
    """Run statements over one connection; after a failure over a new one."""
    connections: list[Any] = []
    lock = threading.Lock()

    def run_sql(statement: str) -> None:
        with lock:
            if not connections:
                connections.append(connect())
            try:
                connections[0].cursor().execute(statement)
            except Exception:
                with contextlib.suppress(Exception):
                    connections[0].close()
                connections.clear()
                raise

    return run_sql


@contextlib.contextmanager
def _directory(user: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A directory that the server's user owns, and what makes subprocess run as that user."""
    # In memory where there is such a place: tables are made and dropped all the time.
    directory = Path(tempfile.mkdtemp(prefix='kilonova-db-', dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    identity: dict[str, Any] = {}
    try:
        if os.geteuid() == 0:
            try:
                entry = pwd.getpwnam(user)
            except KeyError:
                entry = pwd.getpwnam('nobody')
            identity = {'user': entry.pw_uid, 'group': entry.pw_gid, 'extra_groups': []}
            os.chown(directory, entry.pw_uid, entry.pw_gid)
        yield directory, identity
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _running(
    command: list[str],
    directory: Path,
    log: Path,
    identity: dict[str, Any],
    ping: Callable[[], None],
    end: signal.Signals,
) -> Iterator[tuple[Act, Act, Act, Act, Act]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with log.open('ab') as output:
            server = subprocess.Popen(command, cwd=directory, stdout=output, stderr=output, **identity)
        processes.append(server)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                ping()
                return
            except Exception as error:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f'{command[0]} did not start: {log.read_text(errors="replace")}') from error
            time.sleep(0.1)

    def stop() -> None:
        for server in processes:
            if server.poll() is None:
                server.send_signal(end)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()

    def kill() -> None:
        children = _children(processes[-1].pid)
        processes[-1].kill()
        processes[-1].wait()
        # PostgreSQL's end by themselves; it doesn't start while one of them is in its shared memory.
        deadline = time.monotonic() + START_TIMEOUT
        while left := [pid for pid, began in children.items() if process.start_time(pid) == began]:
            if time.monotonic() > deadline:
                raise RuntimeError(f'{command[0]} is killed, its children {left} live on')
            time.sleep(0.02)

    try:
        start()
        yield (
            stop,
            kill,
            start,
            lambda: _to_all(processes[-1].pid, signal.SIGSTOP),
            lambda: _to_all(processes[-1].pid, signal.SIGCONT),
        )
    finally:
        with contextlib.suppress(IndexError, ProcessLookupError):
            _to_all(processes[-1].pid, signal.SIGCONT)
        stop()


def _to_all(server: int, number: signal.Signals) -> None:
    """A signal to a server and its children; a server that is stopped first starts no more of them."""
    os.kill(server, number)
    for child in _children(server):
        os.kill(child, number)


def _children(parent: int) -> dict[int, str]:
    """The living processes that this one started, each with when it began."""
    found = {}
    for stat in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            pid = int(stat.parent.name)
            if stat.read_text().rpartition(')')[2].split()[1] == str(parent) and (began := process.start_time(pid)):
                found[pid] = began
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]
