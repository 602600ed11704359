"""The HTTP server under our WSGI applications: whole requests only reach a worker, whole answers leave it.

    server = WsgiServer(listener, application, threads=100, log=LOG)
    server.start()
    server.stop(timeout=10.0)

A connection takes none of the ``threads`` while its request arrives or its answer leaves: one loop (epoll) reads and
writes for all of them, in a thread of its own under both runtimes. Each part has a deadline that counts from
its begin, so that a byte now and then gains nothing. Where there are more connections than may be open, or more bytes
are held than may be, the one that has kept us waiting the longest is closed. What the bytes mean is h11's to say; it
refuses what two programs could read in two ways.
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

# Linux's numbers: eventlet takes them away from the select module.
EPOLLIN, EPOLLOUT, EPOLLEXCLUSIVE, EPOLLONESHOT = 0x1, 0x4, 1 << 28, 1 << 30
# Open connections; a process whose limit of open files is lower keeps RESERVED for others. Of more a twentieth is
# closed at once, so that looking for them costs little.
CONNECTIONS, RESERVED, FEWEST, SHARE = 2560, 256, 64, 20
# Bytes of a request's line, of it and its headers, and of a body unless the server gets other bounds.
MOST_LINE, MOST_HEAD, MOST_BODY = 8192, 65536, 114688
# Bytes of all unfinished requests, and of all unread answers; what each may hold without being asked.
MOST_IN, MOST_OUT, SMALL = 8 << 20, 64 << 20, 16384
# After so many looks in a row that brought no whole request the next one waits for so many seconds: bytes that come one
# by one are then read together, and cost little.
FRUITLESS, PAUSE = 8, 0.005
# Bytes that are read at once, and connections that are looked at before other (green) threads come to their turn.
BLOCK, TURN = 65536, 128


class State(enum.Enum):
    """What a connection waits for: its next request, the rest of its head, the rest of its body, our answer, its
    reading of the answer, the end of what nobody reads any more."""

    IDLE = 'idle'
    HEAD = 'head'
    BODY = 'body'
    WORK = 'work'
    ANSWER = 'answer'
    REST = 'rest'


# For how many seconds; those of the body count from the request's begin.
SECONDS = {State.IDLE: 75.0, State.HEAD: 10.0, State.BODY: 30.0, State.WORK: float('inf'), State.ANSWER: 60.0,
           State.REST: 2.0}


class Gone(Exception):
    """The client has closed its side; there is no reader for an answer."""


class Refused(Exception):
    """No request: ``status`` is answered, and the connection closed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class Request:
    """A request with its body. ``length`` is what the client said, ``body`` is left out where that is too much."""

    head: h11.Request
    body: bytes
    length: int


