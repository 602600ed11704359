"""Files that a create puts into its servers, by way of their config drive (until 2.56).

    files = read(request.personality, allowed)        # [(path, base64 content)], within the quotas
"""
from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kilonova.errors import Forbidden, Invalid


class TooManyFiles(Forbidden):
    msg_fmt = 'Personality file limit exceeded. Maximum allowed is %(allowed)d files.'


class FileTooLong(Forbidden):
    msg_fmt = 'Personality file content exceeds maximum %(allowed)s'


class PathTooLong(Forbidden):
    msg_fmt = 'Personality file path exceeds maximum %(allowed)s'


def read(personality: Sequence[Mapping[str, Any]], allowed: Mapping[str, int]) -> list[tuple[str, str]]:
    """``allowed``: quota limits by resource. Invalid for a file without path; 403 for what is beyond a quota."""
    if 0 <= allowed['injected_files'] < len(personality):
        raise TooManyFiles(allowed=allowed['injected_files'])
    found = []
    for file in personality:
        path, encoded = file.get('path'), re.sub(r'\s', '', file.get('contents') or '')
        if not path:
            raise Invalid('Bad personality format: missing path')
        if 0 <= allowed['injected_file_path_length'] < len(path):
            raise PathTooLong(allowed=allowed['injected_file_path_length'])
        if 0 <= allowed['injected_file_content_bytes'] < len(base64.b64decode(encoded)):
            raise FileTooLong(allowed=allowed['injected_file_content_bytes'])
        found.append((path, encoded))
    return found
