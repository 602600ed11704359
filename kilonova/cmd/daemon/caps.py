"""Caps of message versions for other daemons, from ``[upgrade_levels]``: fixed values, or 'auto'.

    levels = RpcVersionCaps(conf, cells)
    compute = Client(Compute, transport, levels.of('compute'))
    levels.reset()                # after SIGHUP, look up the versions again

'auto' (or an empty value) means the lowest version of the services of that kind in all cells. This version is looked up
for the first message and kept until SIGHUP. So daemons of a new release can send messages to compute daemons of the
previous release. After the last compute daemon was upgraded, a SIGHUP makes them use all new messages.

Services that have not reported for a long time count as well, unless they are forced down or deleted. Log lines about
the lowest version therefore name the hosts that have it, and the times of their last reports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.cmd import options
from kilonova.db import engine
from kilonova.db.queries import adoption, services
from kilonova.db.queries.cells import CellDatabases
from kilonova.rpc import versions

LOG = logging.getLogger(__name__)


# Maximum number of services that a log line names. If there are more, the line ends with the number of the others.
MOST_NAMED = 5
# Units of time in seconds, with their names in texts.
_UNITS = ((86400, 'day'), (3600, 'hour'), (60, 'minute'), (1, 'second'))


class TooOldComputeService(errors.KilonovaError):
    """A compute service is older than the oldest release that this daemon's release supports."""

    msg_fmt = (
        'Current Kilonova version does not support computes older than %(oldest)d but the minimum compute '
        'service level in your system is %(minimum)d%(named)s. Upgrade them first, or set '
        '[workarounds]disable_compute_service_check_for_ffu while no compute runs. A host that is gone for good '
        "counts until its service is deleted ('openstack compute service delete') or forced down."
    )


class RpcVersionCaps:
    """The version caps of this daemon's RPC clients.

    ``cells`` is None if the daemon has no database. Then the value 'auto' of an option in [upgrade_levels] sets no cap.
    """

    def __init__(self, conf: cfg.ConfigOpts, cells: CellDatabases | None = None) -> None:
        self._conf, self._cells = conf, cells
        self._lock = threading.Lock()
        self._known: dict[str, str | None] = {}
        self._fresh: set[str] = set()

    def of(self, interface: str) -> str | Callable[[], str | None] | None:
        """Return the version cap for a client of an RPC interface.

        ``interface`` is a key of ``rpc.versions.BINARIES``, such as 'compute'. The result is a fixed cap, a function
        that returns the cap, or None if there is no cap.
        """
        pinned = options.cap(self._conf, interface)
        if pinned is not None or self._cells is None:
            return pinned
        cells = self._cells
        return lambda: self._auto(cells, interface)

    def reset(self) -> None:
        """Make the next message to each interface look up the versions of its services again."""
        with self._lock:
            self._fresh.clear()
        LOG.info('RPC versions of the other services will be looked up again')

    def _auto(self, cells: CellDatabases, interface: str) -> str | None:
        with self._lock:
            if interface in self._fresh:
                return self._known[interface]
        binary = versions.BINARIES[interface]
        try:
            minimum = minimum_version(cells, binary)
        except Exception as error:
            if not engine.is_unreachable(error):
                raise
            with self._lock:
                if interface in self._known:
                    return self._known[interface]
            raise errors.Unanswered(
                who='the database', reason=f'the versions of {binary} services could not be read: {error}'
            ) from error
        found = versions.cap(interface, minimum)
        # If no cell has a service of this kind, do not keep the result. The next message looks up the versions again.
        if minimum:
            LOG.info(
                'Automatically selected %s RPC version %s from minimum service version %d',
                interface,
                found or versions.HISTORY[versions.SERVICE_VERSION][interface],
                minimum,
            )
            if minimum < versions.SERVICE_VERSION:
                LOG.info(
                    'Services of an older release limit the RPC version until they are upgraded: %s',
                    named(cells, binary, versions.SERVICE_VERSION),
                )
            with self._lock:
                self._known[interface] = found
                self._fresh.add(interface)
        return found


