"""A server and its clients in one process, for test_serving: ``python -m tests.unit.serving_site eventlet`` prints what
came of each of them as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from kilonova import concurrency, serving

SLOTS, BOUND = 2, 1000
LINES: list[str] = []


class Lines(logging.Handler):
    """What the server logs above DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        LINES.append(record.getMessage())


class App:
    """Tells what it was asked; refuses bodies that are too long as the API's middleware does."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        path, length = environ['PATH_INFO'], int(environ.get('CONTENT_LENGTH') or 0)
        self.asked.append(path)
        body = environ['wsgi.input'].read()
        if path == '/fails':
            raise RuntimeError('PASSWORD')
        if length > BOUND:
            start_response('413 Too Large', [('Content-Length', '5')])
            return [b'large']
        if path == '/large':
            body = b'x' * int(environ['QUERY_STRING'])
        text = body or f'{environ["REQUEST_METHOD"]} {path} {environ.get("HTTP_X_A", "")}'.encode()
        start_response('200 OK', [('Content-Type', 'text/plain')])
        return [text]


class Site:
    """The server, and raw connections to it."""

    def __init__(self) -> None:
        listener = socket.create_server(('127.0.0.1', 0), backlog=1024)
        self.address, self.app = listener.getsockname(), App()
        log = logging.getLogger('site')
        log.addHandler(Lines())
        log.propagate = False
        self.server = serving.WsgiServer(listener, self.app, SLOTS, log, most_body=BOUND)
        self.server.start()

    def connect(self, data: bytes = b'') -> socket.socket:
        sock = socket.create_connection(self.address, timeout=10)
        sock.sendall(data)
        return sock

    def ask(self, data: bytes, end: bool = True) -> str:
        """All that is answered until the server closes; ``end``: our side is ended after the data."""
        with self.connect(data) as sock:
            if end:
                with contextlib.suppress(OSError):
                    # The server may have been quicker.
                    sock.shutdown(socket.SHUT_WR)
            return read(sock)


def read(sock: socket.socket) -> str:
    """All until the end, without the headers that say nothing here."""
    found = b''
    try:
        while block := sock.recv(65536):
            found += block
    except ConnectionResetError:
        found += b'RESET'
    except TimeoutError:
        found += b'OPEN'
    lines = [
        line
        for line in found.decode('latin-1').split('\r\n')
        if not line.startswith(('Date:', 'Content-Type:', 'Content-Length:'))
    ]
    return '|'.join(lines)


GET = b'GET /%s HTTP/1.1\r\nHost: x\r\n\r\n'
LAST = b'GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'


def post(headers: bytes, body: bytes = b'') -> bytes:
    return b'POST /post HTTP/1.1\r\nHost: x\r\nConnection: close\r\n' + headers + b'\r\n' + body


def words(site: Site) -> dict[str, str]:
    """What is understood, and what is refused."""
    asked = {
        'two': GET % b'one' + LAST,
        'old': b'GET /old HTTP/1.0\r\n\r\n',
        'head': b'HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n' + LAST,
        'whole url': b'GET http://host:1/a%20b?q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
        'body': post(b'Content-Length: 3\r\n', b'abc'),
        'chunked': post(b'Transfer-Encoding: chunked\r\n', b'2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: x\r\n\r\n'),
        'twice': post(b'X-A: 1\r\nX-A: 2\r\nX_A: 3\r\n'),
        'expect': post(b'Content-Length: 1\r\nExpect: 100-continue\r\n', b'a'),
        'fails': b'GET /fails HTTP/1.1\r\nHost: x\r\n\r\n',
        'too long': post(b'Content-Length: 1001\r\n', b'x' * 1001),
        'too long and never sent': post(b'Content-Length: 999999999999\r\n'),
        'too long in chunks': post(b'Transfer-Encoding: chunked\r\n', b'3e9\r\n' + b'x' * 1001 + b'\r\n0\r\n\r\n'),
        'two lengths': post(b'Content-Length: 3\r\nContent-Length: 30\r\n', b'abc' + LAST),
        'plus': post(b'Content-Length: +2\r\n', b'ab'),
        'negative': post(b'Content-Length: -1\r\n'),
        'list': post(b'Content-Length: 2, 3\r\n', b'ab'),
        'word': post(b'Content-Length: abc\r\n'),
        'both': post(b'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n', b'0\r\n\r\n' + LAST),
        'unknown coding': post(b'Transfer-Encoding: gzip, chunked\r\n', b'0\r\n\r\n'),
        'bad chunk': post(b'Transfer-Encoding: chunked\r\n', b'-1\r\nabc\r\n'),
        'long line': b'GET /' + b'x' * 9000 + b' HTTP/1.1\r\nHost: x\r\n\r\n',
        'long head': b'GET / HTTP/1.1\r\nHost: x\r\nX-A: ' + b'x' * 70000 + b'\r\n\r\n',
        'no host': b'GET / HTTP/1.1\r\n\r\n',
        'nonsense': b'\x16\x03\x01\x02\x00\r\n\r\n',
        'space': b'GET / HTTP/1.1\r\nHost : x\r\n\r\n',
    }
    return {name: site.ask(data, end=False) for name, data in asked.items()}


def hung_up(site: Site) -> dict[str, Any]:
    """Clients that go in the middle of a head, of a body, of an answer."""
    before = len(site.app.asked)
    told = [
        site.ask(data)
        for data in (
            b'',
            b'GET',
            post(b'Content-Length: 9\r\n', b'abc'),
            post(b'Transfer-Encoding: chunked\r\n', b'9\r\nabc'),
        )
    ]
    with site.connect(b'GET /large?9000000 HTTP/1.1\r\nHost: x\r\n\r\n'):
        pass
    return {'told': told, 'asked': len(site.app.asked) - before, 'next': site.ask(LAST)}


def half(site: Site) -> dict[str, Any]:
    """Heads and bodies that never end, and answers that nobody reads, ten of each; somebody else asks."""
    parts = (
        b'',
        b'GET / HT',
        b'GET / HTTP/1.1\r\nHost: x\r\n',
        post(b'Content-Length: 9\r\n', b'abc'),
        post(b'Transfer-Encoding: chunked\r\n', b'9\r\nabc'),
        b'GET /large?3000000 HTTP/1.1\r\nHost: x\r\n\r\n',
    )
    held = [site.connect(part) for part in parts for _ in range(10)]
    # Kept for its next request, used while all the others are there.
    kept = site.connect()
    answers = []
    for _ in range(5):
        kept.sendall(GET % b'kept')
        answers.append(kept.recv(65536).split(b'\r\n')[0].decode())
    told = {
        'kept': answers,
        'new': site.ask(LAST),
        'no delay': all(
            each.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in list(site.server.channels.values())
        ),
    }
    for sock in (*held, kept):
        sock.close()
    return told


def crowd(site: Site) -> dict[str, Any]:
    """More connections than may be open: those that wait the longest give way."""
    most = site.server._most = 100
    waiting = [site.connect(b'GET /') for _ in range(3 * most)]
    answers = [site.ask(LAST) for _ in range(5)]
    time.sleep(0.05)
    ended = len(site.server.channels)
    for sock in waiting:
        sock.close()
    return {'answers': answers, 'bounded': ended <= most + 1}


def full(site: Site) -> dict[str, Any]:
    """More bytes than are held."""
    kept = serving.MOST_IN, serving.SMALL
    serving.MOST_IN, serving.SMALL = 20000, 100
    waiting = [site.connect(post(b'Content-Length: 900\r\n', b'x' * 800)) for _ in range(50)]
    answers = [site.ask(post(b'Content-Length: 900\r\n', b'y' * 900)) for _ in range(3)]
    time.sleep(0.1)
    held = sum(each.held for each in list(site.server.channels.values()))
    serving.MOST_IN, serving.SMALL = kept
    for sock in waiting:
        sock.close()
    return {'answers': [answer[:15] for answer in answers], 'bounded': held <= 21000}


def late(site: Site) -> dict[str, Any]:
    """Each part has its time; a byte now and then gains none."""
    kept = dict(serving.SECONDS)
    serving.SECONDS.update(
        dict.fromkeys((serving.State.IDLE, serving.State.HEAD, serving.State.BODY, serving.State.ANSWER), 0.3)
    )
    kinds = {
        'silent': b'',
        'head': b'GET /',
        'body': post(b'Content-Length: 99\r\n', b'a'),
        'idle': GET % b'idle',
        'answer': b'GET /large?9000000 HTTP/1.1\r\nHost: x\r\n\r\n',
    }
    socks = {name: site.connect(data) for name, data in kinds.items()}
    ended = {}

    def drip(name: str, sock: socket.socket) -> None:
        for _ in range(400):
            try:
                if name in ('head', 'body'):
                    sock.sendall(b'a')
                if name != 'answer':
                    sock.settimeout(0.05)
                    if not sock.recv(65536):
                        break
            except TimeoutError:
                continue
            except OSError:
                break
            if name == 'answer':
                time.sleep(0.05)
                if not any(each.state is serving.State.ANSWER for each in list(site.server.channels.values())):
                    break
        else:
            return
        ended[name] = True

    threads = [threading.Thread(target=drip, args=item) for item in socks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    serving.SECONDS.update(kept)
    return {'ended': ended, 'next': site.ask(LAST)}


def idle(site: Site) -> list[float | None]:
    """Seconds that the server's thread would wait: with one connection, and after its end."""
    waits: list[float | None] = []
    wait = concurrency.Epoll.wait

    def recorded(self: concurrency.Epoll, seconds: float | None, most: int) -> list[int]:
        waits.append(seconds)
        return wait(self, seconds, most)

    deadline = time.monotonic() + 30
    while site.server.channels and time.monotonic() < deadline:
        time.sleep(0.05)
    concurrency.Epoll.wait = recorded  # type: ignore[method-assign]
    try:
        sock = site.connect()
        while not site.server.channels and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.05)
        sock.close()
        while site.server.channels and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.05)
    finally:
        concurrency.Epoll.wait = wait  # type: ignore[method-assign]
    return [waits[0], waits[-1]]


def main(backend: str) -> None:
    """Everything, one after the other."""
    concurrency.setup(backend)
    site = Site()
    told: dict[str, Any] = {kind.__name__: kind(site) for kind in (words, hung_up, half, crowd, full, late, idle)}
    told['logged'] = LINES
    site.server.stop(1.0)
    print(json.dumps(told))


if __name__ == '__main__':
    main(sys.argv[1])
