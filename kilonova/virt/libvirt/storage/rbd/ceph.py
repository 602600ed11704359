"""Calls of Ceph's programs rbd and ceph (Debian package ceph-common), as one user of one cluster.

    ceph = Ceph(conf)
    ceph.rbd('info', 'vms/UUID_disk')
    ceph.cluster().monitors

Each command has a time limit, and raises ``errors.Unanswered`` if Ceph does not answer. The user's key is in a keyring
that only these programs read.
"""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.virt import command
from kilonova.virt.parts.host import DriverMisconfigured

LOG = logging.getLogger(__name__)

T = TypeVar('T')
# Time limit in seconds for one answer of an object store (OSD).
SILENT = 60
# Time limits in seconds for a command that only reads or writes metadata, and for a command that transfers data.
SHORT, LONG = 120, 6 * 3600
# Seconds for which the cluster's monitors and the free space of the pool are cached.
_HOLDS = 30.0
NAME = re.compile(r'[A-Za-z0-9_.][A-Za-z0-9_.-]*')
# The path of Ceph's configuration file must not contain characters with a meaning in QEMU's names of Ceph images.
_PATH = re.compile(r'[^:@\\=]*')
# Exit codes of a command that took too long: an errno value from rbd, 124 or 137 from the program ``timeout``.
_TIMED_OUT = errno.ETIMEDOUT, 124, 137
# If the program rbd fails with exit code ENOENT and one of these texts, the pool is missing, not the image.
_NOT_OF_THE_IMAGE = ('error opening pool', 'error opening default pool')
# Texts that the programs of Ceph print if Ceph does not answer. The exit code can be any number in this case.
_SILENCE = ("couldn't connect", 'timed out')
_LOGGED = re.compile(r'\d{4}-\d\d-\d\dT\S+ [0-9a-f]+ +-?\d+ ')


@dataclass(frozen=True)
class Cluster:
    """The cluster's id, and its monitors as pairs of address and port."""

    fsid: str
    monitors: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PoolSpace:
    """Total, used and free space in bytes."""

    total: int
    used: int
    free: int


