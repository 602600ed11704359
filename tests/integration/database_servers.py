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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT = 60.0


@dataclass(frozen=True)
class Server:
    """A running server; ``stop`` ends it (for good)."""

    dialect: str
    base_url: str
    run_sql: Callable[[str], None]
    stop: Callable[[], None]

    def url(self, database: str) -> str:
        """SQLAlchemy URL of one of its databases."""
        return f'{self.base_url}/{database}'

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
    places = [*sorted(glob.glob('/usr/lib/postgresql/*/bin'), key=_version, reverse=True),
              *os.environ.get('PATH', '').split(os.pathsep)]
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
        subprocess.run([programs[0], '--no-defaults', f'--datadir={data}', '--skip-test-db',
                        '--auth-root-authentication-method=normal'],
                       check=True, capture_output=True, cwd=directory, **identity)
        command = [programs[1], '--no-defaults', f'--datadir={data}', f'--socket={directory}/socket',
                   f'--port={port}', '--bind-address=127.0.0.1', f'--pid-file={directory}/pid',
                   '--innodb-buffer-pool-size=32M', '--innodb-flush-log-at-trx-commit=0', '--skip-name-resolve',
                   '--innodb-lock-wait-timeout=5', f'--log-error={log}']

        def run_sql(statement: str) -> None:
            with contextlib.closing(pymysql.connect(host='127.0.0.1', port=port, user='root',
                                                    autocommit=True)) as connection:
                connection.cursor().execute(statement)
        with _running(command, directory, log, identity, lambda: run_sql('SELECT 1'), signal.SIGTERM) as stop:
            yield Server('mysql', f'mysql+pymysql://root@127.0.0.1:{port}', run_sql, stop)


@contextlib.contextmanager
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server on a free port of the loopback address; user kilonova, trusted."""
    import psycopg2
    programs = postgresql_programs()
    if programs is None:
        raise LookupError('postgresql is not installed')
    with _directory('postgres') as (directory, identity):
        data, port, log = directory / 'data', _free_port(), directory / 'log'
        subprocess.run([programs[0], '-D', str(data), '-U', 'kilonova', '-A', 'trust', '-E', 'UTF8', '--locale=C',
                        '--no-sync'], check=True, capture_output=True, cwd=directory, **identity)
        command = [programs[1], '-D', str(data), '-p', str(port), '-h', '127.0.0.1', '-k', str(directory),
                   '-c', 'fsync=off', '-c', 'timezone=Pacific/Auckland']

        def run_sql(statement: str) -> None:
            with contextlib.closing(psycopg2.connect(host='127.0.0.1', port=port, user='kilonova',
                                                     dbname='postgres')) as connection:
                connection.autocommit = True
                connection.cursor().execute(statement)
        with _running(command, directory, log, identity, lambda: run_sql('SELECT 1'), signal.SIGINT) as stop:
            yield Server('postgresql', f'postgresql+psycopg2://kilonova@127.0.0.1:{port}', run_sql, stop)


@contextlib.contextmanager
def _directory(user: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A directory that the server's user owns, and what makes subprocess run as that user."""
    directory = Path(tempfile.mkdtemp(prefix='kilonova-db-'))
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
def _running(command: list[str], directory: Path, log: Path, identity: dict[str, Any], ping: Callable[[], None],
             end: signal.Signals) -> Iterator[Callable[[], None]]:
    with log.open('ab') as output:
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=output, **identity)

    def stop() -> None:
        if process.poll() is None:
            process.send_signal(end)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                ping()
                break
            except Exception as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f'{command[0]} did not start: {log.read_text(errors="replace")}') from error
            time.sleep(0.1)
        yield stop
    finally:
        stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]
