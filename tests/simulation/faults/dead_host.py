"""Finding 1.3: a dead host holds up a conductor.

Each call to a host that is known to be down waits for its time-out, and urgent work has no limit a host. The simulator
should see a boot elsewhere that doesn't end while deletes wait for the dead host.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor.runner import HostSlots, Runner
from kilonova.conductor.work import Environment, Work


def install() -> None:
    """See the module."""
    Environment.known_down = lambda self, db, host: False  # type: ignore[method-assign]
    original = Runner.take_host

    def take_host(self: Runner, host: str, work: Work) -> bool:
        if not _urgent(work):
            return original(self, host, work)
        with self._lock:
            self._hosts.setdefault(host, HostSlots()).taken[True] += 1
            work.slot_urgent = True
        return True
    Runner.take_host = take_host  # type: ignore[method-assign]


def _urgent(work: Any) -> bool:
    from kilonova.conductor import runner
    return runner.is_urgent(work)