def minimum_version(cells: CellDatabases, binary: str) -> int:
    """Return the lowest version of the services of the kind ``binary`` in all cells except cell0.

    Return 0 if no cell has a service of this kind. Runs one SQL statement for each cell.
    """
    found, buried = [], cells.cell0()
    for database in cells.databases():
        if database is buried:
            continue
        with database.read() as connection:
            found.append(services.minimum_version(connection, binary))
    return min((version for version in found if version), default=0)


def named(cells: CellDatabases, binary: str, below: int, silent_for: float | None = None) -> str:
    """Return a text with host, version and last report of the services with a version below ``below``.

    ``binary`` is the kind of the services. The text names at most MOST_NAMED services, and says how many more exist. If
    ``silent_for`` is given, only services that have not reported for this number of seconds are included. The text is
    empty if there is no such service, or if a database does not answer. Runs two SQL statements for each cell.
    """
    found, total, buried = list[services.Outdated](), 0, cells.cell0()
    try:
        for database in cells.databases():
            if database is not buried:
                with database.read() as connection:
                    rows, count = services.outdated(connection, binary, below, MOST_NAMED, silent_for)
                found, total = found + rows, total + count
    except Exception as error:
        if not engine.is_unreachable(error):
            raise
        LOG.debug('Services of an older release could not be looked up: %s', error)
        return ''
    first = sorted(found, key=lambda one: (one.version, one.host))[:MOST_NAMED]
    texts = [f'{one.binary} on host {one.host} (version {one.version}, {_report(one.silent)})' for one in first]
    if total > len(first):
        texts.append(f'and {total - len(first)} more')
    return '; '.join(texts)


def _report(silent: float | None) -> str:
    """Return a text such as 'last report 3 days ago'. ``silent`` is the age of the last report in seconds, or None."""
    if silent is None:
        return 'no report yet'
    seconds = max(int(silent), 0)
    size, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    count = seconds // size
    return f'last report {count} {unit}{"" if count == 1 else "s"} ago'


def too_old(cells: CellDatabases) -> TooOldComputeService | None:
    """Return the error to raise if a compute service is older than the previous release, otherwise None."""
    minimum = minimum_version(cells, 'nova-compute')
    if not minimum or minimum >= versions.OLDEST_SUPPORTED:
        return None
    found = named(cells, 'nova-compute', versions.OLDEST_SUPPORTED)
    return TooOldComputeService(oldest=versions.OLDEST_SUPPORTED, minimum=minimum, named=f' ({found})' if found else '')


def not_adopted(cells: CellDatabases) -> list[str]:
    """Return the hosts that still run nova-compute, and set ``all_adopted`` of each cell's ``Database`` object.

    Runs one SQL statement for each cell except cell0.
    """
    found, buried = list[str](), cells.cell0()
    for database in cells.databases():
        if database is not buried:
            with database.read() as connection:
                hosts = adoption.not_adopted(connection)
            database.all_adopted = not hosts
            found += hosts
    return found


def refuse_old_computes(conf: cfg.ConfigOpts, cells: CellDatabases) -> None:
    """Raise TooOldComputeService if a compute service is older than the previous release.

    If ``[workarounds]disable_compute_service_check_for_ffu`` is set, only log a warning. Hosts that have not been
    adopted from Nova yet are logged. Do nothing if the databases don't answer.
    """
    try:
        refusal = too_old(cells)
        waiting = not_adopted(cells)
    except Exception as error:
        if not engine.is_unreachable(error):
            raise
        LOG.warning('The versions of the computes could not be looked up: %s', error)
        return
    if waiting:
        LOG.warning(
            '%d hosts have not been adopted from Nova yet, requests for their servers are refused: %s%s',
            len(waiting),
            ', '.join(waiting[:MOST_NAMED]),
            ' and others' if len(waiting) > MOST_NAMED else '',
        )
    if refusal is None:
        return
    if not conf.workarounds.disable_compute_service_check_for_ffu:
        raise refusal
    LOG.warning('%s', refusal)
