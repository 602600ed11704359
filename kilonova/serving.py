"""The HTTP server for WSGI applications. Workers receive complete requests only, and return complete responses.

    server = WsgiServer(listener, application, threads=100, log=LOG)
    server.start()
    server.stop(timeout=10.0)

A connection uses none of the ``threads`` while its request arrives or its response is sent. One epoll loop in a thread
of its own reads and writes for all connections, under both concurrency backends. Each phase of a connection has a
deadline that counts from the beginning of the phase, so a client gains nothing by sending a byte now and then. If there
are too many connections, or too many bytes in memory, the server closes the connections that have waited for their
client the longest. h11 parses the bytes. It refuses ambiguous requests, which a proxy could understand differently.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import heapq
import io
import logging
import queue
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

import h11

from kilonova import concurrency

Environ = dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]

# The values of Linux's epoll flags, because eventlet removes these names from the select module.
EPOLLIN, EPOLLOUT, EPOLLEXCLUSIVE, EPOLLONESHOT = 0x1, 0x4, 1 << 28, 1 << 30
# Maximum number of open connections. It is lower if the process may not open so many files.
CONNECTIONS = 2560
# Number of open files that the process keeps for other purposes than connections.
RESERVED = 256
# Minimum of the connection limit, used if the process may open only few files (RLIMIT_NOFILE).
FEWEST = 64
# If there are too many connections, the server closes 1/SHARE of them together, so that it chooses less often.
SHARE = 20
# Maximum bytes of a request's target, of its headers, and of its body (unless the server sets another limit).
MOST_LINE, MOST_HEAD, MOST_BODY = 8192, 65536, 114688
# Maximum number of bytes of all unfinished requests together, without those of at most SMALL bytes.
MOST_IN = 8 << 20
# Maximum number of bytes of all unsent responses together, without those of at most SMALL bytes.
MOST_OUT = 64 << 20
# A request or response of at most this number of bytes is small, and does not count for MOST_IN and MOST_OUT.
SMALL = 16384
# After this number of iterations of the loop without a complete request, the loop begins to pause.
FRUITLESS = 8
# The loop pauses for PAUSE seconds after FRUITLESS iterations without a complete request.
# While the loop pauses, further bytes from slow clients arrive, so that fewer reads are needed.
PAUSE = 0.005
# Maximum number of bytes that one call reads from a socket.
BLOCK = 65536
# Maximum number of connections that the loop handles before other (green) threads may run.
TURN = 128


class State(enum.Enum):
    """The phase of a connection.

    - IDLE: the server waits for the next request.
    - HEAD: the server waits for the rest of the request's headers.
    - BODY: the server waits for the rest of the request's body.
    - WORK: the application handles the request.
    - ANSWER: the server sends the response.
    - REST: before the server closes the connection, it discards what the client still sends.
    """

    IDLE = 'idle'
    HEAD = 'head'
    BODY = 'body'
    WORK = 'work'
    ANSWER = 'answer'
    REST = 'rest'


# Maximum duration of each phase in seconds. The time for BODY counts from the beginning of the request.
SECONDS = {
    State.IDLE: 75.0,
    State.HEAD: 10.0,
    State.BODY: 30.0,
    State.WORK: float('inf'),
    State.ANSWER: 60.0,
    State.REST: 2.0,
}


class ClientGone(Exception):
    """The client has closed the connection. No response can be sent to the client any more."""


class BadRequest(Exception):
    """The bytes are no valid request. The response has this ``status``, and the connection is closed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class Request:
    """A complete request. ``length`` is the length of the body. ``body`` is empty if the length is over the limit."""

    head: h11.Request
    body: bytes
    length: int


