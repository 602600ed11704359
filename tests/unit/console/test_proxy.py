"""A proxy over real sockets: who gets a console, what goes through it, and what ends it."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from kilonova.console.authority import Access
from kilonova.console.pages import Pages
from kilonova.console.proxy import Proxy, ProxyLimits, is_foreign, token_of
from kilonova.errors import Unanswered

TOKEN = '0b5d2c72-12cc-4ba6-a8d7-3ff5cc1d8cb8'
SERVER = '11111111-2222-4333-8444-555555555555'


class Guest:
    """Greets, then says everything back."""

    def __init__(self) -> None:
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.port = self.listener.getsockname()[1]
        self.peers: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.peers.append(peer)
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        try:
            peer.sendall(b'RFB 003.008\n')
            while data := peer.recv(65536):
                peer.sendall(data)
        except OSError:
            pass
        peer.close()

    def close(self) -> None:
        for each in (self.listener, *self.peers):
            each.close()


class Book:
    """An authority that holds its tokens in memory."""

    def __init__(self, port: int) -> None:
        self.access = Access(
            TOKEN,
            None,
            'novnc',
            SERVER,
            'gpu1',
            '127.0.0.1',
            port,  # type: ignore[arg-type]
            'http://127.0.0.1:6080/vnc_auto.html',
            600.0,
        )
        self.known = {TOKEN}
        self.there: Any = True
        self.asked: list[str] = []
        self.before_is_there: Callable[[], None] = lambda: None

    def find(self, token: str) -> Access | None:
        self.asked.append('find')
        return replace(self.access, token=token) if token in self.known else None

    def is_there(self, access: Access) -> bool:
        self.asked.append('is_there')
        self.before_is_there()
        if isinstance(self.there, Exception):
            raise self.there
        return self.there

    def take(self, access: Access) -> bool:
        self.asked.append('take')
        try:
            self.known.remove(access.token)
        except KeyError:
            return False
        return True


@pytest.fixture
def guest() -> Iterator[Guest]:
    made = Guest()
    yield made
    made.close()


@pytest.fixture
def book(guest: Guest) -> Book:
    return Book(guest.port)


@pytest.fixture
def start(book: Book, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """``start(limits)``: the port of a proxy."""
    made = []

    def run(limits: ProxyLimits | None = None, **options: Any) -> int:
        proxy = Proxy(
            'novncproxy',
            {'novnc'},
            book,
            Pages(str(tmp_path)),
            limits or ProxyLimits(),  # type: ignore[arg-type]
            **options,
        )
        listener = socket.create_server(('127.0.0.1', 0))
        proxy.start(listener)
        made.append(proxy)
        return listener.getsockname()[1]

    yield run
    for proxy in made:
        proxy.stop(60)


def opened(port: int, target: str = f'/?token={TOKEN}', **options: Any) -> Any:
    return connect(f'ws://127.0.0.1:{port}{target}', open_timeout=60, close_timeout=60, compression=None, **options)


def told(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged, but for what this test's own client does."""
    return '\n'.join(record.getMessage() for record in caplog.records if record.name != 'websockets.client')


def assert_refused(port: int, caplog: pytest.LogCaptureFixture, why: str, **options: Any) -> None:
    caplog.clear()
    with opened(port, **options) as client, pytest.raises(ConnectionClosed):
        client.recv(timeout=60)
    until(lambda: why in caplog.text)
    assert TOKEN not in told(caplog)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ('target', 'headers'),
    [
        (f'/?token={TOKEN}', {}),
        (f'/websockify?token={TOKEN}', {}),
        ('/websockify', {'Cookie': f'token={TOKEN}'}),
        ('/websockify', {'Cookie': f'other=1; token={TOKEN}'}),
    ],
)
def test_bytes_go_both_ways(start, book, guest, target, headers, caplog):
    caplog.set_level(logging.DEBUG)
    with opened(start(), target, subprotocols=['binary'], additional_headers=headers) as client:
        assert client.subprotocol == 'binary'
        assert client.recv(timeout=60) == b'RFB 003.008\n'
        # Longer than what is read at once, and text as some terminals send it.
        sent, back = b'x' * 300000, b''
        client.send(sent)
        while len(back) < len(sent):
            back += client.recv(timeout=60)
        assert back == sent
        client.send('text')
        assert client.recv(timeout=60) == b'text'
    assert book.asked == ['find', 'is_there', 'take']
    until(lambda: 'closed' in caplog.text)
    assert 'Console novnc of a server opened from 127.0.0.1' in caplog.text and TOKEN not in told(caplog)
    until(lambda: guest.peers[0].fileno() == -1)


