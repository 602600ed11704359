"""kilonova-scheduler: chooses hosts."""
from __future__ import annotations

import sys
import threading
from typing import Any

from kilonova.cmd import early


def main() -> int:
    """The console script."""
    early.setup(sys.argv[1:], 'kilonova-scheduler')
    from kilonova.cmd import daemon
    return daemon.run('scheduler', build, sys.argv[1:])


def build(conf: Any) -> Any:
    """The daemon's parts, wired; nothing is started."""
    from kilonova.cmd import parts
    from kilonova.cmd.service import ServiceRecord
    from kilonova.scheduler.manager import SchedulerManager
    transport = parts.transport(conf)
    databases, cells = parts.databases(conf)
    databases.api()
    manager = SchedulerManager(conf, databases, cells, parts.placement(conf))
    record = ServiceRecord(databases.main, host=conf.host, binary='nova-scheduler', interval=conf.report_interval)
    return SchedulerPart(conf, databases, manager, record, transport)


class SchedulerPart:
    """Serve, report up; in the opposite order at the end."""

    def __init__(self, conf: Any, databases: Any, manager: Any, record: Any, transport: Any) -> None:
        self._databases, self._manager, self._record, self._transport = databases, manager, record, transport
        self._stopping = threading.Event()
        self._server = transport.serve('scheduler', conf.host, manager.endpoints())
        self._serving = False

    def start(self) -> None:
        """Serve, then report up."""
        from kilonova.cmd import parts
        parts.await_databases(self._databases, self._stopping)
        if self._stopping.is_set():
            return
        self._manager.start()
        self._server.start()
        self._serving = True
        self._record.start()

    def stop(self) -> None:
        """Selections under way are answered."""
        self._stopping.set()
        self._record.stop()
        if self._serving:
            self._server.stop()
            self._server.wait()
        self._manager.stop()
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