class ClientConnection:
    """One connection, with the received part of its current request and the unsent part of the response."""

    def __init__(self, sock: socket.socket, address: tuple[Any, ...] | str, most_body: int) -> None:
        self.sock, self.address, self._most_body = sock, address, most_body
        self._head: h11.Request | None = None
        self._body = bytearray()
        self.out = memoryview(b'')
        self.closing = self.served = False
        self.arrived = 0
        self.state, self.since = State.HEAD, time.monotonic()

    @functools.cached_property
    def http(self) -> h11.Connection:
        """The parser of this connection. It is created with the first bytes of a request."""
        return h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)

    def turn(self, state: State) -> None:
        """Change to another phase, and restart the clock for the deadline of the phase."""
        self.state, self.since = state, time.monotonic()

    @property
    def deadline(self) -> float:
        """The monotonic time at which the current phase must be over."""
        return self.since + SECONDS[self.state]

    @property
    def held(self) -> int:
        """The number of bytes that this connection holds in memory."""
        return self.arrived + len(self.out)

    # -- parsing of received bytes -------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> Request | None:
        """Parse received bytes and return the request if it is complete now, else None.

        ``data`` is empty if the client has closed its end of the connection.

        Raises:
            ClientGone: The client has closed the connection before a request was complete.
            BadRequest: The bytes are no valid request.
        """
        if not (data or self.arrived):
            raise ClientGone
        if self.state is State.IDLE:
            self.turn(State.HEAD)
        self.arrived += len(data)
        try:
            self.http.receive_data(data)
            return self._advance()
        except h11.RemoteProtocolError as error:
            if not data:
                # The client has closed the connection before it sent a complete request.
                raise ClientGone from None
            raise BadRequest(error.error_status_hint, str(error)) from None

    def following(self) -> Request | None:
        """Prepare for the next request, and return it if it has been received already, else None.

        Raises ClientGone if the client has closed the connection, and BadRequest if the bytes are no valid request.
        """
        self.http.start_next_cycle()
        self._head, self._body = None, bytearray()
        waiting, _ = self.http.trailing_data
        self.arrived = len(waiting)
        self.turn(State.HEAD if waiting else State.IDLE)
        try:
            return self._advance() if waiting else None
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, str(error)) from None

    def _advance(self) -> Request | None:
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return None
            if isinstance(event, h11.ConnectionClosed):
                raise ClientGone
            if isinstance(event, h11.Request):
                if (whole := self._begin(event)) is not None:
                    return whole
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._most_body:
                    return self._cut(len(self._body))
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                return Request(self._head, bytes(self._body), len(self._body))

    def _begin(self, head: h11.Request) -> Request | None:
        self._head = head
        names = [name for name, _ in head.headers]
        if len(head.target) > MOST_LINE:
            raise BadRequest(414, 'The URL is too long')
        if sum(len(name) + len(value) for name, value in head.headers) > MOST_HEAD:
            raise BadRequest(431, 'The headers are too long')
        if b'content-length' in names and b'transfer-encoding' in names:
            raise BadRequest(400, 'Content-Length and Transfer-Encoding are not allowed together')
        claimed = next((int(value) for name, value in head.headers if name == b'content-length'), 0)
        if claimed > self._most_body:
            return self._cut(claimed)
        self.state = State.BODY
        if self.http.they_are_waiting_for_100_continue:
            # Sending "100 Continue" never blocks: no response is being sent, so the send buffer of the socket is empty.
            self.sock.send(self.http.send(h11.InformationalResponse(status_code=100, headers=[])) or b'')
        return None

    def _cut(self, length: int) -> Request:
        """Return a request without its body, because the body is too long. ``length`` is the length of the body.

        The body is not read. The application refuses the request by its length, and the connection is closed
        afterwards.
        """
        if self._head is None:
            raise BadRequest(400, 'The request has a body, but no headers')
        self.closing = True
        return Request(self._head, b'', length)

    # -- sending of responses ------------------------------------------------------------------------------------------
    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Put a complete response into the output buffer ``out``."""
        given = [(name.encode('latin-1'), value.encode('latin-1')) for name, value in headers]
        names = {name.lower() for name, _ in given}
        if b'date' not in names:
            given.append((b'Date', formatdate(usegmt=True).encode()))
        if b'content-length' not in names and status not in (204, 304) and status >= 200:
            given.append((b'Content-Length', str(len(body)).encode()))
        if self.closing and b'connection' not in names:
            given.append((b'Connection', b'close'))
        without = status in (204, 304) or (self._head is not None and self._head.method == b'HEAD')
        # Send headers and body together, because TCP can delay a second small packet until the first is acknowledged.
        self.served = True
        parts = [
            self.http.send(h11.Response(status_code=status, headers=given, reason=_phrase(status))),
            b'' if without else self.http.send(h11.Data(data=body)),
            self.http.send(h11.EndOfMessage()),
        ]
        self.closing = self.closing or self.http.our_state is h11.MUST_CLOSE
        self._body = bytearray()
        self.arrived = 0
        self.out = memoryview(b''.join(part for part in parts if part))
        self.turn(State.ANSWER)

    def refuse(self, refused: BadRequest) -> None:
        """Put the response to an invalid request into the output buffer ``out``.

        The connection is closed after the response.
        """
        self.closing = True
        text = f'{refused.reason}\n'.encode('latin-1', 'replace')
        with contextlib.suppress(h11.LocalProtocolError):
            self.answer(refused.status, [('Content-Type', 'text/plain')], text)

    def send(self) -> bool:
        """Send as much of the output buffer ``out`` as the socket accepts.

        Return True if everything has been sent. Raises OSError if the connection is broken.
        """
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out) :]
            except BlockingIOError:
                return False
        return True

    def rest(self) -> None:
        """Close this end of the connection, then read and discard the bytes that the client still sends for a moment.

        If the socket were closed at once, the client could lose the response.
        """
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self.turn(State.REST)

    def hang_up(self) -> None:
        """Shut down the socket for reading and writing. A thread that waits for the socket then wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b''


