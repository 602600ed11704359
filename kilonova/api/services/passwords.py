"""The administrator's password of a guest, and files for it: chosen or taken here, sealed for the guest's host.

    keys = passwords.keys(backend, request.admin_password or request.personality)
    password = passwords.choose(backend, keys, request.admin_password)
    sealed = passwords.seal(keys, password, files, server_uuid)         # for the operation's row
"""
from __future__ import annotations

import logging
import secrets
import string
from collections.abc import Sequence

from kilonova import sealing
from kilonova.api.services.backend import Backend
from kilonova.errors import Unavailable

LOG = logging.getLogger(__name__)

_ALPHABET = string.ascii_letters + string.digits


class NothingToSealWith(Unavailable):
    msg_fmt = ('This cloud has no keys that keep passwords and files of new servers secret on their way to the host '
               '(its operator sets %(option)s). Leave out adminPass and personality.')


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


def seal(sealed_by: sealing.Keys | None, password: str | None, files: Sequence[tuple[str, str]],
         uuid: str) -> str | None:
    """Both as the row of an operation holds them, for the server ``uuid`` alone."""
    return None if sealed_by is None else sealed_by.seal(sealing.Secrets(password, files), uuid)


def random_text(length: int, alphabet: str) -> str:
    """So many characters that nobody can guess."""
    return ''.join(secrets.choice(alphabet) for _ in range(length))
