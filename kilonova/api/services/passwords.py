"""The administrator's password of a guest, and files for it: chosen or taken here, sealed for the guest's host.

    keys = passwords.keys(backend, request.admin_password or request.personality)
    password = passwords.choose(backend, keys, request.admin_password)
    files = passwords.read_files(request.personality, allowed)          # [(path, base64 content)], within the quotas
    sealed = passwords.seal(keys, password, files, server_uuid)         # for the operation's row
"""
from __future__ import annotations

import base64
import logging
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from kilonova import sealing
from kilonova.api.services.backend import Backend
from kilonova.errors import Forbidden, Invalid, Unavailable

LOG = logging.getLogger(__name__)

_ALPHABET = string.ascii_letters + string.digits


class NothingToSealWith(Unavailable):
    msg_fmt = ('This cloud has no keys that keep passwords and files of new servers secret on their way to the host '
               '(its operator sets %(option)s). Leave out adminPass and personality.')


class TooManyFiles(Forbidden):
    msg_fmt = 'Personality file limit exceeded. Maximum allowed is %(allowed)d files.'


class FileTooLong(Forbidden):
    msg_fmt = 'Personality file content exceeds maximum %(allowed)s'


class PathTooLong(Forbidden):
    msg_fmt = 'Personality file path exceeds maximum %(allowed)s'


def keys(backend: Backend, asked: object) -> sealing.Keys | None:
    """The keys that seal what a server's user alone may read. None: there are none, and nothing was ``asked`` for that
    needs them; NothingToSealWith (503) else."""
    try:
        return sealing.Keys.read(backend.options.key_file)
    except sealing.NoKeys as error:
        if not asked:
            return None
        LOG.warning('A request that brings a password or files is refused: %s', error)
        raise NothingToSealWith(option=sealing.OPTION) from error


def choose(backend: Backend, sealed_by: sealing.Keys | None, given: str | None) -> str | None:
    """The password that was given, or a new one. None: without keys nobody gets one."""
    if sealed_by is None:
        return None
    return given or random_text(backend.options.password_length, _ALPHABET)


def read_files(personality: Sequence[Mapping[str, Any]], allowed: Mapping[str, int]) -> list[tuple[str, str]]:
    """The files that a create puts into its servers, by way of their config drive (until 2.56).

    ``allowed``: quota limits by resource. Invalid for a file without path; 403 for what is beyond a quota.
    """
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


def seal(sealed_by: sealing.Keys | None, password: str | None, files: Sequence[tuple[str, str]],
         uuid: str) -> str | None:
    """Both as the row of an operation holds them, for the server ``uuid`` alone."""
    return None if sealed_by is None else sealed_by.seal(sealing.Secrets(password, files), uuid)


def random_text(length: int, alphabet: str) -> str:
    """So many characters that nobody can guess."""
    return ''.join(secrets.choice(alphabet) for _ in range(length))
