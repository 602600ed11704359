"""Keys of encrypted volumes, by castellan: from Barbican, or whatever [key_manager]backend names.

    keys = KeyManager(conf)
    keys.passphrase(key_id)         # what opens the volume: hexadecimal digits

Cinder has a key made for each volume, and tells its id. Where Cinder has one fixed key, so have the computes. The
library is loaded with the first other key: it costs a tenth of a second of CPU.
"""
from __future__ import annotations

import threading
from typing import Any

from oslo_config import cfg

from kilonova import concurrency, errors

# The id of the fixed key, in Cinder and in all that share one with it.
FIXED = '00000000-0000-0000-0000-000000000000'
_MOST_TEXT = 300
# Seconds that a key is waited for: the library itself waits for its service without an end, and who waits for a key has
# its server's turn on the host, for which a delete waits.
ANSWER = 30.0


class KeyNotAvailable(errors.Unavailable):
    msg_fmt = 'Key %(key)s can not be had: %(reason)s'


class KeyManager:
    """Asks with the account of [key_manager] (``auth_type``), which may read the keys of all projects."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: tuple[Any, Any] | None = None
        # Two that import it at once find a module that is half made.
        self._loading = threading.Lock()

    def passphrase(self, key_id: str) -> str:
        """What a volume with this key is opened with. KeyNotAvailable."""
        if key_id == FIXED:
            return self._fixed()
        found: list[str] = []
        reasons = [f'there is no answer after {ANSWER:g} s']
        # What never gets one ends with the connection.
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
            # Without its cause: nobody knows what of the key is in that.
            reasons.append(errors.shortened(' '.join(f'{type(error).__name__}: {error}'.split()), _MOST_TEXT))

    def _fixed(self) -> str:
        try:
            found = bytes.fromhex(self._conf.key_manager.fixed_key or '').hex()
        except ValueError:
            found = ''
        if not found:
            raise KeyNotAvailable(key=FIXED, reason='[key_manager]fixed_key of this host must be that of cinder.conf: '
                                                    'pairs of hexadecimal digits')
        return found


def _load(conf: cfg.ConfigOpts) -> tuple[Any, Any]:
    """The backend, and what makes its credential of the options."""
    from castellan import key_manager
    from castellan.common import utils
    return key_manager.API(conf), utils.credential_factory