def test_a_token_opens_once(start, caplog):
    port = start()
    with opened(port) as client:
        client.recv(timeout=60)
        assert_refused(port, caplog, 'the token is unknown, expired or used')


def test_two_at_once(start, book, caplog):
    """Both found the token; one gets it."""
    book.before_is_there = book.known.clear
    assert_refused(start(), caplog, 'the token was used by another connection in the meantime')


@pytest.mark.parametrize(
    ('target', 'why'),
    [
        ('/', 'it has no token'),
        ('/?token=', 'it has no token'),
        (f'/?token={"x" * 65}', 'it has no token'),
        ('/?token=nonsense', 'unknown, expired or used'),
    ],
)
def test_bad_tokens(start, book, guest, caplog, target, why):
    assert_refused(start(), caplog, why, target=target)
    assert guest.peers == [] and 'is_there' not in book.asked


def test_the_port_is_another_guests(start, book, caplog):
    """The host is asked when the connection stands: the token stays good for when it is back."""
    book.there = False
    assert_refused(start(), caplog, f'the console of server {SERVER} is not at 127.0.0.1:')
    assert book.known == {TOKEN} and book.asked == ['find', 'is_there']


def test_a_host_that_says_nothing(start, book, caplog):
    book.there = Unanswered(who='gpu1', reason='no reply')
    assert_refused(start(), caplog, 'no reply')


def test_a_guest_that_does_not_answer(start, book, guest, caplog):
    guest.listener.close()
    book.access = replace(book.access, port=1)
    assert_refused(start(), caplog, 'does not answer')
    assert book.asked == ['find']


def test_everything_has_a_deadline(start, book, caplog):
    held = threading.Event()
    book.before_is_there = lambda: held.wait(60) and None
    try:
        assert_refused(start(ProxyLimits(opening=0.3)), caplog, 'it took too long')
    finally:
        held.set()


def test_types_of_other_proxies(start, book, caplog):
    book.access = replace(book.access, console_type='serial')
    assert_refused(start(), caplog, 'for a console serial, which kilonova-novncproxy does not serve')


def test_pages_of_others(start, book, caplog):
    port = start(allowed_origins=['dashboard.example'])
    assert_refused(port, caplog, 'its origin', origin='http://evil.example')
    assert_refused(port, caplog, 'its origin has the scheme', origin='https://127.0.0.1')
    assert book.known == {TOKEN}
    with opened(port, origin='http://dashboard.example:8080') as client:
        assert client.recv(timeout=60)


def test_so_many_consoles_of_a_server(start, book, caplog):
    book.known = {'a', 'b', 'c'}
    port = start(ProxyLimits(consoles=1))
    with opened(port, '/?token=a') as client:
        client.recv(timeout=60)
        assert_refused(port, caplog, f'server {SERVER} has 1 consoles open', target='/?token=b')
    # Its place is free when it is closed.
    until(lambda: can_open(port, book))


def can_open(port: int, book: Book) -> bool:
    book.known.add('again')
    try:
        with opened(port, '/?token=again') as client:
            return bool(client.recv(timeout=60))
    except ConnectionClosed:
        return False


def test_so_many_connections(start):
    """One more is closed before it said anything; nothing of it is left."""
    port = start(ProxyLimits(connections=2, handshake=60.0))
    held = [socket.create_connection(('127.0.0.1', port)) for _ in range(2)]
    for each in held:
        # Both are accepted: they are asked for nothing before they send.
        each.sendall(b'GET /none HTTP/1.1\r\n')
    until(lambda: is_closed(port))
    for each in held:
        each.close()
    until(lambda: not is_closed(port))


def is_closed(port: int) -> bool:
    with socket.create_connection(('127.0.0.1', port)) as more:
        try:
            more.sendall(b'GET /none HTTP/1.1\r\nHost: x\r\n\r\n')
            more.settimeout(60)
            return more.recv(10) == b''
        except OSError:
            return True


def test_slow_requests_end(start):
    with socket.create_connection(('127.0.0.1', start(ProxyLimits(handshake=0.3)))) as slow:
        slow.settimeout(60)
        slow.sendall(b'GET / HTTP/1.1\r\n')
        assert b'101' not in slow.recv(100)


def test_messages_have_a_bound(start):
    with opened(start(ProxyLimits(message=1000))) as client:
        client.recv(timeout=60)
        client.send(b'x' * 1000)
        assert client.recv(timeout=60) == b'x' * 1000
        client.send(b'x' * 1001)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)


