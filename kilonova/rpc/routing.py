"""Send messages to hosts of several cells, each of which has a message queue of its own.

    transport = RoutedTransport(local, local_url, cells.transport_url_of, open)
    Client(Compute, transport).reboot_instance(ctxt, server='gpu7', …)     # over the queue of gpu7's cell

The local queue ([DEFAULT]transport_url) is used for messages that name no host, and for messages to a host that is
mapped to no cell yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.db.engine import is_unreachable
from kilonova.errors import Unanswered
from kilonova.rpc.interface import RpcInterface
from kilonova.rpc.transport import OsloTransport

HOSTS = 'compute'


class RoutedTransport:
    """A transport that sends each message to a host through the message queue of the host's cell.

    ``url_of(host)`` returns the URL of the cell's message queue, or None if the host is mapped to no cell.
    ``open(url)`` creates a transport, and is called once for each URL.
    """

    def __init__(
        self,
        local: OsloTransport,
        local_url: str,
        url_of: Callable[[str], str | None],
        open: Callable[[str], Any],  # noqa: A002 - what it does
    ) -> None:
        self._local, self._local_url = local, local_url
        self._url_of, self._open = url_of, open
        self._opened: dict[str, Any] = {}
        self._lock = threading.Lock()

    def send(
        self,
        kind: str,
        topic: str,
        namespace: str | None,
        server: str | None,
        version: str,
        ctxt: RequestContext,
        method: str,
        args: dict[str, Any],
    ) -> Any:
        """Send a message, with the arguments and errors of ``OsloTransport.send``.

        Also raises Unanswered if the database that maps hosts to cells does not answer.
        """
        transport = self._of_host(server) if topic == HOSTS and server is not None else self._local
        return transport.send(kind, topic, namespace, server, version, ctxt, method, args)

    def _of_host(self, host: str) -> Any:
        try:
            url = self._url_of(host)
        except Exception as error:
            if not is_unreachable(error):
                raise
            raise Unanswered(who='the database', reason=f'looking up the cell of host {host}: {error}') from error
        if url is None or url == self._local_url:
            return self._local
        with self._lock:
            if url not in self._opened:
                self._opened[url] = self._open(url)
            return self._opened[url]

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[RpcInterface], object]]) -> Any:
        """Return a server that receives messages from the local queue."""
        return self._local.serve(topic, server, endpoints)

    def close(self) -> None:
        """Close the connections to all queues."""
        self._local.close()
        with self._lock:
            for transport in self._opened.values():
                transport.close()
            self._opened.clear()
