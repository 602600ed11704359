"""How new messages to the other daemons may be: [upgrade_levels], and what 'auto' comes to.

    levels = Levels(conf, cells)
    compute = Client(Compute, transport, levels.of('compute'))
    levels.reset()                              # SIGHUP: look again

'auto' (or nothing) is the lowest version of the services of that kind in all cells: looked up with the first message,
kept until SIGHUP. So the daemons of a new release talk to computes of the release before, and a SIGHUP after the last
compute was upgraded lets them use all that is new.
"""
from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.cmd import options
from kilonova.db import engine
from kilonova.db.queries import services
from kilonova.db.queries.cells import Cells
from kilonova.rpc import versions

LOG = logging.getLogger(__name__)


class TooOldComputeService(errors.KilonovaError):
    msg_fmt = ('Current Kilonova version does not support computes older than %(oldest)d but the minimum compute '
               'service level in your system is %(minimum)d. Upgrade them first, or set '
               '[workarounds]disable_compute_service_check_for_ffu while no compute runs.')


class Levels:
    """``cells``: db.queries.cells.Cells; None: a daemon without a database, for which 'auto' is no cap."""

    def __init__(self, conf: cfg.ConfigOpts, cells: Cells | None = None) -> None:
        self._conf, self._cells = conf, cells
        self._lock = threading.Lock()
        self._known: dict[str, str | None] = {}
        self._fresh: set[str] = set()

    def of(self, interface: str) -> str | Callable[[], str | None] | None:
        """The cap of a client of this interface (a name of ``rpc.versions``)."""
        pinned = options.cap(self._conf, interface)
        if pinned is not None or self._cells is None:
            return pinned
        cells = self._cells
        return lambda: self._auto(cells, interface)

    def reset(self) -> None:
        """What services speak is looked up again with the next message."""
        with self._lock:
            self._fresh.clear()
        LOG.info('What the other services understand is looked up again')

    def _auto(self, cells: Cells, interface: str) -> str | None:
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
            raise errors.Unanswered(who='the database', reason=f'versions of {binary} services: {error}') from error
        found = versions.cap(interface, minimum)
        # Without such a service whatever starts next is of this release, or is found by the next message.
        if minimum:
            LOG.info('Automatically selected %s RPC version %s from minimum service version %d', interface,
                     found or versions.HISTORY[versions.SERVICE_VERSION][interface], minimum)
            with self._lock:
                self._known[interface] = found
                self._fresh.add(interface)
        return found


def minimum_version(cells: Cells, binary: str) -> int:
    """The lowest version of the services of this kind in all cells but cell0; 0 when there are none. One statement a
    cell."""
    found, buried = [], cells.cell0()
    for database in cells.databases():
        if database is buried:
            continue
        with database.read() as connection:
            found.append(services.minimum_version(connection, binary))
    return min((version for version in found if version), default=0)


def refuse_old_computes(conf: cfg.ConfigOpts, cells: Cells) -> None:
    """TooOldComputeService when a compute is older than the release before; nothing when the databases are silent."""
    try:
        minimum = minimum_version(cells, 'nova-compute')
    except Exception as error:
        if not engine.is_unreachable(error):
            raise
        LOG.warning('The versions of the computes could not be looked up: %s', error)
        return
    if not minimum or minimum >= versions.OLDEST_SUPPORTED:
        return
    refusal = TooOldComputeService(oldest=versions.OLDEST_SUPPORTED, minimum=minimum)
    if not conf.workarounds.disable_compute_service_check_for_ffu:
        raise refusal
    LOG.warning('%s', refusal)