class Ceph:
    """The Ceph client of one host."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.libvirt
        self.conf, self.user, self.secret = options.images_rbd_ceph_conf, options.rbd_user, options.rbd_secret_uuid
        self._pool, self._connect = options.images_rbd_pool, str(options.rbd_connect_timeout)
        self._cluster, self._room = _Known(self._ask_cluster), _Known(self._ask_room)

    def check(self) -> None:
        """Check the configuration. Raises DriverMisconfigured if an option of [libvirt] has an invalid value."""
        for option, value, accepted in (
            ('images_rbd_pool', self._pool, NAME),
            ('rbd_user', self.user or 'x', NAME),
            ('images_rbd_ceph_conf', self.conf, _PATH),
        ):
            if not accepted.fullmatch(value):
                raise DriverMisconfigured(reason=f"[libvirt]{option} is '{value}'; accepted: {accepted.pattern}")
        if bool(self.user) != bool(self.secret):
            raise DriverMisconfigured(
                reason='[libvirt]images_type rbd needs both rbd_user and rbd_secret_uuid, or '
                'neither if the Ceph cluster has no authentication'
            )

    def cluster(self) -> Cluster:
        """Return the id and the monitors of the cluster, cached for 30 s."""
        return self._cluster.now()

    def room(self) -> PoolSpace:
        """Return the total, used and free space of [libvirt]images_rbd_pool, cached for 30 s."""
        return self._room.now()

    def _ask_cluster(self) -> Cluster:
        found = self._ask('mon', 'dump')
        monitors = []
        for monitor in found['mons']:
            by_type = {each['type']: each['addr'] for each in monitor['public_addrs']['addrvec']}
            # An address of type v1 is preferred, because Ceph clients of every release support it.
            address, _, port = (by_type.get('v1') or by_type['v2']).rpartition(':')
            monitors.append((address.strip('[]'), port))
        return Cluster(found['fsid'], tuple(monitors))

    def _ask_room(self) -> PoolSpace:
        for pool in self._ask('df')['pools']:
            if pool['name'] == self._pool:
                stats = pool['stats']
                used = stats['stored'] if 'stored' in stats else stats['bytes_used']
                return PoolSpace(used + stats['max_avail'], used, stats['max_avail'])
        raise command.CommandFailed(
            command='ceph df',
            reason=f'its output does not have pool {self._pool}; check that a manager daemon (ceph-mgr) is running',
        )

    def quietly(self, *argv: str, fine: int = errno.ENOENT, limit: int = SHORT) -> None:
        """Run an rbd command. Ignore one kind of error, because it means that there is nothing to do.

        ``fine`` is the exit code of the error that is ignored; by default, the error that the image or snapshot does
        not exist. Raises CommandFailed for other errors, and errors.Unanswered if Ceph does not answer.
        """
        try:
            self.rbd(*argv, limit=limit)
        except command.CommandFailed as error:
            is_fine = is_missing(error) if fine == errno.ENOENT else error.exit_code == fine
            if not is_fine:
                raise

    def rbd(self, *argv: str, limit: int = SHORT) -> str:
        """Run an rbd command and return its output.

        Raises CommandFailed with the exit code if the command fails, and errors.Unanswered if Ceph does not answer
        within ``limit`` seconds.
        """
        return self._run(
            limit,
            [
                'rbd',
                *self._who(),
                '--client-mount-timeout',
                self._connect,
                '--rados-mon-op-timeout',
                self._connect,
                '--rados-osd-op-timeout',
                str(SILENT),
            ],
            argv,
        )

    def limits(self) -> dict[str, str]:
        """Return the time limits of this Ceph client as a dict of Ceph options, for QEMU."""
        return {
            'client_mount_timeout': self._connect,
            'rados_mon_op_timeout': self._connect,
            'rados_osd_op_timeout': str(SILENT),
        }

    def _ask(self, *argv: str) -> Any:
        return json.loads(
            self._run(SHORT, ['ceph', *self._who(), '--connect-timeout', self._connect, '--format', 'json'], argv)
        )

    def _who(self) -> list[str]:
        return [*(('--id', self.user) if self.user else ()), *(('--conf', self.conf) if self.conf else ())]

    def _run(self, limit: int, program: Sequence[str], argv: Sequence[str]) -> str:
        try:
            return command.run('timeout', '--kill-after=5', str(limit), *program, *argv)
        except command.CommandFailed as error:
            words, act = str(error.fields['reason']), f'{program[0]} {" ".join(argv)}'
            # Log lines that Ceph's library printed are left out of the error text.
            short = ' '.join(line for line in words.splitlines() if line and not _LOGGED.match(line))[-500:] or words
            if error.exit_code in _TIMED_OUT or (
                error.exit_code != errno.EACCES and any(said in words for said in _SILENCE)
            ):
                raise errors.Unanswered(who='Ceph', reason=f'{act}: {short}') from error
            failed = command.CommandFailed(command=act, reason=short)
            failed.exit_code, failed.said = error.exit_code, words
            raise failed from error


class _Known(Generic[T]):
    """A cached result of a query, valid for 30 s.

    If the query fails, the last result remains in use. The error is raised only if there is no earlier result.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._found: tuple[T, float] | None = None

    def now(self) -> T:
        with self._lock:
            if self._found is None or time.monotonic() - self._found[1] > _HOLDS:
                try:
                    found = self._ask()
                except (command.CommandFailed, errors.Unanswered) as error:
                    if self._found is None:
                        raise
                    LOG.warning('A query to Ceph failed; the result of the last successful query is used: %s', error)
                    found = self._found[0]
                self._found = found, time.monotonic()
            return self._found[0]


def is_missing(error: command.CommandFailed) -> bool:
    """Return True if the error means that the image or the snapshot does not exist."""
    return error.exit_code == errno.ENOENT and not any(said in error.said for said in _NOT_OF_THE_IMAGE)
