"""Describe the process that holds a lease. Another process of the same machine can then check whether it is dead.

Each lease stores the text of its process. The periodic search for operations without an owner (``sweep``) checks the
texts of other processes:

    text = describe('ctl1')              # 'ctl1 boot=… space=4026531836 pid=4711 start=91823'
    is_dead(text, 'ctl1')                # True if that process is gone: its rows can be taken before its lease ends

A process counts as dead only if two conditions hold. First, the text has the same service host, the same boot of the
kernel and the same process namespace, because process ids mean nothing in another container. Second, no process has the
id of the text, or the process with this id has ended or was started at another time. In all other cases a process
counts as not known to be dead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_PROC = Path('/proc')
_TEXT = re.compile(r'(?P<host>\S+) boot=(?P<boot>\S+) space=(?P<space>\d+) pid=(?P<pid>\d+) start=(?P<start>\d+)')
# Maximum length of the column ``host`` in the table of leases, which stores the text.
_LONGEST = 255


def describe(host: str, pid: int | None = None) -> str:
    """Return a text that identifies the process ``pid``, or this process if ``pid`` is None.

    The text has the host, the id of the kernel's boot, the process namespace, the process id and the start time. If
    /proc doesn't have these values, the text is only the name of the host.
    """
    pid = pid or os.getpid()
    boot, space, start = _boot(), _space(), _stat(pid)[1]
    text = f'{host} boot={boot} space={space} pid={pid} start={start}'
    return text if boot and space and start and len(text) <= _LONGEST else host[:_LONGEST]


def is_dead(text: str | None, host: str) -> bool:
    """Return True if a process has certainly ended, and False if it may still run.

    ``text`` is the value that ``describe`` returned for the process. ``host`` is the service host of this process. If
    ``text`` names another service host, the result is False, because the process runs on another machine and can't be
    checked here.
    """
    found = _TEXT.fullmatch(text or '')
    if found is None or (found['host'], found['boot'], found['space']) != (host, _boot(), _space()):
        return False
    pid = int(found['pid'])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # The process exists and belongs to another user. Its state is read below, if the system permits it.
        pass
    state, start = _stat(pid)
    if start is None:
        return False
    return start != found['start'] or (state in 'ZX' and _threads_are_gone(pid))


def _threads_are_gone(pid: int) -> bool:
    """Return whether all threads of a process have ended.

    A process whose first thread has ended looks dead while its other threads still work.
    """
    try:
        tasks = [entry.name for entry in (_PROC / str(pid) / 'task').iterdir()]
    except OSError:
        return False
    return all((_stat(pid, task)[0] or 'X') in 'ZX' for task in tasks)


def _stat(pid: int, task: str | None = None) -> tuple[str, str | None]:
    """Return the state and the start time (in ticks since the boot) of a process, or of its thread ``task``.

    Returns ('', None) if they can't be read.
    """
    path = _PROC / str(pid) / (f'task/{task}/stat' if task else 'stat')
    try:
        # The fields are split after the last ')', because the process name in parentheses may contain any characters.
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
