"""One process a directory: what two at once would break.

    sole = SoleUse(conf.state_path, 'compute', f'kilonova-compute of host {conf.host}')      # daemon.Refused: taken
    sole.end()

A lock on a file of the directory, which the kernel gives back when its process ends in whatever way. The file stays:
removing it would let a third process lock another one of the same name.
"""
from __future__ import annotations

import fcntl
import os

from kilonova.cmd.daemon import Refused


class SoleUse:
    """From now on until ``end`` or the end of the process. ``who``: what another one is told."""

    def __init__(self, directory: str, name: str, who: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, f'{name}.lock')
        self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), 'a+', encoding='utf-8')
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.readline().strip() or 'another process'
            self._file.close()
            raise Refused(f'{holder} works with {directory} already. Each {name} needs a host, a state_path and an '
                          'instances_path of its own') from None
        self._file.truncate(0)
        self._file.write(f'{who} (pid {os.getpid()})\n')
        self._file.flush()

    def end(self) -> None:
        """Another one may have it."""
        self._file.close()
