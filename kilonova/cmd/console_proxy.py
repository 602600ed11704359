"""kilonova-novncproxy, kilonova-serialproxy and kilonova-spicehtml5proxy: one program for three kinds of consoles.

    python -m kilonova.cmd.console_proxy novncproxy --config-file kilonova.conf

Each proxy is a daemon with one listening socket.
"""

from __future__ import annotations

import os
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kilonova.cmd.daemon import early

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.console.proxy import Proxy
    from kilonova.db.engine import Databases
    from kilonova.rpc.routing import RoutedTransport

# The maximum number of seconds that ``stop`` waits until the consoles are closed.
CLOSING = 10.0


@dataclass(frozen=True)
class ProxyKind:
    """One kind of proxy.

    ``section`` is the proxy's section in the configuration. ``address`` and ``port`` are names of options in this
    section. ``types`` are the console types of the proxy. ``web`` is the directory in which Linux distributions install
    the proxy's web pages.
    """

    section: str
    address: str
    port: str
    types: frozenset[str]
    web: str | None = None


KINDS = {
    'novncproxy': ProxyKind('vnc', 'novncproxy_host', 'novncproxy_port', frozenset({'novnc'}), '/usr/share/novnc'),
    'serialproxy': ProxyKind('serial_console', 'serialproxy_host', 'serialproxy_port', frozenset({'serial'})),
    'spicehtml5proxy': ProxyKind(
        'spice', 'html5proxy_host', 'html5proxy_port', frozenset({'spice-html5'}), '/usr/share/spice-html5'
    ),
}
_VERSIONS = {'tlsv1_1': ssl.TLSVersion.TLSv1_1, 'tlsv1_2': ssl.TLSVersion.TLSv1_2, 'tlsv1_3': ssl.TLSVersion.TLSv1_3}


def novncproxy() -> int:
    """Run kilonova-novncproxy; the entry point of the console script."""
    return _run('novncproxy', sys.argv[1:])


def serialproxy() -> int:
    """Run kilonova-serialproxy; the entry point of the console script."""
    return _run('serialproxy', sys.argv[1:])


def spicehtml5proxy() -> int:
    """Run kilonova-spicehtml5proxy; the entry point of the console script."""
    return _run('spicehtml5proxy', sys.argv[1:])


def _run(name: str, argv: Sequence[str]) -> int:
    # Use native threads, because the proxy uses asyncio's event loop, which does not work with eventlet.
    early.setup(argv, f'kilonova-{name}', native=True)
    from kilonova.cmd.daemon import program as daemon

    return daemon.run(name, lambda conf: build(conf, name), argv)


def build(conf: cfg.ConfigOpts, name: str) -> ProxyPart:
    """Return the daemon, assembled from its configuration but not started."""
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.cmd.daemon.caps import RpcVersionCaps
    from kilonova.console.authority import Authority
    from kilonova.console.pages import Pages
    from kilonova.console.proxy import Proxy, ProxyLimits
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client

    kind = KINDS[name]
    check(conf)
    local = parts.transport(conf)
    databases, cells = database_parts.opened(conf)
    transport = database_parts.routed(conf, local, cells)
    levels = RpcVersionCaps(conf, cells)
    authority = Authority(cells, Client(Compute, transport, levels.of('compute')))
    proxy = Proxy(
        name,
        kind.types,
        authority,
        Pages(pages(conf, kind)),
        ProxyLimits(),
        conf.console.allowed_origins,
        ends_with_token=conf.consoleauth.enforce_session_timeout,
    )
    checks = database_parts.checks(databases) | parts.broker_checks(conf)
    return ProxyPart(conf, name, proxy, databases, transport, levels, checks)


def check(conf: cfg.ConfigOpts) -> None:
    """Raise StartRefused if [vnc]auth_schemes has a value other than none. The proxy supports no other scheme."""
    from kilonova.cmd.daemon.program import StartRefused

    if list(conf.vnc.auth_schemes) != ['none']:
        raise StartRefused(
            f'[vnc]auth_schemes is {", ".join(conf.vnc.auth_schemes)}: only none is supported. There is '
            'no TLS between the proxy and the guests'
        )


def pages(conf: cfg.ConfigOpts, kind: ProxyKind) -> str | None:
    """Return the directory of the proxy's web pages, or None if it does not exist."""
    web: str | None = conf.web or kind.web
    return web if web is not None and os.path.isdir(web) else None


def tls(conf: cfg.ConfigOpts) -> ssl.SSLContext | None:
    """Return the TLS context of the proxy, or None if ``[DEFAULT]ssl_only`` is off.

    Raises StartRefused if the certificate, the key or the list of ciphers can't be used.
    """
    from kilonova.cmd.daemon.program import StartRefused

    if not conf.ssl_only:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(conf.cert, conf.key)
        if conf.console.ssl_minimum_version != 'default':
            context.minimum_version = _VERSIONS[conf.console.ssl_minimum_version]
        if conf.console.ssl_ciphers:
            context.set_ciphers(conf.console.ssl_ciphers)
    except (OSError, ssl.SSLError) as error:
        raise StartRefused(
            f'[DEFAULT]ssl_only is set, but cert ({conf.cert}), key or [console]ssl_ciphers cannot be used: {error}'
        ) from error
    return context


class ProxyPart:
    """The proxy daemon, with one listening socket."""

    # Conductors delete expired tokens, so the proxy has no periodic tasks.
    timers = None

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        name: str,
        proxy: Proxy,
        databases: Databases,
        transport: RoutedTransport,
        levels: RpcVersionCaps,
        checks: Mapping[str, Any],
    ) -> None:
        self._conf, self._name, self._proxy, self._databases = conf, name, proxy, databases
        self._transport, self._levels, self.checks = transport, levels, checks
        self._tls, self._stopping = tls(conf), threading.Event()

    def start(self) -> None:
        """Wait for the databases, bind the socket and start to serve. Raises OSError if the port is in use."""
        from oslo_log import log as logging

        from kilonova.cmd.daemon import database_parts, sockets

        database_parts.await_all(self._databases, self._stopping)
        if self._stopping.is_set():
            return
        kind = KINDS[self._name]
        address = (self._conf[kind.section][kind.address], self._conf[kind.section][kind.port])
        self._proxy.start(sockets.listen(self._name, address), self._tls)
        log = logging.getLogger('kilonova.console.proxy')
        log.info('Listening on %s:%s', *address)
        if kind.web is not None and pages(self._conf, kind) is None:
            log.warning(
                'Directory %s of the pages does not exist: kilonova-%s serves consoles, but no pages',
                self._conf.web or kind.web,
                self._name,
            )

    def reload(self) -> None:
        """Make the daemon look up again which RPC versions the compute daemons understand."""
        self._levels.reset()

    def stop(self) -> None:
        """Close the consoles and stop the service."""
        self._stopping.set()
        self._proxy.stop(min(CLOSING, self._conf.manager_shutdown_timeout))
        self._transport.close()


if __name__ == '__main__':
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
