"""``Proxy``, a console proxy: it accepts websockets, checks their tokens, and connects them with consoles of guests.

    proxy = Proxy('novncproxy', {'novnc'}, authority, Pages('/usr/share/novnc'), ProxyLimits())
    proxy.start(listener)           # a listening socket; ``tls``: an SSLContext
    proxy.stop()

One asyncio loop in a thread of its own serves all connections, with the library websockets. Databases and hosts are
queried in other threads. For each connection the proxy first connects to the port of the guest's console. Then it asks
the host whether this port still belongs to the server, and then it marks the token as used. If it asked before it
connected, another guest could get the port in between.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http
import logging as stdlib_logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

from oslo_log import log as logging
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from kilonova import concurrency
from kilonova.console.authority import Access, Authority
from kilonova.console.pages import Pages
from kilonova.errors import KilonovaError

LOG = logging.getLogger(__name__)
T = TypeVar('T')

# A disabled logger for the library websockets, which would otherwise log requests with their secret tokens.
_SILENT = stdlib_logging.Logger('websockets', stdlib_logging.CRITICAL + 1)  # noqa: LOG001 - on purpose

# Maximum length of a token, which is a uuid.
MOST_TOKEN = 64
# Maximum number of bytes that are read from a guest's console at once.
BLOCK = 65536
BINARY = Subprotocol('binary')
# {scheme of a console's URL: schemes of the web pages that may open such a console}
SCHEMES = {'http': {'http'}, 'https': {'https'}, 'ws': {'http', 'https'}, 'wss': {'https'}}


@dataclass(frozen=True)
class ProxyLimits:
    """The limits of a proxy. All times are in seconds.

    Attributes:
        connections: Maximum connections of the proxy.
        consoles: Maximum open consoles of one server.
        message: Maximum bytes of one websocket message from a user.
        handshake: Maximum time from the connection of a user until the HTTP request has arrived.
        opening: Maximum time from the handshake until the console is open.
        connect: Maximum time for connecting to the port of the guest's console.
        answer: Interval of the pings to a user, and maximum time for the user's reply to a ping.
        threads: Number of threads for queries to databases and hosts.
    """

    connections: int = 1000
    consoles: int = 16
    message: int = 1 << 20
    handshake: float = 10.0
    opening: float = 60.0
    connect: float = 10.0
    answer: float = 30.0
    threads: int = 16


class ConsoleRefused(Exception):
    """The connection must not open a console. The error's text is the reason for the log, and contains no token."""


def token_of(target: str, cookies: Iterable[str] = ()) -> str | None:
    """Return the token from the query of a URL or from a cookie, or None if the request has no token.

    ``target`` is the path and query of the request. ``cookies`` are the values of its Cookie headers, which are used
    only if the query has no token. A token that is longer than ``MOST_TOKEN`` is ignored.
    """
    found = parse_qs(urlsplit(target).query).get('token')
    for text in cookies if not found else ():
        try:
            jar = SimpleCookie(text)
        except CookieError:
            continue
        if 'token' in jar:
            found = [jar['token'].value]
    return found[-1] if found and 0 < len(found[-1]) <= MOST_TOKEN else None


def is_foreign(origin: str | None, host: str | None, base_url: str, allowed: Collection[str]) -> str | None:
    """Return the reason why a web page of this origin must not open the console, or None if the page may open it.

    ``origin`` and ``host`` are the headers of the request, ``base_url`` is the URL of the console, and ``allowed`` are
    host names of further allowed origins. A request without an origin is allowed, because only browsers send one.
    """
    if origin is None:
        return None
    page = urlsplit(origin)
    own = urlsplit(f'//{host}').hostname if host else None
    if not page.hostname or page.hostname not in {own, *allowed}:
        return f'its origin {origin[:255]!r} is neither this host nor in [console]allowed_origins'
    scheme = urlsplit(base_url).scheme
    if page.scheme not in SCHEMES.get(scheme, ()):
        return f'its origin has the scheme {page.scheme[:16]!r}, but the address of the console has {scheme}'
    return None


