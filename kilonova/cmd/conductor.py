"""kilonova-conductor: runs operations, and is the database of the computes."""
from __future__ import annotations

import sys
import threading
from typing import Any

from kilonova.cmd import early

# Of the time to end, the share that steps under way get; a step that takes longer is left to the next conductor.
FLOWS_SHARE = 0.8


def main() -> int:
    """The console script."""
    early.setup(sys.argv[1:], 'kilonova-conductor')
    from kilonova.cmd import daemon
    return daemon.run('conductor', build, sys.argv[1:])


def build(conf: Any) -> Any:
    """The daemon's parts, wired; nothing is started."""
    from kilonova.cmd import options, parts
    from kilonova.cmd.service import ServiceRecord
    from kilonova.conductor.manager import ConductorManager
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client
    from kilonova.rpc.scheduler import Scheduler
    transport = parts.transport(conf)
    databases, cells = parts.databases(conf)
    databases.api()
    manager = ConductorManager(
        conf, transport=transport, databases=databases, cells=cells, placement=parts.placement(conf),
        scheduler=Client(Scheduler, transport, options.cap(conf, 'scheduler')),
        compute=Client(Compute, transport, options.cap(conf, 'compute')))
    record = ServiceRecord(databases.main, host=conf.host, binary='nova-conductor', interval=conf.report_interval)
    return ConductorPart(conf, databases, manager, record, transport)


class ConductorPart:
    """Serve, report up; in the opposite order at the end."""

    def __init__(self, conf: Any, databases: Any, manager: Any, record: Any, transport: Any) -> None:
        self._conf, self._databases, self._manager = conf, databases, manager
        self._record, self._transport = record, transport
        self._stopping = threading.Event()

    def start(self) -> None:
        """Serve, then report up."""
        from kilonova.cmd import parts
        parts.await_databases(self._databases, self._stopping)
        if not self._stopping.is_set():
            self._manager.start()
            self._record.start()

    def stop(self) -> None:
        """Steps under way end, rows are given back."""
        self._stopping.set()
        self._record.stop()
        self._manager.stop(timeout=self._conf.manager_shutdown_timeout * FLOWS_SHARE)
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
