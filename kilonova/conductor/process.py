"""Which process holds a lease, in words that another process of the same machine can check.

    text = describe('ctl1')              # 'ctl1 boot=… space=4026531836 pid=4711 start=91823'
    is_dead(text, 'ctl1')                # True: that process is gone; its successor needn't wait for its lease to end

Only what is certain counts: equal service host, equal boot of the kernel, equal process namespace (numbers mean
nothing across containers), and no process of that number, or one that started at another time. Everything else, texts
of other systems among it, is not known to be dead.
"""
from __future__ import annotations

import os
import re
from pathlib import Path

_PROC = Path('/proc')
_TEXT = re.compile(r'(?P<host>\S+) boot=(?P<boot>\S+) space=(?P<space>\d+) pid=(?P<pid>\d+) start=(?P<start>\d+)')
# The column of a lease.
_LONGEST = 255


def describe(host: str, pid: int | None = None) -> str:
    """The process (this one) as text; the host alone where the system doesn't tell enough."""
    pid = pid or os.getpid()
    boot, space, start = _boot(), _space(), _stat(pid)[1]
    text = f'{host} boot={boot} space={space} pid={pid} start={start}'
    return text if boot and space and start and len(text) <= _LONGEST else host[:_LONGEST]


def is_dead(text: str | None, host: str) -> bool:
    """Whether the process that ``describe`` gave this text is certainly gone; ``host``: the asker's own."""
    found = _TEXT.fullmatch(text or '')
    if found is None or (found['host'], found['boot'], found['space']) != (host, _boot(), _space()):
        return False
    pid = int(found['pid'])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It is there and somebody else's: what it is can't be read everywhere.
        pass
    state, start = _stat(pid)
    if start is None:
        return False
    return start != found['start'] or (state in 'ZX' and _threads_are_gone(pid))


def _threads_are_gone(pid: int) -> bool:
    """A process whose first thread ended looks dead while others of it work."""
    try:
        tasks = [entry.name for entry in (_PROC / str(pid) / 'task').iterdir()]
    except OSError:
        return False
    return all((_stat(pid, task)[0] or 'X') in 'ZX' for task in tasks)


def _stat(pid: int, task: str | None = None) -> tuple[str, str | None]:
    """State and start time (ticks since the boot) of a process or a thread of it; None: it can't be read."""
    path = _PROC / str(pid) / (f'task/{task}/stat' if task else 'stat')
    try:
        # The name in parentheses may hold anything.
        fields = path.read_text(errors='replace').rpartition(')')[2].split()
    except OSError:
        return '', None
    return fields[0], fields[19]


def _boot() -> str | None:
    try:
        return (_PROC / 'sys/kernel/random/boot_id').read_text().strip()
    except OSError:
        return None


def _space() -> str | None:
    try:
        return ''.join(filter(str.isdigit, os.readlink(_PROC / 'self/ns/pid')))
    except OSError:
        return None