class _Connection(ServerConnection):
    """A websocket connection. It is closed at once if the proxy already has the maximum number of connections."""

    most: ClassVar[int]
    all: ClassVar[set[ServerConnection]]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.all.add(self)
        if len(self.all) > self.most:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.discard(self)
        super().connection_lost(exc)


class Proxy:
    """A console proxy.

    ``name`` is the name of the daemon without 'kilonova-', and ``types`` are the console types that it serves.
    ``allowed_origins`` are the host names of further web pages that may open consoles. If ``ends_with_token`` is True,
    consoles are closed when their tokens expire.
    """

    def __init__(
        self,
        name: str,
        types: Collection[str],
        authority: Authority,
        pages: Pages,
        limits: ProxyLimits,
        allowed_origins: Collection[str] = (),
        *,
        ends_with_token: bool = False,
    ) -> None:
        self._name, self._types, self._authority, self._pages = name, types, authority, pages
        self._limits, self._allowed, self._ends_with_token = limits, frozenset(allowed_origins), ends_with_token
        self._consoles: Counter[str] = Counter()
        self._threads = concurrency.pool(limits.threads, 'console')
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    # -- start and stop of the proxy ---------------------------------------------------------------------------------
    def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Start the proxy on a listening socket, and return when it accepts connections."""
        begun: concurrent.futures.Future[None] = concurrent.futures.Future()
        threading.Thread(target=self._run, args=(listener, tls, begun), name=self._name, daemon=True).start()
        begun.result()

    def stop(self, timeout: float = 10.0) -> None:
        """Close all consoles and stop the proxy, waiting at most ``timeout`` seconds."""
        if self._loop is not None and self._server is not None:
            self._loop.call_soon_threadsafe(self._server.close)
            self._ended.result(timeout)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, listener: socket.socket, tls: ssl.SSLContext | None, begun: concurrent.futures.Future[None]) -> None:
        try:
            asyncio.run(self._main(listener, tls, begun))
        except Exception as error:
            if begun.done():
                LOG.exception('%s stopped serving because of an unexpected error', f'kilonova-{self._name}')
            else:
                begun.set_exception(error)
        finally:
            self._ended.set_result(None)

    async def _main(
        self, listener: socket.socket, tls: ssl.SSLContext | None, begun: concurrent.futures.Future[None]
    ) -> None:
        limits = self._limits
        bounded = type('_Connection', (_Connection,), {'most': limits.connections, 'all': set()})
        self._loop = asyncio.get_running_loop()
        async with serve(
            self._serve,
            sock=listener,
            ssl=tls,
            create_connection=bounded,
            process_request=self._answer,
            select_subprotocol=_subprotocol,
            compression=None,
            max_size=limits.message,
            logger=_SILENT,
            server_header=None,
            open_timeout=limits.handshake,
            close_timeout=limits.handshake,
            ping_interval=limits.answer,
            ping_timeout=limits.answer,
        ) as server:
            self._server = server
            begun.set_result(None)
            await server.wait_closed()

    # -- responses with web pages ------------------------------------------------------------------------------------
    async def _answer(self, _connection: ServerConnection, request: Request) -> Response | None:
        """Return the response with the requested page, or None if the request opens a websocket."""
        if request.headers.get('Upgrade', '').lower() == 'websocket':
            return None
        page = await self._ask(self._pages.get, request.path)
        status = http.HTTPStatus.NOT_FOUND if page is None else http.HTTPStatus.OK
        body = b'' if page is None else page.body
        # The page's URL contains a token, so Referrer-Policy forbids browsers to send the URL to other sites.
        headers = Headers(
            {
                'Content-Length': str(len(body)),
                'Connection': 'close',
                'Cache-Control': 'no-cache',
                'X-Content-Type-Options': 'nosniff',
                'Referrer-Policy': 'no-referrer',
            }
        )
        if page is not None:
            headers['Content-Type'] = page.type
        return Response(status.value, status.phrase, headers, body)

    # -- connections to consoles -------------------------------------------------------------------------------------
    async def _serve(self, connection: ServerConnection) -> None:
        """Serve one websocket from its handshake to its end, and log all errors."""
        peer = str((connection.remote_address or ('?',))[0])
        try:
            async with asyncio.timeout(self._limits.opening):
                access, reader, writer = await self._open(connection)
        except (ConsoleRefused, KilonovaError, TimeoutError) as error:
            LOG.warning('A connection from %s is refused: %s', peer, str(error) or 'it took too long')
            # Close the connection without a close frame, whose text clients would show as data of the guest.
            connection.transport.close()
            return
        except Exception:
            LOG.exception('A connection from %s could not be served', peer)
            connection.transport.close()
            return
        LOG.info('Console %s of a server opened from %s', access.console_type, peer, instance_uuid=access.instance_uuid)
        try:
            await self._carry(connection, reader, writer, access.seconds if self._ends_with_token else None)
        finally:
            self._consoles[access.instance_uuid] -= 1
            writer.close()
        LOG.info('Console %s of a server closed', access.console_type, instance_uuid=access.instance_uuid)

    async def _open(self, connection: ServerConnection) -> tuple[Access, asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the console for a connection, and count the console for its server.

        Returns the console's access with the reader and the writer of the connection to the guest. Raises
        ConsoleRefused if the connection must not open a console.
        """
        request = connection.request
        assert request is not None
        # 1. Find the console of the token, and check that this proxy and this page may open it.
        token = token_of(request.path, request.headers.get_all('Cookie'))
        if token is None:
            raise ConsoleRefused('it has no token')
        access = await self._ask(self._authority.find, token)
        if access is None:
            raise ConsoleRefused('the token is unknown, expired or used')
        if access.console_type not in self._types:
            raise ConsoleRefused(
                f'the token is for a console {access.console_type}, which kilonova-{self._name} does not serve'
            )
        if why := is_foreign(
            request.headers.get('Origin'), request.headers.get('Host'), access.base_url, self._allowed
        ):
            raise ConsoleRefused(why)
        server = access.instance_uuid
        if self._consoles[server] >= self._limits.consoles:
            raise ConsoleRefused(f'server {server} has {self._limits.consoles} consoles open')
        # 2. Connect to the guest.
        self._consoles[server] += 1
        writer = None
        try:
            reader, writer = await self._connect(access)
            # 3. Check that the port still belongs to the server, and mark the token as used.
            if not await self._ask(self._authority.is_there, access):
                raise ConsoleRefused(f'the console of server {server} is not at {access.host}:{access.port} any more')
            if not await self._ask(self._authority.take, access):
                raise ConsoleRefused('the token was used by another connection in the meantime')
        except BaseException:
            self._consoles[server] -= 1
            if writer is not None:
                writer.close()
            raise
        return access, reader, writer

    async def _connect(self, access: Access) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._limits.connect):
                return await asyncio.open_connection(access.host, access.port, limit=BLOCK)
        except (OSError, TimeoutError) as error:
            raise ConsoleRefused(
                f'the console of server {access.instance_uuid} at {access.host}:{access.port} does not '
                f'answer: {str(error) or "no connection in time"}'
            ) from error

    async def _carry(
        self,
        connection: ServerConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seconds: float | None,
    ) -> None:
        """Forward data in the two directions until the user or the guest closes the connection.

        If ``seconds`` is not None, the connection is closed after that time at the latest.
        """
        ways = [asyncio.ensure_future(way) for way in (_to_guest(connection, writer), _to_user(reader, connection))]
        try:
            done, _ = await asyncio.wait(ways, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                error = way.exception()
                if error is not None and not isinstance(error, ConnectionClosed | OSError):
                    LOG.error('A console ended with an error: %s', error)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        await connection.close()

    async def _ask(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


async def _to_guest(connection: ServerConnection, writer: asyncio.StreamWriter) -> None:
    async for message in connection:
        writer.write(message.encode() if isinstance(message, str) else message)
        await writer.drain()


async def _to_user(reader: asyncio.StreamReader, connection: ServerConnection) -> None:
    while data := await reader.read(BLOCK):
        await connection.send(data)


def _subprotocol(_connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Return the subprotocol 'binary' if the client offers it, because older clients require it, else None."""
    return BINARY if BINARY in offered else None