def test_a_guest_that_goes_closes_the_console(start, guest):
    with opened(start()) as client:
        client.recv(timeout=60)
        guest.peers[0].shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)


def test_sessions_end_with_their_tokens_where_that_is_asked_for(start, book):
    book.access = replace(book.access, seconds=0.3)
    with opened(start(ends_with_token=True)) as client:
        assert client.recv(timeout=60)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)


def test_stop_closes_consoles(book, tmp_path):
    proxy = Proxy('novncproxy', {'novnc'}, book, Pages(None), ProxyLimits())
    listener = socket.create_server(('127.0.0.1', 0))
    proxy.start(listener)
    with opened(listener.getsockname()[1]) as client:
        client.recv(timeout=60)
        proxy.stop(60)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=60)


# --- pages -----------------------------------------------------------------------------------------------------------
def got(port: int, path: str) -> tuple[int, str | None, bytes, dict[str, str]]:
    client = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    try:
        client.request('GET', path)
        reply = client.getresponse()
        return reply.status, reply.getheader('Content-Type'), reply.read(), dict(reply.getheaders())
    finally:
        client.close()


def test_pages(start, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    (tmp_path / 'core').mkdir()
    (tmp_path / 'vnc_auto.html').write_text('<html>noVNC</html>')
    (tmp_path / 'core' / 'rfb.js').write_text('export')
    (tmp_path / '.hidden').write_text('secret')
    (tmp_path.parent / 'secret').write_text('secret')
    port = start()
    status, kind, body, headers = got(port, f'/vnc_auto.html?path=%3Ftoken%3D{TOKEN}')
    assert (status, kind, body) == (200, 'text/html', b'<html>noVNC</html>')
    assert headers['Referrer-Policy'] == 'no-referrer' and headers['X-Content-Type-Options'] == 'nosniff'
    assert got(port, '/core/rfb.js')[:3] == (200, 'text/javascript', b'export')
    for path in (
        '/',
        '/core',
        '/none',
        '/.hidden',
        '/../secret',
        '/%2e%2e/secret',
        '/core/..%2f..%2fsecret',
        '/%00',
        '//etc/passwd',
        '/vnc_auto.html%00',
    ):
        assert got(port, path)[0] == 404, path
    assert TOKEN not in told(caplog)


def test_no_pages():
    assert Pages(None).get('/etc/passwd') is None


# --- what needs no socket --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('target', 'cookies', 'found'),
    [
        ('/?token=a', (), 'a'),
        ('/websockify?x=1&token=a', (), 'a'),
        ('/', ('token=a',), 'a'),
        ('/', ('x=1; token="a"',), 'a'),
        ('/?token=a', ('token=b',), 'a'),
        ('/', (), None),
        ('/?token=', (), None),
        ('/', ('x=1',), None),
        (f'/?token={"a" * 64}', (), 'a' * 64),
        (f'/?token={"a" * 65}', (), None),
    ],
)
def test_where_tokens_stand(target, cookies, found):
    assert token_of(target, cookies) == found


@pytest.mark.parametrize(
    ('origin', 'host', 'base', 'may'),
    [
        (None, 'proxy:6080', 'http://proxy:6080/vnc.html', True),
        ('http://proxy:6080', 'proxy:6080', 'http://proxy:6080/vnc.html', True),
        ('https://proxy', 'proxy:6080', 'http://proxy:6080/vnc.html', False),
        ('https://proxy', 'proxy', 'https://proxy/vnc.html', True),
        ('http://evil', 'proxy:6080', 'http://proxy:6080/vnc.html', False),
        ('http://friend:81', 'proxy:6080', 'http://proxy:6080/vnc.html', True),
        ('null', 'proxy', 'http://proxy/vnc.html', False),
        ('http://', 'proxy', 'http://proxy/vnc.html', False),
        ('http://[::1]:6080', '[::1]:6080', 'http://[::1]:6080/vnc.html', True),
        ('http://proxy', None, 'http://proxy/vnc.html', False),
        ('http://proxy', 'proxy', 'ws://proxy/', True),
        ('http://proxy', 'proxy', 'wss://proxy/', False),
        ('https://proxy', 'proxy', 'wss://proxy/', True),
        ('file://proxy', 'proxy', 'http://proxy/', False),
        ('http://proxy', 'proxy', '', False),
    ],
)
def test_origins(origin, host, base, may):
    assert (is_foreign(origin, host, base, {'friend'}) is None) is may
