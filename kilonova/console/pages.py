"""The pages of a browser's client (noVNC, spice-html5), out of one directory.

    pages = Pages('/usr/share/novnc')
    pages.get('/vnc_auto.html')         # Page(type='text/html', body=b'…'); None: there is none
"""
from __future__ import annotations

import mimetypes
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Bytes of a file that is served.
MOST = 16 << 20
# Whatever the host's table of types says, browsers run no module of another type.
_TYPES = {'.js': 'text/javascript', '.mjs': 'text/javascript', '.html': 'text/html', '.css': 'text/css',
          '.json': 'application/json', '.svg': 'image/svg+xml', '.wasm': 'application/wasm'}


class Page(NamedTuple):
    type: str
    body: bytes


class Pages:
    """``root`` None: no pages. Links of the directory are followed: whoever may write there may serve what he likes."""

    def __init__(self, root: str | None) -> None:
        self.root = root

    def get(self, target: str) -> Page | None:
        """The file that a request's target names; nothing outside, no lists of directories."""
        parts = [part for part in unquote(urlsplit(target).path).split('/') if part]
        if self.root is None or not parts or any(part.startswith('.') or '\0' in part for part in parts):
            return None
        path = os.path.join(self.root, *parts)
        try:
            if not os.path.isfile(path) or os.path.getsize(path) > MOST:
                return None
            with open(path, 'rb') as file:
                return Page(self._type(path), file.read(MOST))
        except (OSError, ValueError):
            return None

    def _type(self, path: str) -> str:
        end = os.path.splitext(path)[1].lower()
        return _TYPES.get(end) or mimetypes.guess_type(path)[0] or 'application/octet-stream'
