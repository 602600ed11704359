"""kilonova-conductor: the daemon that runs operations, and accesses databases for the compute daemons."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kilonova.cmd.daemon import early

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.cmd.daemon.service import ServiceRecord
    from kilonova.conductor.manager import ConductorManager
    from kilonova.db.engine import Databases
    from kilonova.db.queries.cells import CellDatabases
    from kilonova.rpc.routing import RoutedTransport

# The fraction of [DEFAULT]manager_shutdown_timeout in which running steps of operations may finish.
# Another conductor repeats the steps that did not finish in this time.
FLOWS_SHARE = 0.8


def main() -> int:
    """Run kilonova-conductor; the entry point of the console script."""
    early.setup(sys.argv[1:], 'kilonova-conductor')
    from kilonova.cmd.daemon import program as daemon

    return daemon.run('conductor', build, sys.argv[1:])


def build(conf: cfg.ConfigOpts) -> Any:
    """Return the daemon, assembled from its configuration but not started."""
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.cmd.daemon.service import ServiceRecord
    from kilonova.conductor.manager import ConductorManager
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client
    from kilonova.rpc.scheduler import Scheduler

    local = parts.transport(conf)
    databases, cells = database_parts.opened(conf)
    transport = database_parts.routed(conf, local, cells)
    databases.api()
    levels = RpcVersionCaps(conf, cells)
    notify = parts.notifications(conf, states=True)
    manager = ConductorManager(
        conf,
        transport=transport,
        databases=databases,
        cells=cells,
        placement=parts.placement(conf),
        images=parts.images(conf),
        accelerators=parts.accelerators(conf),
        networks=parts.networks(conf),
        volumes=parts.volumes(conf),
        notify=notify,
        broker=parts.broker(conf),
        scheduler=Client(Scheduler, transport, levels.of('scheduler')),
        compute=Client(Compute, transport, levels.of('compute')),
    )
    record = ServiceRecord(
        databases.main, host=conf.host, binary='nova-conductor', interval=conf.report_interval, notify=notify
    )
    checks = (
        database_parts.checks(databases)
        | parts.broker_checks(conf)
        | parts.placement_checks(conf)
        | parts.ping_checks(local, rpc=('conductor', conf.host))
    )
    return ConductorPart(conf, databases, manager, record, transport, levels, cells, checks)


class ConductorPart:
    """The conductor daemon.

    At the start it first serves calls and then reports that it is up. At the end it first stops the reports and then
    stops serving.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        databases: Databases,
        manager: ConductorManager,
        record: ServiceRecord,
        transport: RoutedTransport,
        levels: RpcVersionCaps,
        cells: CellDatabases,
        checks: Mapping[str, Any],
    ) -> None:
        self._conf, self._databases, self._manager = conf, databases, manager
        self._record, self._transport = record, transport
        self._levels, self._cells, self.checks = levels, cells, checks
        self.timers = manager.expiry.timers
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start to answer calls, then report that the service is up."""
        from kilonova.cmd.daemon import caps, database_parts, takeover

        database_parts.await_all(self._databases, self._stopping)
        if not self._stopping.is_set():
            takeover.refuse_two_clouds(self._conf, self._cells)
            caps.refuse_old_computes(self._conf, self._cells)
            if self._conf.adoption.nova_config:
                self.timers.every(takeover.PERIOD, lambda: takeover.log_running_nova(self._conf), 'running_nova')
            self._manager.start()
            self._record.start()

    def reload(self) -> None:
        """Make the daemon look up again which RPC versions the other daemons understand."""
        self._levels.reset()

    def stop(self) -> None:
        """Stop the service. Running steps may finish, and their operation rows are released for other conductors."""
        self._stopping.set()
        self._record.stop()
        self._manager.stop(timeout=self._conf.manager_shutdown_timeout * FLOWS_SHARE)
        self._manager.env.notify.stop()
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
