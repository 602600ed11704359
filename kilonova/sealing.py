"""Encrypt ("seal") the password and files of a new server on their way from the API to the host.

    keys = SealingKeys.read(conf.secrets.key_file)              # raises NoKeys if the file can't be used
    sealed = keys.seal(ServerSecrets('hunter2'), server_uuid)  # text for a row or a message
    keys.open(sealed, server_uuid).admin_password        # raises NotOpened for a wrong key or a wrong server

The key file has one key per line, 32 random bytes in URL-safe base64 (the form of Fernet). Lines that begin with # are
comments. The first key encrypts, and each key can decrypt. The last key is the next one: a rotation makes it the first.
So each host has a key before it is used, and a rotated file can be copied to the hosts in any order. The file is read
again each time it is needed.
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
# Number of keys after a rotation: the encrypting key, the previous key (for older rows), and the next key.
KEPT = 3
_HEADER = (
    '# Keys of Kilonova. "kilonova-manage secrets rotate_key" adds a new one.\n'
    '# Each host of kilonova-api and kilonova-compute needs a copy that only its daemon can read.\n'
)


class NoKeys(errors.Unavailable):
    """The key file does not exist or can't be used."""

    @property
    def missing(self) -> bool:
        """True if no key file is configured or the file does not exist. False if the file exists and can't be used."""
        return bool(self.fields.get('missing'))


class NotOpened(errors.KilonovaError):
    """A sealed text can't be decrypted.

    This host has no fitting key, the text is for another server, or the text is damaged.
    """

    msg_fmt = f'{OPTION} of this host has no key for the sealed password and files of server %(uuid)s'


@dataclass(frozen=True)
class ServerSecrets:
    """The administrator's password and the files of a new server.

    ``files`` are pairs (path in the guest, base64 content).
    """

    admin_password: str | None = field(default=None, repr=False)
    files: Sequence[tuple[str, str]] = field(default=(), repr=False)


class SealingKeys:
    """The keys of a key file, in the file's order. The first key encrypts, and all keys can decrypt."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the keys from a file.

        Raises NoKeys if the file does not exist, can't be read, is accessible to all users, or contains no valid keys.
        """
        keys = read_file(path)
        try:
            return cls(keys)
        except ValueError as error:
            raise NoKeys(f'{OPTION}: {path} has a line that is not a key (32 bytes in URL-safe base64)') from error

    def seal(self, secrets: ServerSecrets, uuid: str) -> str:
        """Encrypt the secrets, and return a text that only these keys can decrypt, and only for the server ``uuid``."""
        content = {'server': uuid, 'admin_password': secrets.admin_password, 'files': list(secrets.files)}
        return self._fernet.encrypt(json.dumps(content).encode()).decode()

    def open(self, sealed: str, uuid: str) -> ServerSecrets:
        """Return the secrets that were sealed for the server ``uuid``.

        Raises NotOpened if no key fits, if the text is damaged, or if the text was sealed for another server.
        """
        try:
            content = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            raise NotOpened(uuid=uuid) from None
        # Refuse a text that was sealed for another server: someone may have copied it to this server's row.
        if content['server'] != uuid:
            raise NotOpened(uuid=uuid)
        return ServerSecrets(content['admin_password'], [(where, text) for where, text in content['files']])


# --- reading and writing the key file --------------------------------------------------------------------------------
def read_file(path: str) -> list[str]:
    """Return the keys of a file as a list of texts, without checking them.

    Raises NoKeys if the file does not exist, can't be read, is accessible to all users, or contains no key.
    """
    if not path:
        raise NoKeys(f'{OPTION} is empty', missing=True)
    try:
        with open(path, encoding='ascii') as stream:
            mode, text = os.fstat(stream.fileno()).st_mode, stream.read()
    except FileNotFoundError:
        raise NoKeys(f'{OPTION}: {path} does not exist', missing=True) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NoKeys(f'{OPTION}: {path} cannot be read: {getattr(error, "strerror", None) or error}') from error
    if mode & stat.S_IRWXO:
        raise NoKeys(
            f'{OPTION}: {path} is accessible to all users (mode {stat.S_IMODE(mode):04o}); set its mode to 0600 or 0640'
        )
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith('#')]
    if not keys:
        raise NoKeys(f'{OPTION}: {path} contains no key')
    return keys


def create_file(path: str) -> bool:
    """Create a key file with two new keys. The second key will encrypt after the next rotation.

    Return False, and change nothing, if the file exists.
    """
    aside = _write_aside(path, [_new_key(), _new_key()])
    try:
        # Give the new file its name by a hard link.
        # Unlike a rename, a link never replaces a file that another process has created meanwhile.
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    return True


def rotate_file(path: str) -> int:
    """Rotate the keys of a file and return how many keys it has now.

    The last key becomes the first one, which encrypts. A new key is added as the last one. Of the other keys, only the
    previous first key is kept. Owner and mode of the file are kept. Raises NoKeys if the file can't be used.
    """
    path = os.path.realpath(path)
    SealingKeys.read(path)
    keys = read_file(path)
    kept = [*keys[-1:], *keys[:-1]][: KEPT - 1]
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
