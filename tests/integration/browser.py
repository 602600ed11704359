"""A headless Chromium, driven by its DevTools protocol, and what a screen in text mode says on a picture of it.

with Browser(directory) as browser:
    browser.open('http://127.0.0.1:6080/vnc_lite.html?path=…')
    picture = browser.picture('canvas')          # Picture(width=720, height=400, …), None: the page has none
    text(picture)                                # ['GUEST-READY', '', …]: the lines of a text screen of 80 columns
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tools.cloud import http

PROGRAM = 'chromium-headless-shell'
_OPTIONS = (
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-sync',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-dev-shm-usage',
    '--remote-debugging-port=0',
    '--window-size=1024,768',
)
# The graphics adapter's ROM has the letters of text mode: 256 of 8 × 16 points.
ROM, COLUMNS, HEIGHT = Path('/usr/share/seabios/vgabios-stdvga.bin'), 80, 16
_LETTER_A = bytes.fromhex('000010386cc6c6fec6c6c6c600000000')
WAIT = 60.0


@dataclass(frozen=True)
class Picture:
    """``rows``: of each line of points their colours, red, green and blue."""

    width: int
    height: int
    rows: list[bytes]
    png: bytes


class Browser:
    """Its profile is in ``directory``, which is empty before."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which(PROGRAM)
        assert program, f'not installed (make test installs it): {PROGRAM}'
        with (directory / 'browser.log').open('w') as log:
            # In a group of its own: it has processes that outlive the first one.
            self._process = subprocess.Popen(
                [program, *_OPTIONS, f'--user-data-dir={directory}/profile', 'about:blank'],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._port = directory / 'profile' / 'DevToolsActivePort'
        self._numbers = itertools.count(1)
        self._open = contextlib.ExitStack()
        self._page: ClientConnection

    def __enter__(self) -> Self:
        try:
            self._connect()
        except BaseException:
            self.end()
            raise
        return self

    def _connect(self) -> None:
        deadline = time.monotonic() + WAIT
        while not (self._port.exists() and '\n' in self._port.read_text()):
            assert self._process.poll() is None and time.monotonic() < deadline, 'the browser does not start'
            time.sleep(0.1)
        pages = http.call('GET', f'http://127.0.0.1:{self._port.read_text().split()[0]}/json/list').data
        address = next(page['webSocketDebuggerUrl'] for page in pages if page['type'] == 'page')
        self._page = self._open.enter_context(connect(address, open_timeout=WAIT, max_size=None, compression=None))

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """No process of it is left."""
        self._open.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._page.send(json.dumps({'id': number, 'method': method, 'params': parameters}))
        while True:
            # What it says unasked is passed over.
            answer = json.loads(self._page.recv(timeout=WAIT))
            if answer.get('id') == number:
                assert 'error' not in answer, answer
                return dict(answer['result'])

    def open(self, url: str) -> None:
        """Returns at once; the page loads."""
        self._ask('Page.navigate', url=url)

    def evaluate(self, expression: str) -> Any:
        return self._ask('Runtime.evaluate', expression=expression, returnByValue=True)['result'].get('value')

    def picture(self, element: str) -> Picture | None:
        """Of the first element that a selector of CSS finds, as it is painted now."""
        found = self.evaluate(
            f'(() => {{ const found = document.querySelector({json.dumps(element)}); '
            'if (!found) return null; const {x, y, width, height} = found.getBoundingClientRect(); '
            'return {x, y, width, height}; })()'
        )
        if not found or not found['width'] or not found['height']:
            return None
        shot = self._ask('Page.captureScreenshot', format='png', clip={**found, 'scale': 1})
        return decode(base64.b64decode(shot['data']))


def decode(png: bytes) -> Picture:
    """A PNG of 8 bits a colour, not interlaced."""
    place, data, width, height, channels = 8, b'', 0, 0, 0
    while place < len(png):
        size, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + size]
        if kind == b'IHDR':
            width, height = int.from_bytes(body[:4]), int.from_bytes(body[4:8])
            assert (body[8], body[12]) == (8, 0)
            channels = {2: 3, 6: 4}[body[9]]
        elif kind == b'IDAT':
            data += body
        place += size + 12
    raw, stride = zlib.decompress(data), width * channels
    rows, above = [], bytes(stride)
    for number in range(height):
        begin = number * (stride + 1)
        above = _unfilter(raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), above, channels)
        rows.append(b''.join(above[point : point + 3] for point in range(0, stride, channels)))
    return Picture(width, height, rows, png)


def _unfilter(kind: int, line: bytearray, above: bytes, channels: int) -> bytes:
    """A line of points as it was before its filter."""
    for place in range(len(line) if kind else 0):
        left, up = line[place - channels] if place >= channels else 0, above[place]
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            corner = above[place - channels] if place >= channels else 0
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            guess = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        line[place] = (line[place] + guess) & 255
    return bytes(line)


def text(picture: Picture) -> list[str]:
    """The lines of a screen in text mode; '?' for what is no letter of its font."""
    rom = ROM.read_bytes()
    font = rom.index(_LETTER_A) - ord('A') * HEIGHT
    letters = {rom[font + code * HEIGHT : font + (code + 1) * HEIGHT]: chr(code) for code in range(32, 127)}
    width = picture.width // COLUMNS
    lines = []
    for top in range(0, picture.height - HEIGHT + 1, HEIGHT):
        rows = picture.rows[top : top + HEIGHT]
        line = ''
        for column in range(COLUMNS):
            begin = column * width
            cell = [[row[3 * point : 3 * point + 3] for point in range(begin, begin + 8)] for row in rows]
            ground = Counter(point for points in cell for point in points).most_common(1)[0][0]
            shape = bytes(sum(128 >> place for place, point in enumerate(points) if point != ground) for points in cell)
            line += letters.get(shape, '?')
        lines.append(line.rstrip())
    return lines
