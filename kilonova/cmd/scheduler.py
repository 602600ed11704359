"""kilonova-scheduler: the daemon that chooses hosts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kilonova.cmd.daemon import early

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.cmd.daemon.service import ServiceRecord
    from kilonova.db.engine import Databases
    from kilonova.db.queries.cells import CellDatabases
    from kilonova.rpc.transport import OsloTransport
    from kilonova.scheduler.manager import SchedulerManager


def main() -> int:
    """Run kilonova-scheduler; the entry point of the console script."""
    early.setup(sys.argv[1:], 'kilonova-scheduler')
    from kilonova.cmd.daemon import program as daemon

    return daemon.run('scheduler', build, sys.argv[1:])


def build(conf: cfg.ConfigOpts) -> Any:
    """Return the daemon, assembled from its configuration but not started."""
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.cmd.daemon.service import ServiceRecord
    from kilonova.scheduler.manager import SchedulerManager

    transport = parts.transport(conf)
    databases, cells = database_parts.opened(conf)
    databases.api()
    notify = parts.notifications(conf)
    manager = SchedulerManager(conf, databases, cells, parts.placement(conf), notify=notify)
    record = ServiceRecord(
        databases.main, host=conf.host, binary='nova-scheduler', interval=conf.report_interval, notify=notify
    )
    checks = (
        database_parts.checks(databases)
        | parts.broker_checks(conf)
        | parts.placement_checks(conf)
        | parts.ping_checks(transport, rpc=('scheduler', conf.host))
    )
    return SchedulerPart(conf, databases, manager, record, transport, cells, checks)


class SchedulerPart:
    """The scheduler daemon.

    At the start it first serves calls and then reports that it is up. At the end it first stops the reports and then
    stops serving.
    """

    timers = None

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        databases: Databases,
        manager: SchedulerManager,
        record: ServiceRecord,
        transport: OsloTransport,
        cells: CellDatabases,
        checks: Mapping[str, Any],
    ) -> None:
        self._databases, self._manager, self._record, self._transport = databases, manager, record, transport
        self._conf, self._cells, self.checks = conf, cells, checks
        self._stopping = threading.Event()
        self._server = transport.serve('scheduler', conf.host, manager.endpoints())
        self._serving = False

    def start(self) -> None:
        """Start to answer calls, then report that the service is up."""
        from kilonova.cmd.daemon import caps, database_parts, takeover

        database_parts.await_all(self._databases, self._stopping)
        if self._stopping.is_set():
            return
        takeover.refuse_two_clouds(self._conf, self._cells)
        caps.refuse_old_computes(self._conf, self._cells)
        self._manager.start()
        self._server.start()
        self._serving = True
        self._record.start()

    def reload(self) -> None:
        """Do nothing: the daemon caches nothing that must be read again."""

    def stop(self) -> None:
        """Stop the service. Calls that are running still get their reply."""
        self._stopping.set()
        self._record.stop()
        if self._serving:
            self._server.stop()
            self._server.wait()
        self._manager.stop()
        self._manager.notify.stop()
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
