"""Admin passwords and personality files of guests: the API chooses or reads them and encrypts them for the host.

    keys = passwords.keys(backend, request.admin_password or request.personality)
    password = passwords.choose(backend, keys, request.admin_password)
    files = passwords.read_files(request.personality, allowed)          # [(path, base64 content)], within the quotas
    sealed = passwords.seal(keys, password, files, server_uuid)         # for the operation's row

Create, rebuild, evacuate, rescue and the change of a password use this module.
"""

from __future__ import annotations

import base64
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from kilonova import sealing
from kilonova.api.services.backend import Backend
from kilonova.errors import Forbidden, Invalid, Unavailable

LOG = logging.getLogger(__name__)

_ALPHABET = string.ascii_letters + string.digits


class NothingToSealWith(Unavailable):
    """Error 503: the request contains a password or files, but this cloud has no keys to encrypt them."""

    msg_fmt = (
        'This cloud has no keys to encrypt the passwords and files of new servers (its operator can set '
        '%(option)s). Leave out adminPass and personality.'
    )


class TooManyFiles(Forbidden):
    """Error 403: the request has more personality files than the quota allows."""

    msg_fmt = 'Personality file limit exceeded. Maximum allowed is %(allowed)d files.'


class FileTooLong(Forbidden):
    """Error 403: the content of a personality file is longer than the quota allows."""

    msg_fmt = 'Personality file content exceeds maximum %(allowed)s'


class PathTooLong(Forbidden):
    """Error 403: the path of a personality file is longer than the quota allows."""

    msg_fmt = 'Personality file path exceeds maximum %(allowed)s'


def keys(backend: Backend, asked: object) -> sealing.SealingKeys | None:
    """Return the keys that encrypt ("seal") a server's password and files, or None if no usable keys are configured.

    ``asked`` is true if the request contains a password or files. Raises NothingToSealWith if ``asked`` is true and
    there are no usable keys.
    """
    try:
        return sealing.SealingKeys.read(backend.options.key_file)
    except sealing.NoKeys as error:
        if not asked:
            return None
        LOG.warning('Refusing a request with a password or files: the encryption keys are not usable: %s', error)
        raise NothingToSealWith(option=sealing.OPTION) from error


def choose(backend: Backend, sealed_by: sealing.SealingKeys | None, given: str | None) -> str | None:
    """Return the password that the user gave, or a new random one.

    ``given`` is the user's password or None. Return None if no keys are configured (``sealed_by`` is None), because a
    host gets passwords only in encrypted form.
    """
    if sealed_by is None:
        return None
    return given or random_text(backend.options.password_length, _ALPHABET)


def read_files(personality: Sequence[Mapping[str, Any]], allowed: Mapping[str, int]) -> list[tuple[str, str]]:
    """Check a request's personality files and return them as a list of (path, base64 content).

    The server gets the files in its config drive. Only requests of microversions before 2.57 have personality files.
    ``allowed`` is a dict from quota resource to its limit.

    Raises:
        Invalid: A file has no path.
        TooManyFiles: There are more files than the quota allows.
        PathTooLong: A path is longer than the quota allows.
        FileTooLong: A content is longer than the quota allows.
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


def seal(
    sealed_by: sealing.SealingKeys | None, password: str | None, files: Sequence[tuple[str, str]], uuid: str
) -> str | None:
    """Encrypt a password and files for the server ``uuid``, and return the text that the server's operation row stores.

    ``sealed_by`` are the encryption keys. Return None if ``sealed_by`` is None, because no keys are configured. The
    text can be decrypted only with the same keys, and only for this server, because the text also contains the uuid.
    """
    return None if sealed_by is None else sealed_by.seal(sealing.ServerSecrets(password, files), uuid)


def random_text(length: int, alphabet: str) -> str:
    """Return ``length`` characters of ``alphabet`` from a cryptographic random source."""
    return ''.join(secrets.choice(alphabet) for _ in range(length))