def open_files(wanted: int) -> int:
    """Raise this process's limit of open files as far as possible, up to ``wanted``, and return the new limit.

    If the limit is already higher than ``wanted``, return ``wanted``.
    """
    soft, hard = (
        wanted if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < wanted and soft < hard:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return min(soft, wanted)


class WsgiServer:
    """A WSGI application on a listening socket.

    ``threads`` is the number of requests that are handled at the same time. ``most_body`` is the maximum length of a
    body in bytes. A request with a longer body is passed to the application without the body.
    """

    def __init__(
        self, sock: socket.socket, app: Application, threads: int, log: logging.Logger, most_body: int = MOST_BODY
    ) -> None:
        self._sock, self._app, self._threads, self._log, self._most_body = sock, app, threads, log, most_body
        self._most = max(FEWEST, min(CONNECTIONS, open_files(CONNECTIONS + RESERVED) - RESERVED))
        self.channels: dict[int, ClientConnection] = {}
        self._ending = False
        self._loop: _ServerLoop | None = None

    def start(self) -> None:
        """Start the loop and the workers, and accept connections."""
        self._loop = _ServerLoop(self, self._sock, self._threads)
        self._loop.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Close the listening socket, and give running requests ``timeout`` seconds to complete."""
        if self._loop is None:
            self._sock.close()
            return
        self._ending = True
        self._loop.refuse_more()
        deadline = time.monotonic() + timeout
        while True:
            busy = False
            for channel in list(self.channels.values()):
                if channel.state in (State.WORK, State.ANSWER) and time.monotonic() < deadline:
                    busy = True
                else:
                    channel.hang_up()
            if not busy:
                break
            time.sleep(0.01)
        self._loop.end()

    # -- the server's open connections ---------------------------------------------------------------------------------
    def opened(self, sock: socket.socket, address: tuple[Any, ...] | str) -> ClientConnection:
        """Register a new connection and return its ClientConnection.

        If there are too many connections, some of those that wait for their client are closed.
        """
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.channels) >= self._most:
            self.give_way()
        channel = self.channels[sock.fileno()] = ClientConnection(sock, address, self._most_body)
        return channel

    def closed(self, channel: ClientConnection) -> None:
        """Close a connection and forget it."""
        if self.channels.pop(channel.sock.fileno(), None) is not None:
            channel.hang_up()
            channel.sock.close()

    def check_held(self, channel: ClientConnection) -> None:
        """Limit the memory that large connections use together: close those that have waited the longest.

        A connection that holds more than SMALL bytes is large. Nothing is done if ``channel`` is not large. The limit
        is MOST_IN for connections with an unfinished request, and MOST_OUT for connections with an unsent response.
        """
        if channel.held <= SMALL:
            return
        answers = channel.state is State.ANSWER
        large = sorted(
            (each for each in self._waiting() if each.held > SMALL and (each.state is State.ANSWER) is answers),
            key=lambda each: each.since,
        )
        too_much = sum(each.held for each in large) - (MOST_OUT if answers else MOST_IN)
        # Never close the newest large connection, so that at least one large request can complete.
        for oldest in large[:-1]:
            if too_much <= 0:
                break
            too_much -= oldest.held
            self._drop(oldest)

    def give_way(self) -> None:
        """Close some of the connections whose clients have been idle the longest.

        Connections that have never had a complete request are closed first.
        """
        waiting = self._waiting()
        for oldest in heapq.nsmallest(len(waiting) // SHARE + 1, waiting, key=lambda each: (each.served, each.since)):
            self._drop(oldest)

    def _waiting(self) -> list[ClientConnection]:
        return [
            each for each in list(self.channels.values()) if each.state is not State.WORK and each.since < float('inf')
        ]

    def _drop(self, oldest: ClientConnection) -> None:
        self._log.debug('Too many connections or too much buffered data: closing the connection of %s', oldest.address)
        oldest.hang_up()
        oldest.out, oldest.arrived, oldest.closing = memoryview(b''), 0, True
        oldest.since = float('inf')

    def late(self) -> list[ClientConnection]:
        """Return the connections whose current phase has lasted longer than its maximum."""
        now = time.monotonic()
        return [each for each in list(self.channels.values()) if each.deadline < now]

    # -- calls of the application --------------------------------------------------------------------------------------
    def work(self, channel: ClientConnection, request: Request) -> None:
        """Call the application for a request, and put its response into the output buffer of the connection.

        An exception of the application is logged, and the response gets the status 500.
        """
        told: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Callable[..., Any]:
            told[:] = [int(status.split(' ', 1)[0]), headers]
            return body.append

        body: list[bytes] = []
        channel.closing = channel.closing or self._ending
        try:
            found = self._app(self._environ(channel, request), start_response)
            try:
                body.extend(found)
            finally:
                if hasattr(found, 'close'):
                    found.close()
            channel.answer(told[0], told[1], b''.join(body))
        except Exception:  # noqa: BLE001 - whatever the application raises is its answer
            self._log.exception('A request to %s failed', request.head.target.decode('latin-1'))
            channel.refuse(BadRequest(500, 'The server failed'))

    def _environ(self, channel: ClientConnection, request: Request) -> Environ:
        target = request.head.target.decode('latin-1')
        # A request may name a whole URL, as requests to proxies do. In this case, remove the scheme and the host.
        path, _, query = (target if target.startswith('/') else _relative(target)).partition('?')
        host, port = self._sock_name
        environ: Environ = {
            'REQUEST_METHOD': request.head.method.decode('latin-1'),
            'SCRIPT_NAME': '',
            'PATH_INFO': unquote(path, encoding='latin-1'),
            'QUERY_STRING': query,
            'SERVER_NAME': host,
            'SERVER_PORT': str(port),
            'SERVER_PROTOCOL': f'HTTP/{request.head.http_version.decode()}',
            'REMOTE_ADDR': channel.address[0],
            'REMOTE_PORT': str(channel.address[1]),
            'wsgi.version': (1, 0),
            'wsgi.url_scheme': 'http',
            'wsgi.input': io.BytesIO(request.body),
            'wsgi.errors': sys.stderr,
            'wsgi.multithread': True,
            'wsgi.multiprocess': True,
            'wsgi.run_once': False,
            'wsgi.input_terminated': True,
        }
        has_body = False
        for raw, value in request.head.headers:
            name = raw.decode('latin-1')
            has_body = has_body or name in ('content-length', 'transfer-encoding')
            # Skip names with '_': a client could use such a name to forge a header with '-' that only a proxy may set.
            if '_' in name or name in ('content-length', 'transfer-encoding'):
                continue
            key = name.replace('-', '_').upper()
            key = key if key == 'CONTENT_TYPE' else f'HTTP_{key}'
            text = value.decode('latin-1')
            environ[key] = f'{environ[key]},{text}' if key in environ else text
        if has_body:
            environ['CONTENT_LENGTH'] = str(request.length)
        return environ

    @property
    def _sock_name(self) -> tuple[str, int]:
        try:
            found: tuple[str, int] = self._sock.getsockname()[:2]
            return found
        except OSError:
            return '', 0


def _relative(target: str) -> str:
    parts = urlsplit(target)
    return f'{parts.path or "/"}?{parts.query}' if parts.query else parts.path or '/'


class _ServerLoop:
    """The thread that reads and writes all connections, and the worker threads, each handling one request at a time."""

    def __init__(self, server: WsgiServer, sock: socket.socket, threads: int) -> None:
        self._server, self._sock, self._threads = server, sock, threads
        self._whole: queue.Queue[tuple[ClientConnection, Request] | None] = queue.Queue()
        self._epoll = concurrency.Epoll()
        self._ear, self._bell = socket.socketpair()
        self._done = False
        self._listens = True
        self._fruitless = 0

    def start(self) -> None:
        # Several processes listen on this socket. accept() must not block if another process has taken the connection.
        self._sock.setblocking(False)
        self._ear.setblocking(False)
        self._epoll.register(self._sock.fileno(), EPOLLIN | EPOLLEXCLUSIVE)
        self._epoll.register(self._ear.fileno(), EPOLLIN)
        for number in range(self._threads):
            concurrency.spawn(self._work, name=f'wsgi-{number}')
        concurrency.spawn(self._run, name='wsgi')

    def refuse_more(self) -> None:
        self._listens = False
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(self._sock.fileno())
        self._sock.close()

    def end(self) -> None:
        self._done = True
        for _ in range(self._threads):
            self._whole.put(None)
        with contextlib.suppress(OSError):
            self._bell.send(b'x')

    def _run(self) -> None:
        listener, looked = self._sock.fileno(), time.monotonic()
        while not self._done:
            self._fruitless += 1
            if self._fruitless > FRUITLESS:
                time.sleep(PAUSE)
            # Without connections there are no deadlines to check, so the thread may sleep without a limit.
            found = self._epoll.wait(1.0 if self._server.channels else None, TURN)
            if not found:
                self._fruitless = 0
            for number in found:
                if number == listener and self._listens:
                    self._accept()
                elif (channel := self._server.channels.get(number)) is not None:
                    self._serve(channel)
            if time.monotonic() - looked >= 1.0:
                looked = time.monotonic()
                for channel in self._server.late():
                    self._server.closed(channel)
        for channel in list(self._server.channels.values()):
            self._server.closed(channel)
        self._epoll.close()
        self._ear.close()
        self._bell.close()

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:
                # The process has no free file descriptor for the new connection, so close some idle connections.
                # The new connection is accepted later, because it stays in the backlog and epoll reports it again.
                self._server.give_way()
                time.sleep(0.01)
                return
            sock.setblocking(False)
            self._server.opened(concurrency.plain(sock), address)
            self._epoll.register(sock.fileno(), EPOLLIN | EPOLLONESHOT)

    def _wait(self, channel: ClientConnection, what: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._epoll.modify(channel.sock.fileno(), what | EPOLLONESHOT)

    def _serve(self, channel: ClientConnection) -> None:
        """Read from a connection's socket, or send its response. Only the loop's thread calls this."""
        try:
            if channel.state is State.ANSWER:
                self._send(channel)
                return
            data = channel.sock.recv(BLOCK)
            if channel.state is State.REST and data:
                self._wait(channel, EPOLLIN)
                return
            request = channel.feed(data) if channel.state is not State.REST else None
            if request is not None:
                self._hand_over(channel, request)
            elif not data:
                self._server.closed(channel)
            else:
                self._server.check_held(channel)
                self._wait(channel, EPOLLIN)
        except BlockingIOError:
            self._wait(channel, EPOLLIN)
        except BadRequest as refused:
            channel.refuse(refused)
            self._send(channel)
        except (ClientGone, OSError):
            self._server.closed(channel)

    def _hand_over(self, channel: ClientConnection, request: Request) -> None:
        channel.turn(State.WORK)
        self._fruitless = 0
        self._whole.put((channel, request))

    def _work(self) -> None:
        while (item := self._whole.get()) is not None:
            self._server.work(*item)
            self._server.check_held(item[0])
            self._send(item[0])

    def _send(self, channel: ClientConnection) -> None:
        """Send as much of the response as the socket accepts now. The loop's thread sends the rest later."""
        try:
            if not channel.send():
                self._wait(channel, EPOLLOUT)
            elif channel.closing:
                channel.rest()
                self._wait(channel, EPOLLIN)
            elif (request := channel.following()) is not None:
                self._hand_over(channel, request)
            else:
                self._wait(channel, EPOLLIN)
        except BadRequest as refused:
            channel.refuse(refused)
            self._send(channel)
        except (ClientGone, OSError):
            self._end(channel)

    def _end(self, channel: ClientConnection) -> None:
        """Let the loop's thread close the connection.

        Another thread must not close the socket: a new connection could get the same descriptor before the loop has
        removed the old connection.
        """
        channel.hang_up()
        channel.turn(State.REST)
        self._wait(channel, EPOLLIN)
