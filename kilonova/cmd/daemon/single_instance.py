"""Allow only one process at a time to use a directory.

    sole = SoleUse(conf.state_path, 'compute', f'kilonova-compute of host {conf.host}')   # raises StartRefused
    sole.end()

The process holds a lock on a file in the directory. The kernel releases the lock when the process ends for any reason.
The file is never removed. Otherwise one process could lock the removed file, and another process a new file of the same
name.
"""

from __future__ import annotations

import fcntl
import os

from kilonova.cmd.daemon.program import StartRefused


class SoleUse:
    """The exclusive use of a directory, until ``end`` is called or the process ends.

    ``who`` describes this process. If another process wants the directory, its error message contains this text. The
    constructor raises StartRefused if another process uses the directory.
    """

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
            raise StartRefused(
                f'{holder} already uses {directory}. Each {name} needs its own host, state_path and instances_path'
            ) from None
        self._file.truncate(0)
        self._file.write(f'{who} (pid {os.getpid()})\n')
        self._file.flush()

    def end(self) -> None:
        """Release the directory for other processes."""
        self._file.close()
