"""Secrets of a new server on their way from the API to its host, sealed with keys of the deployment.

    keys = Keys.read(conf.secrets.key_file)              # NoKeys: what is the matter with the file
    sealed = keys.seal(Secrets('hunter2'), server_uuid)  # text for a row or a message
    keys.open(sealed, server_uuid).admin_password        # NotOpened: another key, or sealed for another server

The file holds one key a line, 32 random bytes in URL-safe base64 (Fernet's form); lines that begin with # are comments.
The first key seals, all of them open. The last one is there to seal after the next rotation: hosts know it before
anybody uses it, so the copies of a rotated file may arrive in any order. The file is read anew each time it is needed.
"""
from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from kilonova import errors

OPTION = '[secrets]key_file'
# Of a rotated file: the one that seals, the one that did before (rows under way), the one that will.
KEPT = 3
_HEADER = ('# Keys of Kilonova: kilonova-manage secrets rotate_key makes a new one.\n'
           '# Each host of kilonova-api and kilonova-compute needs this file, readable for its daemon alone.\n')


class NoKeys(errors.Unavailable):
    """There is no file of keys, or none that may be used; ``missing`` tells the first from the second."""

    @property
    def missing(self) -> bool:
        return bool(self.fields.get('missing'))


class NotOpened(errors.KilonovaError):
    """Sealed with a key that isn't here, for another server, or damaged."""

    msg_fmt = f'{OPTION} of this host has no key for the sealed password and files of server %(uuid)s'


@dataclass(frozen=True)
class Secrets:
    """``files``: (path in the guest, base64 content)."""

    admin_password: str | None = field(default=None, repr=False)
    files: Sequence[tuple[str, str]] = field(default=(), repr=False)


class Keys:
    """Keys in the order of the file: the first one seals."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    @classmethod
    def read(cls, path: str) -> Self:
        """The keys of a file. NoKeys: it isn't there, can't be read, is open to others, or holds no keys."""
        keys = read_file(path)
        try:
            return cls(keys)
        except ValueError as error:
            raise NoKeys(f'{OPTION}: {path} holds a line that is no key, 32 bytes in URL-safe base64') from error

    def seal(self, secrets: Secrets, uuid: str) -> str:
        """Text that only these keys open, and only for the server ``uuid``."""
        content = {'server': uuid, 'admin_password': secrets.admin_password, 'files': list(secrets.files)}
        return self._fernet.encrypt(json.dumps(content).encode()).decode()

    def open(self, sealed: str, uuid: str) -> Secrets:
        """What was sealed for the server ``uuid``; NotOpened."""
        try:
            content = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            raise NotOpened(uuid=uuid) from None
        # Whoever writes into the database can't let one server's password appear in another's config drive.
        if content['server'] != uuid:
            raise NotOpened(uuid=uuid)
        return Secrets(content['admin_password'], [(where, text) for where, text in content['files']])


# --- the file --------------------------------------------------------------------------------------------------------
def read_file(path: str) -> list[str]:
    """The keys as they are written; NoKeys."""
    if not path:
        raise NoKeys(f'{OPTION} is empty', missing=True)
    try:
        with open(path, encoding='ascii') as stream:
            mode, text = os.fstat(stream.fileno()).st_mode, stream.read()
    except FileNotFoundError:
        raise NoKeys(f'{OPTION}: {path} is not there', missing=True) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NoKeys(f'{OPTION}: {path} can not be read: {getattr(error, "strerror", None) or error}') from error
    if mode & stat.S_IRWXO:
        raise NoKeys(f'{OPTION}: {path} is open to others (mode {stat.S_IMODE(mode):04o}); 0600 is right, or 0640')
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith('#')]
    if not keys:
        raise NoKeys(f'{OPTION}: {path} holds no key')
    return keys


def create_file(path: str) -> bool:
    """A file with two new keys, one that seals and the next; False, and nothing done, when there is one."""
    aside = _write_aside(path, [_new_key(), _new_key()])
    try:
        # Unlike a rename a link never replaces what somebody else made meanwhile.
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    return True


def rotate_file(path: str) -> int:
    """Let the last key seal from now on, add a new one behind it, drop what is older than one rotation; owner and mode
    stay. How many keys the file has now; NoKeys."""
    path = os.path.realpath(path)
    Keys.read(path)
    keys = read_file(path)
    kept = [*keys[-1:], *keys[:-1]][:KEPT - 1]
    rotated = [*kept, _new_key()]
    os.replace(_write_aside(path, rotated, os.stat(path)), path)
    return len(rotated)


def _new_key() -> str:
    return Fernet.generate_key().decode()


def _write_aside(path: str, keys: Sequence[str], like: os.stat_result | None = None) -> str:
    aside = f'{path}.{os.getpid()}.new'
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, 'w', encoding='ascii') as stream:
        if like is not None:
            mine = os.fstat(descriptor)
            if (like.st_uid, like.st_gid) != (mine.st_uid, mine.st_gid):
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        stream.write(_HEADER + ''.join(f'{key}\n' for key in keys))
        stream.flush()
        os.fsync(descriptor)
    return aside
