"""kilonova-api: the compute REST API on [DEFAULT]osapi_compute_listen."""
from __future__ import annotations

import socket
import sys
from typing import Any

from kilonova.cmd import early

BACKLOG = 4096
# Seconds that requests under way get; longer ones are operations that only begin here.
REQUEST_TIME = 10.0


def main() -> int:
    """The console script."""
    early.setup(sys.argv[1:], 'kilonova-api')
    from kilonova.cmd import daemon
    return daemon.run('api', build, sys.argv[1:])


def build(conf: Any) -> Any:
    """The daemon's parts, wired; nothing is started."""
    from kilonova.api.app import make_app
    from kilonova.cmd import options, parts
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.conductor import ComputeTask
    from kilonova.rpc.interface import Client
    transport = parts.transport(conf)
    databases, cells = parts.databases(conf)
    app = make_app(
        conf, databases=databases, cells=cells, image_client=parts.images(conf), placement=parts.placement(conf),
        conductor=Client(ComputeTask, transport),
        compute=Client(Compute, transport, options.cap(conf, 'compute')))
    return ApiPart(conf, app, transport)


def threads(conf: Any) -> int:
    """Of green threads one a connection, as they come, up to the option; of native ones a tenth of it, all started."""
    from kilonova import concurrency
    size = conf.wsgi.default_pool_size
    return size if concurrency.backend() == 'eventlet' else max(size // 10, 1)


class ApiPart:
    """One listening socket and its server."""

    def __init__(self, conf: Any, app: Any, transport: Any) -> None:
        self._conf, self._app, self._transport = conf, app, transport
        self._server: Any = None

    def start(self) -> None:
        """Bind and serve; a port that is taken is an OSError."""
        import logging

        from kilonova import concurrency
        log = logging.getLogger('kilonova.api.wsgi.server')
        address = (self._conf.osapi_compute_listen, self._conf.osapi_compute_listen_port)
        family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._server = concurrency.WsgiServer(listener, self._app, threads(self._conf), log)
        self._server.start()
        log.info('Listening on %s:%s', *address)

    def stop(self) -> None:
        """Requests under way are answered, REQUEST_TIME at most."""
        if self._server is not None:
            self._server.stop(min(REQUEST_TIME, self._conf.manager_shutdown_timeout))
        self._transport.close()


if __name__ == '__main__':
    sys.exit(main())