class Channel:
    """One connection: what of its present request has come, and what of the answer hasn't left."""

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
        """What has been understood so far; none is made for a connection without a request."""
        return h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)

    def turn(self, state: State) -> None:
        """Wait for something else from now on."""
        self.state, self.since = state, time.monotonic()

    @property
    def deadline(self) -> float:
        """When the client must have done its part."""
        return self.since + SECONDS[self.state]

    @property
    def held(self) -> int:
        """Bytes that we keep for it."""
        return self.arrived + len(self.out)

    # -- requests ------------------------------------------------------------------------------------------------------
    def feed(self, data: bytes) -> Request | None:
        """More bytes (none: the client's end); the request once it is whole. Gone, Refused."""
        if not (data or self.arrived):
            raise Gone
        if self.state is State.IDLE:
            self.turn(State.HEAD)
        self.arrived += len(data)
        try:
            self.http.receive_data(data)
            return self._advance()
        except h11.RemoteProtocolError as error:
            if not data:
                # It has hung up in the middle.
                raise Gone from None
            raise Refused(error.error_status_hint, str(error)) from None

    def following(self) -> Request | None:
        """The request behind the one that is answered, if it has come already. Gone, Refused."""
        self.http.start_next_cycle()
        self._head, self._body = None, bytearray()
        waiting, _ = self.http.trailing_data
        self.arrived = len(waiting)
        self.turn(State.HEAD if waiting else State.IDLE)
        try:
            return self._advance() if waiting else None
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, str(error)) from None

    def _advance(self) -> Request | None:
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return None
            if isinstance(event, h11.ConnectionClosed):
                raise Gone
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
            raise Refused(414, 'The URL is too long')
        if sum(len(name) + len(value) for name, value in head.headers) > MOST_HEAD:
            raise Refused(431, 'The headers are too long')
        if b'content-length' in names and b'transfer-encoding' in names:
            raise Refused(400, 'Content-Length and Transfer-Encoding are not allowed together')
        claimed = next((int(value) for name, value in head.headers if name == b'content-length'), 0)
        if claimed > self._most_body:
            return self._cut(claimed)
        self.state = State.BODY
        if self.http.they_are_waiting_for_100_continue:
            # A few bytes on a connection that has nothing else to send: they always fit.
            self.sock.send(self.http.send(h11.InformationalResponse(status_code=100, headers=[])) or b'')
        return None

    def _cut(self, length: int) -> Request:
        """What is too long isn't read: the application refuses it by its length, and the connection ends."""
        if self._head is None:
            raise Refused(400, 'A body without a head')
        self.closing = True
        return Request(self._head, b'', length)

    # -- answers -------------------------------------------------------------------------------------------------------
    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Put a whole answer into ``out``."""
        given = [(name.encode('latin-1'), value.encode('latin-1')) for name, value in headers]
        names = {name.lower() for name, _ in given}
        if b'date' not in names:
            given.append((b'Date', formatdate(usegmt=True).encode()))
        if b'content-length' not in names and status not in (204, 304) and status >= 200:
            given.append((b'Content-Length', str(len(body)).encode()))
        if self.closing and b'connection' not in names:
            given.append((b'Connection', b'close'))
        without = status in (204, 304) or (self._head is not None and self._head.method == b'HEAD')
        # Headers and body are sent as one: two small packets would wait for each other's acknowledgement.
        self.served = True
        parts = [self.http.send(h11.Response(status_code=status, headers=given, reason=_phrase(status))),
                 b'' if without else self.http.send(h11.Data(data=body)), self.http.send(h11.EndOfMessage())]
        self.closing = self.closing or self.http.our_state is h11.MUST_CLOSE
        self._body = bytearray()
        self.arrived = 0
        self.out = memoryview(b''.join(part for part in parts if part))
        self.turn(State.ANSWER)

    def refuse(self, refused: Refused) -> None:
        """The same for what is no request."""
        self.closing = True
        text = f'{refused.reason}\n'.encode('latin-1', 'replace')
        with contextlib.suppress(h11.LocalProtocolError):
            self.answer(refused.status, [('Content-Type', 'text/plain')], text)

    def send(self) -> bool:
        """Send what the socket takes; True once all has left. OSError."""
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out):]
            except BlockingIOError:
                return False
        return True

    def rest(self) -> None:
        """End our side; what the client still sends is thrown away for a moment. Closed at once, it would lose the
        answer with its own bytes."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self.turn(State.REST)

    def hang_up(self) -> None:
        """End both directions; whoever waits for the socket learns of it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b''


def open_files(wanted: int) -> int:
    """How many this process may have open, at most ``wanted``; raised as far as it may."""
    soft, hard = (wanted if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(
        resource.RLIMIT_NOFILE))
    if soft < wanted and soft < hard:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return min(soft, wanted)


class WsgiServer:
    """A WSGI application on a listening socket. ``threads``: requests at once; ``most_body``: bytes of a body that are
    read, a longer one is given to the application without it."""

    def __init__(self, sock: socket.socket, app: Application, threads: int, log: logging.Logger,
                 most_body: int = MOST_BODY) -> None:
        self._sock, self._app, self._threads, self._log, self._most_body = sock, app, threads, log, most_body
        self._most = max(FEWEST, min(CONNECTIONS, open_files(CONNECTIONS + RESERVED) - RESERVED))
        self.channels: dict[int, Channel] = {}
        self._ending = False
        self._loop: _Loop | None = None

    def start(self) -> None:
        """Accept connections from now on."""
        self._loop = _Loop(self, self._sock, self._threads)
        self._loop.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Close the listening socket; requests under way get ``timeout`` seconds."""
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

    # -- connections ---------------------------------------------------------------------------------------------------
    def opened(self, sock: socket.socket, address: tuple[Any, ...] | str) -> Channel:
        """A new connection."""
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.channels) >= self._most:
            self.give_way()
        channel = self.channels[sock.fileno()] = Channel(sock, address, self._most_body)
        return channel

    def closed(self, channel: Channel) -> None:
        """A connection that ended."""
        if self.channels.pop(channel.sock.fileno(), None) is not None:
            channel.hang_up()
            channel.sock.close()

    def check_held(self, channel: Channel) -> None:
        """Make room where a connection holds much, and all of its kind together too much."""
        if channel.held <= SMALL:
            return
        answers = channel.state is State.ANSWER
        large = sorted((each for each in self._waiting() if each.held > SMALL and
                        (each.state is State.ANSWER) is answers), key=lambda each: each.since)
        too_much = sum(each.held for each in large) - (MOST_OUT if answers else MOST_IN)
        # The newest may be as large as it is.
        for oldest in large[:-1]:
            if too_much <= 0:
                break
            too_much -= oldest.held
            self._drop(oldest)

    def give_way(self) -> None:
        """Close the connections that have kept us waiting the longest; first those that never had a whole request."""
        waiting = self._waiting()
        for oldest in heapq.nsmallest(len(waiting) // SHARE + 1, waiting, key=lambda each: (each.served, each.since)):
            self._drop(oldest)

    def _waiting(self) -> list[Channel]:
        return [each for each in list(self.channels.values())
                if each.state is not State.WORK and each.since < float('inf')]

    def _drop(self, oldest: Channel) -> None:
        self._log.debug('Too many connections, or too much on them: %s gives way', oldest.address)
        oldest.hang_up()
        oldest.out, oldest.arrived, oldest.closing = memoryview(b''), 0, True
        oldest.since = float('inf')

    def late(self) -> list[Channel]:
        """Those that have kept us waiting too long."""
        now = time.monotonic()
        return [each for each in list(self.channels.values()) if each.deadline < now]

    # -- requests ------------------------------------------------------------------------------------------------------
    def work(self, channel: Channel, request: Request) -> None:
        """Ask the application; its answer is in the channel's ``out`` afterwards."""
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
            channel.refuse(Refused(500, 'The server failed'))

    def _environ(self, channel: Channel, request: Request) -> Environ:
        target = request.head.target.decode('latin-1')
        # A proxy's form names the host, too.
        path, _, query = (target if target.startswith('/') else _relative(target)).partition('?')
        host, port = self._sock_name
        environ: Environ = {
            'REQUEST_METHOD': request.head.method.decode('latin-1'), 'SCRIPT_NAME': '',
            'PATH_INFO': unquote(path, encoding='latin-1'), 'QUERY_STRING': query, 'SERVER_NAME': host,
            'SERVER_PORT': str(port), 'SERVER_PROTOCOL': f'HTTP/{request.head.http_version.decode()}',
            'REMOTE_ADDR': channel.address[0], 'REMOTE_PORT': str(channel.address[1]), 'wsgi.version': (1, 0),
            'wsgi.url_scheme': 'http', 'wsgi.input': io.BytesIO(request.body), 'wsgi.errors': sys.stderr,
            'wsgi.multithread': True, 'wsgi.multiprocess': True, 'wsgi.run_once': False, 'wsgi.input_terminated': True}
        has_body = False
        for raw, value in request.head.headers:
            name = raw.decode('latin-1')
            has_body = has_body or name in ('content-length', 'transfer-encoding')
            # A name with '_' would be taken for the one with '-', which a proxy in front of us may have checked.
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


class _Loop:
    """One thread that reads and writes, and workers that each have one request."""

    def __init__(self, server: WsgiServer, sock: socket.socket, threads: int) -> None:
        self._server, self._sock, self._threads = server, sock, threads
        self._whole: queue.Queue[tuple[Channel, Request] | None] = queue.Queue()
        self._epoll = concurrency.Epoll()
        self._ear, self._bell = socket.socketpair()
        self._done = False
        self._listens = True
        self._fruitless = 0

    def start(self) -> None:
        # Another process may take the connection that epoll told of: then accept() must not wait for the next one.
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
            # Without a connection nothing can be late: the thread sleeps until one comes, or until end() rings.
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
                # No descriptor is left; epoll tells again.
                self._server.give_way()
                time.sleep(0.01)
                return
            sock.setblocking(False)
            self._server.opened(concurrency.plain(sock), address)
            self._epoll.register(sock.fileno(), EPOLLIN | EPOLLONESHOT)

    def _wait(self, channel: Channel, what: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._epoll.modify(channel.sock.fileno(), what | EPOLLONESHOT)

    def _serve(self, channel: Channel) -> None:
        """The socket can be read, or written while an answer leaves. The loop's thread alone comes here."""
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
        except Refused as refused:
            channel.refuse(refused)
            self._send(channel)
        except (Gone, OSError):
            self._server.closed(channel)

    def _hand_over(self, channel: Channel, request: Request) -> None:
        channel.turn(State.WORK)
        self._fruitless = 0
        self._whole.put((channel, request))

    def _work(self) -> None:
        while (item := self._whole.get()) is not None:
            self._server.work(*item)
            self._server.check_held(item[0])
            self._send(item[0])

    def _send(self, channel: Channel) -> None:
        """Send what can be sent, by whoever made it; the rest is the loop's."""
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
        except Refused as refused:
            channel.refuse(refused)
            self._send(channel)
        except (Gone, OSError):
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        """Closed by the loop: a number that is free at once may be another connection's before it was removed."""
        channel.hang_up()
        channel.turn(State.REST)
        self._wait(channel, EPOLLIN)
