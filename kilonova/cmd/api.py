"""kilonova-api: the compute REST API and the metadata service, as ``[DEFAULT]enabled_apis`` says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from kilonova.cmd.daemon import early

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.db.queries.cells import CellDatabases
    from kilonova.rpc.notify import Notifications
    from kilonova.rpc.routing import RoutedTransport

# Seconds that running requests get at the shutdown. This is enough, because conductors do all work that takes long.
REQUEST_TIME = 10.0


def main() -> int:
    """Run kilonova-api; the entry point of the console script."""
    early.setup(sys.argv[1:], 'kilonova-api')
    from kilonova.cmd.daemon import program as daemon

    return daemon.run('api', build, sys.argv[1:], listens)


def listens(conf: cfg.ConfigOpts) -> dict[str, tuple[str, int]]:
    """Return a dict from the name of each listening socket to its address. All workers share these sockets."""
    found = {
        'osapi_compute': ('api', (conf.osapi_compute_listen, conf.osapi_compute_listen_port)),
        'metadata': ('metadata', (conf.metadata_listen, conf.metadata_listen_port)),
    }
    return dict(found[name] for name in dict.fromkeys(conf.enabled_apis))


def build(conf: cfg.ConfigOpts) -> Any:
    """Return the daemon, assembled from its configuration but not started."""
    from kilonova.api.app import make_app
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.conductor import ComputeTask
    from kilonova.rpc.interface import Client

    local = parts.transport(conf)
    databases, cells = database_parts.opened(conf)
    transport = database_parts.routed(conf, local, cells)
    levels = RpcVersionCaps(conf, cells)
    notify = parts.notifications(conf, states=True)
    parts.warn_without_keys(
        conf, 'new servers get no admin password, and requests that contain a password or files are refused'
    )
    app = make_app(
        conf,
        databases=databases,
        cells=cells,
        image_client=parts.images(conf),
        placement=parts.placement(conf),
        limits=parts.limits(conf),
        accelerators=parts.accelerators(conf),
        networks=parts.networks(conf),
        volumes=parts.volumes(conf),
        notify=notify,
        conductor=Client(ComputeTask, transport, levels.of('compute_task')),
        compute=Client(Compute, transport, levels.of('compute')),
    )
    checks = (
        database_parts.checks(databases)
        | parts.broker_checks(conf)
        | parts.placement_checks(conf)
        | parts.ping_checks(local, conductor=('conductor', None))
    )
    metadata: WSGIApplication = app
    if 'metadata' in conf.enabled_apis:
        from kilonova.api.metadata import MetadataService, Misconfigured
        from kilonova.clients.vendordata import Vendordata
        from kilonova.cmd.daemon.program import StartRefused

        try:
            metadata = MetadataService(conf, databases=databases, cells=cells, vendor=Vendordata(conf))
        except Misconfigured as error:
            raise StartRefused(str(error)) from error
    return ApiPart(conf, app, transport, levels, cells, checks, notify, metadata)


def threads(conf: cfg.ConfigOpts) -> int:
    """Return the number of threads of a server.

    With eventlet the result is the option [wsgi]default_pool_size, the maximum number of green threads. With native
    threads it is a tenth of the option, because all native threads are started at once.
    """
    from kilonova import concurrency

    size = conf.wsgi.default_pool_size
    found: int = size if concurrency.backend() == 'eventlet' else max(size // 10, 1)
    return found


class ApiPart:
    """The API daemon. It serves ``app`` (the compute API) and ``metadata``, each on its own listening socket."""

    timers = None

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        app: WSGIApplication,
        transport: RoutedTransport,
        levels: RpcVersionCaps,
        cells: CellDatabases,
        checks: Mapping[str, Any],
        notify: Notifications,
        metadata: WSGIApplication,
    ) -> None:
        self._apps = {'api': app, 'metadata': metadata}
        self._conf, self.app, self._transport, self._notify = conf, app, transport, notify
        self._levels, self.cells, self.checks = levels, cells, checks
        self._servers: list[Any] = []

    def start(self) -> None:
        """Bind the sockets and start to serve. Raises OSError if a port is in use."""
        from oslo_log import log as logging

        from kilonova import serving
        from kilonova.cmd.daemon import caps, sockets, takeover

        log = logging.getLogger('kilonova.api.wsgi.server')
        takeover.refuse_two_clouds(self._conf, self.cells)
        caps.refuse_old_computes(self._conf, self.cells)
        for name, address in listens(self._conf).items():
            listener = sockets.listen(name, address)
            server = serving.WsgiServer(
                listener,
                self._apps[name],
                threads(self._conf),
                log.logger,
                most_body=self._conf.oslo_middleware.max_request_body_size,
            )
            self._servers.append(server)
            server.start()
            log.info('Listening on %s:%s (%s)', *address, name)

    def reload(self) -> None:
        """Make the daemon look up again which RPC versions the other daemons understand. Called after SIGHUP."""
        self._levels.reset()

    def stop(self) -> None:
        """Stop the service. Running requests get at most REQUEST_TIME seconds to finish."""
        for server in self._servers:
            server.stop(min(REQUEST_TIME, self._conf.manager_shutdown_timeout))
        self._notify.stop()
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
