"""Consoles of real guests, opened as users do: an address from the API, a websocket to a proxy, and the guest."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.integration.site import Site
from tests.integration.test_libvirtd import HOST, Real, daemon, real
from tools.cloud import http

__all__ = ('daemon', 'real')
WAIT = 60.0


@pytest.fixture
def server(site: Site, real: Real) -> Iterator[str]:
    """A guest that writes dots to its console for ever."""
    token = site.token('admin')
    image = http.call(
        'POST',
        site.url('glance') + '/v2/images',
        {'name': 'boots', 'disk_format': 'raw', 'container_format': 'bare', 'visibility': 'public'},
        token=token,
    ).data['id']
    http.send(
        'PUT',
        f'{site.url("glance")}/v2/images/{image}/file',
        data=real.daemon.image.read_bytes(),
        headers={'X-Auth-Token': token, 'Content-Type': 'application/octet-stream'},
    )
    (made,) = site.boot(1, site.flavor('real', ram=64), user='admin', host=HOST, imageRef=image)
    real.until_console(made, 'GUEST-BOOT 1')
    yield made
    http.call('DELETE', f'{site.url("glance")}/v2/images/{image}', token=token)


def address(site: Site, server: str, protocol: str, kind: str) -> str:
    body = {'remote_console': {'protocol': protocol, 'type': kind}}
    url: str = site.call('POST', f'/servers/{server}/remote-consoles', body, user='admin')['remote_console']['url']
    return url


def opened(url: str) -> ClientConnection:
    """As noVNC and terminals open it."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    target = query['path'][0] if 'path' in query else f'?{parts.query}'
    return connect(
        f'ws://{parts.netloc}/{target}',
        subprotocols=['binary'],
        compression=None,  # type: ignore[list-item]
        open_timeout=WAIT,
        close_timeout=WAIT,
        max_size=None,
        origin=None,
    )


def is_refused(url: str) -> bool:
    with opened(url) as client:
        return not list(said(client))


def said(client: ClientConnection) -> Iterator[str | bytes]:
    """Messages until the console is closed."""
    try:
        while True:
            yield client.recv(timeout=WAIT)
    except ConnectionClosed:
        return


class Rfb:
    """The least of a VNC client: what is on the screen, pixel by pixel."""

    def __init__(self, client: ClientConnection) -> None:
        self._client, self._held = client, b''
        assert self._take(12) == b'RFB 003.008\n'
        client.send(b'RFB 003.008\n')
        schemes = self._take(self._take(1)[0])
        assert schemes == b'\x01', 'no password'
        client.send(b'\x01')
        assert self._take(4) == bytes(4)
        client.send(b'\x01')
        self.width, self.height = struct.unpack('>HH', self._take(4))
        self._take(16)
        self.name = self._take(struct.unpack('>I', self._take(4))[0]).decode()
        # 32 bits a pixel, and no other encoding than the pixels as they are.
        client.send(struct.pack('>BxxxBBBBHHHBBBxxx', 0, 32, 24, 0, 1, 255, 255, 255, 16, 8, 0))
        client.send(struct.pack('>BxHi', 2, 1, 0))

    def _take(self, count: int) -> bytes:
        while len(self._held) < count:
            data = self._client.recv(timeout=WAIT)
            assert isinstance(data, bytes)
            self._held += data
        found, self._held = self._held[:count], self._held[count:]
        return found

    def pixels(self) -> set[bytes]:
        """The colours of the screen."""
        self._client.send(struct.pack('>BBHHHH', 3, 0, 0, 0, self.width, self.height))
        kind, rectangles = struct.unpack('>BxH', self._take(4))
        assert kind == 0
        found: set[bytes] = set()
        for _ in range(rectangles):
            _x, _y, width, height, encoding = struct.unpack('>HHHHi', self._take(12))
            assert encoding == 0
            data = self._take(width * height * 4)
            found |= {data[place : place + 3] for place in range(0, len(data), 4)}
        return found


def test_the_screen_and_the_serial_port_of_a_real_guest(site: Site, real: Real, server: str) -> None:
    """kilonova-novncproxy shows the picture of the real guest, and the serial proxy its output. Each address opens
    once, and none opens after a stop."""
    # 1. The page, then the picture.
    url = address(site, server, 'vnc', 'novnc')
    page = http.send('GET', url)
    assert page.status == 200
    with opened(url) as client:
        screen = Rfb(client)
        assert screen.name and screen.width >= 320
        real.compute.until(lambda: len(screen.pixels()) > 1, 'a picture')
        assert is_refused(url)
    # 2. The serial port: what the guest says now, not what the log has.
    url = address(site, server, 'serial', 'serial')
    with opened(url) as client:
        text = b''
        while text.count(b'.') < 3:
            data = client.recv(timeout=WAIT)
            assert isinstance(data, bytes)
            text += data
    # 3. Its log is kept besides.
    real.until_console(server, '...')
    # 4. An address from before a stop opens nothing.
    stale, serial = address(site, server, 'vnc', 'novnc'), address(site, server, 'serial', 'serial')
    with opened(address(site, server, 'vnc', 'novnc')) as client:
        Rfb(client)
        site.act(server, 'os-stop')
        site.await_status([server], 'SHUTOFF')
        list(said(client))
    assert is_refused(stale) and is_refused(serial)
    for name in ('novncproxy', 'serialproxy'):
        log = site.log(name)
        assert 'Traceback' not in log and 'A connection from 127.0.0.1 is refused' in log
        for token in (stale.rpartition('%3D')[2], serial.rpartition('=')[2]):
            assert token not in log
