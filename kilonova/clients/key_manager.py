"""Read the keys of encrypted volumes through castellan, from Barbican or another backend ([key_manager]backend).

    keys = KeyManager(conf)
    keys.passphrase(key_id)         # the passphrase that opens the volume, as hexadecimal digits

Usually the key manager has one key for each volume. Cinder asks the key manager to create the key, and reports the
key's id. If Cinder is configured with one fixed key for all volumes, the computes must have the same fixed key. The
library castellan is only loaded when another key than the fixed key is read, because loading takes 0.1 seconds of CPU
time.
"""

from __future__ import annotations

import threading
from typing import Any

from oslo_config import cfg

from kilonova import concurrency, errors

# The id of the fixed key. All services that share a fixed key with Cinder use this id.
FIXED = '00000000-0000-0000-0000-000000000000'
_MOST_TEXT = 300
# The maximum number of seconds to read a key. The time is limited, because the host holds the server's lock meanwhile.
ANSWER = 30.0


class KeyNotAvailable(errors.Unavailable):
    """A key can't be read."""

    msg_fmt = 'Key %(key)s cannot be read: %(reason)s'


class KeyManager:
    """The reader of keys. It uses the account of [key_manager] (``auth_type``).

    The account must be allowed to read the keys of all projects.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: tuple[Any, Any] | None = None
        # Only one thread at a time may import the library: a second one would get a module that is not fully loaded.
        self._loading = threading.Lock()

    def passphrase(self, key_id: str) -> str:
        """Return the passphrase that opens the volumes with this key, as hexadecimal digits.

        Raises KeyNotAvailable if the key can't be read within ``ANSWER`` seconds.
        """
        if key_id == FIXED:
            return self._fixed()
        found: list[str] = []
        reasons = [f'there is no answer after {ANSWER:g} s']
        # A thread that gets no reply within ANSWER seconds is not stopped. It ends when its connection ends.
        concurrency.spawn(self._ask, key_id, found, reasons, name='key manager').join(ANSWER)
        if not found:
            raise KeyNotAvailable(key=key_id, reason=reasons[-1])
        return found[0]

    def _ask(self, key_id: str, found: list[str], reasons: list[str]) -> None:
        try:
            with self._loading:
                if self._library is None:
                    self._library = _load(self._conf)
            manager, credential = self._library
            found.append(bytes(manager.get(credential(self._conf), key_id).get_encoded()).hex())
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own
            # Only the error itself is logged and not its cause, because the cause might contain parts of the key.
            reasons.append(errors.shortened(' '.join(f'{type(error).__name__}: {error}'.split()), _MOST_TEXT))

    def _fixed(self) -> str:
        try:
            found = bytes.fromhex(self._conf.key_manager.fixed_key or '').hex()
        except ValueError:
            found = ''
        if not found:
            raise KeyNotAvailable(
                key=FIXED,
                reason='[key_manager]fixed_key of this host must have the same value as '
                'in cinder.conf: pairs of hexadecimal digits',
            )
        return found


def _load(conf: cfg.ConfigOpts) -> tuple[Any, Any]:
    """Import castellan, and return (its key manager, function that makes a credential for the key manager's calls).

    The function has one parameter, the configuration: ``credential_factory(conf)``.
    """
    from castellan import key_manager
    from castellan.common import utils

    return key_manager.API(conf), utils.credential_factory
