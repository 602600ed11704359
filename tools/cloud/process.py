"""Processes that outlive the command that started them, and that only we end.

A process is known by its pid *and* its start time (a pid alone may have gone to somebody else), and carries two
marks in its environment, so that it is found even when ``var/`` was removed under it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.cloud.layout import Layout

MARK_VAR = 'KILONOVA_VAR'
MARK_SERVICE = 'KILONOVA_SERVICE'


@dataclass(frozen=True)
class Record:
    """The record beside a pid file: which process runs, since when, and from which configuration."""

    pid: int
    start: str
    digest: str
    began: float


def start_time(pid: int, proc: Path = Path('/proc')) -> str | None:
    """Return boot id and start tick of a living process, or None if there is none (a zombie is none)."""
    try:
        stat = (proc / str(pid) / 'stat').read_text()
        boot = (proc / 'sys/kernel/random/boot_id').read_text().strip()
    except OSError:
        return None
    # The second field is the command in parentheses and may hold blanks and parentheses itself.
    fields = stat.rpartition(')')[2].split()
    return None if fields[0] in 'ZX' else f'{boot}/{fields[19]}'


def record_path(layout: Layout, service: str) -> Path:
    """Return the path of the record of a service."""
    return layout.pid(service).with_suffix('.json')


def running(layout: Layout, service: str) -> Record | None:
    """Return the record of a service that runs, or None.

    A service does not run either if its pid is another process by now.
    """
    try:
        record = Record(**json.loads(record_path(layout, service).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return record if start_time(record.pid) == record.start else None


def recorded(layout: Layout) -> list[str]:
    """Return the services that have a pid file, running or not."""
    return sorted(path.stem for path in (layout.var / 'run').glob('*.pid'))


def child_environment(layout: Layout, service: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a service, without the caller's OS_* and PYTHON* variables."""
    passed = ('PATH', 'HOME', 'LANG', 'LC_ALL', 'TZ', 'KILONOVA_CONCURRENCY')
    kept = {name: os.environ[name] for name in passed if name in os.environ}
    own = {
        'PYTHONUNBUFFERED': '1',
        'TMPDIR': str(layout.var / 'tmp'),
        # setproctitle (gunicorn uses it) writes a title over the environment, and so over our marks; not with this.
        'SPT_NOENV': '1',
    }
    marks = {MARK_VAR: str(layout.var), MARK_SERVICE: service}
    return kept | own | dict(extra) | marks


def start(layout: Layout, service: str, argv: Iterable[str], *, env: Mapping[str, str], digest: str) -> Record:
    """Start a process in a session of its own; what it prints goes to its log file."""
    began = time.time()
    layout.log(service).parent.mkdir(parents=True, exist_ok=True)
    with layout.log(service).open('ab') as log:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=layout.var,
            env=child_environment(layout, service, env),
        )
    record = Record(child.pid, start_time(child.pid) or 'ended', digest, began)
    # The parent ends long before the child does; its exit status is nobody's concern then.
    child.returncode = 0
    layout.pid(service).parent.mkdir(parents=True, exist_ok=True)
    layout.pid(service).write_text(f'{record.pid}\n')
    record_path(layout, service).write_text(json.dumps(asdict(record)) + '\n')
    return record


def marked(var: Path, proc: Path = Path('/proc')) -> dict[int, str]:
    """Return a dict from pid to service of all living processes that carry the marks of the cloud under ``var``."""
    found: dict[int, str] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / 'environ').read_bytes().split(b'\0')
        except OSError:
            continue
        marks = dict(item.split(b'=', 1) for item in environ if item.startswith(b'KILONOVA_') and b'=' in item)
        service = marks.get(MARK_SERVICE.encode())
        if service and marks.get(MARK_VAR.encode()) == os.fsencode(var) and start_time(int(entry.name), proc):
            found[int(entry.name)] = service.decode()
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap() -> None:
    """Collect children of this very process that ended, so that they don't stay as zombies."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _wait_gone(identities: dict[int, str], seconds: float) -> dict[int, str]:
    """Wait until these processes ended; gives back those that didn't."""
    deadline = time.monotonic() + seconds
    while True:
        _reap()
        identities = {pid: start for pid, start in identities.items() if start_time(pid) == start}
        if not identities or time.monotonic() > deadline:
            return identities
        time.sleep(0.05)


def stop(layout: Layout, services: Iterable[str], *, patience: float = 20.0) -> list[str]:
    """End services together, and return the names of those that ran.

    Each gets SIGTERM, and what is left of them after ``patience`` seconds SIGKILL. Their pid files are gone afterwards.
    """
    wanted = set(services)
    mains = {name: record for name in wanted if (record := running(layout, name))}
    for record in mains.values():
        _signal(record.pid, signal.SIGTERM)
    _wait_gone({record.pid: record.start for record in mains.values()}, patience)
    # Workers of a main process that was killed, and helpers that it started.
    left = {pid: name for pid, name in marked(layout.var).items() if name in wanted}
    identities = {pid: start for pid in left if (start := start_time(pid))}
    for pid in _wait_gone(identities, 0.5):
        _signal(pid, signal.SIGKILL)
    _wait_gone(identities, 5.0)
    for name in wanted:
        layout.pid(name).unlink(missing_ok=True)
        record_path(layout, name).unlink(missing_ok=True)
    return sorted(set(mains) | set(left.values()))
