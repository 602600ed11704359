"""kilonova-compute: the daemon that manages one host and its guests.

The daemon has no database. A conductor reads and writes its objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kilonova.cmd.daemon import early

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.compute.manager import ComputeManager
    from kilonova.rpc.transport import OsloTransport

# The fraction of [DEFAULT]manager_shutdown_timeout in which running steps of operations may finish.
# Until the end of this time, the steps may repeat RPC calls that get no answer.
ORDERS_SHARE = 0.8


def main() -> int:
    """Run kilonova-compute; the entry point of the console script."""
    early.setup(sys.argv[1:], 'kilonova-compute')
    from kilonova.cmd.daemon import program as daemon

    return daemon.run('compute', build, sys.argv[1:])


def build(conf: cfg.ConfigOpts) -> Any:
    """Return the daemon, assembled from its configuration but not started."""
    from kilonova.cmd import options
    from kilonova.cmd.daemon import parts
    from kilonova.cmd.daemon.single_instance import SoleUse
    from kilonova.compute.manager import ComputeManager
    from kilonova.db import access
    from kilonova.objects import base
    from kilonova.rpc.conductor import Conductor
    from kilonova.rpc.interface import Client
    from kilonova.rpc.reports import ReportSender
    from kilonova.virt import driver

    access.forbid('nova-compute')
    # Refuse a second process for this host: both would receive its messages, and change its guests and devices.
    sole = SoleUse(conf.state_path, 'compute', f'kilonova-compute of host {conf.host}')
    transport = parts.transport(conf)
    conductor = Client(Conductor, transport, options.cap(conf, 'conductor'))
    base.set_indirection(conductor)
    parts.warn_without_keys(conf, 'this host refuses new servers that have a password or files')
    broker = parts.broker(conf)
    # A heartbeat expires when the next one is sent, because an old heartbeat is useless.
    report = ReportSender(broker, expires=conf.report_interval).send if broker else None
    manager = ComputeManager(
        conf,
        report=report,
        driver=driver.load(conf, parts.images(conf)),
        conductor=conductor,
        placement=parts.placement(conf),
        accelerators=parts.accelerators(conf),
        networks=parts.networks(conf),
        notify=parts.notifications(conf),
    )
    hypervisor = conf.compute_driver.partition('.')[0]
    checks = (
        parts.broker_checks(conf)
        | parts.placement_checks(conf)
        | parts.ping_checks(transport, rpc=('compute', conf.host), conductor=('conductor', None))
        | {hypervisor: manager.host.driver.guests.list_instance_uuids}
    )
    return ComputePart(conf, manager, transport, checks, sole.end)


class ComputePart:
    """The compute daemon.

    At the start the daemon first examines its host and then listens for messages. At the end it stops listening,
    finishes its work, closes its connections, and calls the function ``ended``, which lets another process of
    kilonova-compute start on this host.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        manager: ComputeManager,
        transport: OsloTransport,
        checks: Mapping[str, Any],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        from kilonova.rpc.compute import Compute

        self._patience = conf.manager_shutdown_timeout * ORDERS_SHARE
        self._manager, self._transport = manager, transport
        self._server = transport.serve('compute', conf.host, [(Compute, manager.endpoint)])
        self._serving = False
        self.checks, self._ended = checks, ended
        self.timers = manager.timers

    def start(self) -> None:
        """Start the service. Returns when the host has reported that it is up."""
        self._manager.start(self._serve)

    def _serve(self) -> None:
        self._server.start()
        self._serving = True

    def reload(self) -> None:
        """Do nothing: the daemon caches nothing from other services."""

    def stop(self) -> None:
        """Stop the service.

        Running steps of operations may finish within the fraction ORDERS_SHARE of manager_shutdown_timeout. After that,
        they don't repeat RPC calls that get no answer.
        """
        from kilonova import concurrency

        if self._serving:
            self._server.stop()
            concurrency.spawn(self._server.wait, name='orders').join(self._patience)
        self._manager.stop()
        self._manager.host.notify.stop()
        self._transport.close()
        self._ended()


if __name__ == '__main__':
    sys.exit(main())
