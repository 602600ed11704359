"""A Ceph of a test's own: one monitor and one store of objects in memory, as plain processes; no kernel modules.

    with Ceph(directory) as ceph:
        ceph.conf, ceph.key         # the file that clients read, and the key of the user 'cinder', as libvirt takes it

It has the pools ``volumes``, ``images`` and ``vms``. It has no manager daemon, so nobody knows how full they are:
``df`` stands in for what ``ceph df`` would say.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import random
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ('ceph', 'ceph-authtool', 'ceph-mon', 'ceph-osd', 'monmaptool')
POOL, IMAGES, DISKS, USER = 'volumes', 'images', 'vms', 'cinder'
POOLS = (POOL, IMAGES, DISKS)
WAIT = 120.0
# The monitor has two, the store some more.
PORTS = 20


def missing() -> list[str]:
    """What isn't installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Ceph:
    """Everything is below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._daemons = directory, list[subprocess.Popen[bytes]]()
        self.conf = directory / 'ceph.conf'
        for name in ('mon', 'osd', 'run', 'log'):
            (directory / name).mkdir(parents=True)
        self._fsid = str(uuid.uuid4())
        self._port = _free_ports()
        self.conf.write_text(f"""[global]
fsid = {self._fsid}
mon_host = {self._addresses}
ms_bind_ipv6 = false
ms_bind_port_min = {self._port + 2}
ms_bind_port_max = {self._port + PORTS - 1}
public_network = 127.0.0.0/8
auth_allow_insecure_global_id_reclaim = false
keyring = {directory}/$name.keyring
admin_socket = {directory}/run/$name.$pid.asok
run_dir = {directory}/run
crash_dir = {directory}/run
log_file = {directory}/log/$name.log
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_data_avail_warn = 1
mon_data_avail_crit = 0
rbd_default_features = 61
[mon]
mon_data = {directory}/mon
[osd]
osd_data = {directory}/osd
osd_objectstore = memstore
memstore_device_bytes = {4 << 30}
osd_class_update_on_start = false
""")

    @property
    def _addresses(self) -> str:
        return f'[v2:127.0.0.1:{self._port + 1},v1:127.0.0.1:{self._port}]'

    @property
    def key(self) -> str:
        """Of the user, in base64."""
        keyring = configparser.ConfigParser()
        keyring.read_string((self._directory / f'client.{USER}.keyring').read_text().replace('\t', ''))
        return keyring[f'client.{USER}']['key']

    def write(self, image: str, raw: Path) -> None:
        """The content of a file into an image of the pool, by QEMU as the user."""
        _run(
            'qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', raw, f'rbd:{POOL}/{image}:id={USER}:conf={self.conf}'
        )

    def rbd(self, *argv: str) -> str:
        """What rbd prints, as the user."""
        return _run('rbd', '--id', USER, '--conf', self.conf, *argv)

    def df(self, programs: Path) -> None:
        """A ``ceph`` in that directory: it knows how full the pools are, and is the real one else."""
        said = json.dumps(
            {'pools': [{'name': pool, 'stats': {'stored': 1 << 30, 'max_avail': 99 << 30}} for pool in POOLS]}
        )
        programs.mkdir()
        program = programs / 'ceph'
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *\' df\') echo \'{said}\' ;; *) exec {shutil.which("ceph")} "$@" ;; esac\n'
        )
        program.chmod(0o755)

    # -- its life -----------------------------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        try:
            self._make_monitor()
            self._start('ceph-mon', '-i', 'a')
            self._make_store()
            self._start('ceph-osd', '-i', '0')
            for pool in POOLS:
                self._ceph('osd', 'pool', 'create', pool, '8')
                self._ceph('osd', 'pool', 'application', 'enable', pool, 'rbd')
            self._key(
                f'client.{USER}', 'mon', 'profile rbd', 'osd', ', '.join(f'profile rbd pool={pool}' for pool in POOLS)
            )
            deadline = time.monotonic() + WAIT
            while '1 up' not in self._ceph('osd', 'stat'):
                assert time.monotonic() < deadline, f'the store of Ceph did not come up, see {self._directory}/log'
                time.sleep(0.2)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Nothing is left running; what was stored is lost."""
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait(WAIT)

    def _make_monitor(self) -> None:
        path = self._directory
        keyring, admin, monmap = path / 'mon.keyring', path / 'client.admin.keyring', path / 'monmap'
        _run('ceph-authtool', '--create-keyring', keyring, '--gen-key', '-n', 'mon.', '--cap', 'mon', 'allow *')
        _run(
            'ceph-authtool',
            '--create-keyring',
            admin,
            '--gen-key',
            '-n',
            'client.admin',
            '--cap',
            'mon',
            'allow *',
            '--cap',
            'osd',
            'allow *',
        )
        _run('ceph-authtool', keyring, '--import-keyring', admin)
        _run('monmaptool', '--create', '--fsid', self._fsid, '--addv', 'a', self._addresses, monmap)
        _run('ceph-mon', '-c', self.conf, '--mkfs', '-i', 'a', '--monmap', monmap, '--keyring', keyring)

    def _make_store(self) -> None:
        store = str(uuid.uuid4())
        self._ceph('osd', 'new', store)
        self._key('osd.0', 'mon', 'allow profile osd', 'osd', 'allow *')
        _run('ceph-osd', '-c', self.conf, '-i', '0', '--mkfs', '--osd-uuid', store, '--no-mon-config')

    def _key(self, name: str, *may: str) -> None:
        (self._directory / f'{name}.keyring').write_text(self._ceph('auth', 'get-or-create', name, *may))

    def _ceph(self, *argv: str) -> str:
        return _run('ceph', '-c', self.conf, '--connect-timeout', '60', *argv)

    def _start(self, *argv: str) -> None:
        with (self._directory / 'log' / f'{argv[0]}.out').open('ab') as out:
            self._daemons.append(
                subprocess.Popen(
                    ['setpriv', '--pdeathsig', 'KILL', argv[0], '-c', str(self.conf), '-f', *argv[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            )


def _free_ports() -> int:
    """The first of ``PORTS`` in a row that nobody has, below those that the kernel gives to connections."""
    for first in random.SystemRandom().sample(range(20_000, 32_000, PORTS), 50):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                held.enter_context(socket.socket()).bind(('127.0.0.1', port))
            return first
    raise AssertionError(f'no {PORTS} ports in a row are free')


def _run(*argv: str | Path) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, f'{" ".join(map(str, argv))}: {done.stdout}{done.stderr}'
    return done.stdout
