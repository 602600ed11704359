"""CPU time and memory of the processes of a one-machine cloud, by the name of their service.

before = cpu_seconds(var)
…
spent = used(before, cpu_seconds(var))      # {'api': 1.25, 'compute-gpu1': 0.75, …}
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tools.cloud import process

# What stands beside the services in ``used``: sums of them.
SUMS = ('computes', 'all')
_TICKS = os.sysconf('SC_CLK_TCK')


def cpu_seconds(var: Path, proc: Path = Path('/proc')) -> dict[str, float]:
    """User and system seconds of each service so far, with all the helpers that it ran (qemu-img …)."""
    found: dict[str, float] = {}
    for pid, name in process.marked(var, proc).items():
        try:
            stat = (proc / str(pid) / 'stat').read_text()
            own = time.clock_gettime(_clock_of(pid))
        except OSError:
            continue
        # proc(5): times of waited-for children, in ticks, behind the command in parentheses.
        found[name] = found.get(name, 0.0) + own + sum(map(int, stat.rpartition(')')[2].split()[13:15])) / _TICKS
    return found


def _clock_of(pid: int) -> int:
    """The clock of a process' own CPU time, all its threads together, as clock_getcpuclockid(3) makes it: it counts
    nanoseconds, where proc(5) has ticks of 10 ms, more than a report of a host costs."""
    return (~pid << 3) | 2


def resident_mib(var: Path, proc: Path = Path('/proc')) -> dict[str, float]:
    """Resident memory of each service in MiB; pages that its processes share count in each of them."""
    found: dict[str, float] = {}
    page = os.sysconf('SC_PAGE_SIZE') / 2**20
    for pid, name in process.marked(var, proc).items():
        try:
            resident = int((proc / str(pid) / 'statm').read_text().split()[1])
        except OSError:
            continue
        found[name] = found.get(name, 0.0) + resident * page
    return found


def peak_mib(var: Path, proc: Path = Path('/proc')) -> dict[str, float]:
    """The most resident memory of each service in MiB since ``forget_peaks``."""
    found: dict[str, float] = {}
    for pid, name in process.marked(var, proc).items():
        try:
            status = (proc / str(pid) / 'status').read_text()
        except OSError:
            continue
        # proc(5): "VmHWM:    123456 kB"; a process that just ended has none.
        for line in status.splitlines():
            if line.startswith('VmHWM:'):
                found[name] = found.get(name, 0.0) + int(line.split()[1]) / 2**10
    return found


def forget_peaks(var: Path, proc: Path = Path('/proc')) -> None:
    """Let the peak of each service be what it has now."""
    for pid in process.marked(var, proc):
        # proc(5), clear_refs: 5 sets the peak back, and nothing else.
        with contextlib.suppress(OSError):
            (proc / str(pid) / 'clear_refs').write_text('5')


def used(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What each service used between two looks; the computes also together."""
    spent = {name: after[name] - before.get(name, 0.0) for name in sorted(after)}
    computes = [seconds for name, seconds in spent.items() if name.startswith('compute-')]
    return {**spent, **dict(zip(SUMS, (sum(computes), sum(spent.values())), strict=True))}
