"""The files of a console client for browsers (noVNC, spice-html5), which are read from one directory.

Example::

    pages = Pages('/usr/share/novnc')
    pages.get('/vnc_auto.html')         # Page(type='text/html', body=b'…'), or None if there is no such file
"""

from __future__ import annotations

import mimetypes
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Maximum size in bytes of a file that is served.
MOST = 16 << 20
# Content types by file extension. They override the operating system's table, which may be wrong.
_TYPES = {
    '.js': 'text/javascript',
    '.mjs': 'text/javascript',
    '.html': 'text/html',
    '.css': 'text/css',
    '.json': 'application/json',
    '.svg': 'image/svg+xml',
    '.wasm': 'application/wasm',
}


class Page(NamedTuple):
    """The content of a file, with its content type."""

    type: str
    body: bytes


class Pages:
    """The files of the directory ``root``, or no files if ``root`` is None.

    Symbolic links in the directory are followed. So a user who may write to the directory can publish any file of the
    host that the proxy may read.
    """

    def __init__(self, root: str | None) -> None:
        self.root = root

    def get(self, target: str) -> Page | None:
        """Return the file that the path of an HTTP request names, or None if there is no such file.

        Files outside the directory, hidden files and listings of directories are not returned.
        """
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
