"""Install a fault: a dead host takes all slots of a conductor.

Each call to a host that is known to be down waits for its time-out, and urgent work has no limit for each host. The
simulator should report a boot on another host that doesn't end while deletes wait for the dead host.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.host_liveness import HostLiveness
from kilonova.conductor.workers import HostSlots, OperationSlots
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def known_down(self: HostLiveness, db: Any, host: str) -> bool:
        return False

    def _has_slot(self: OperationSlots[Any], slots: HostSlots[Any], urgent: bool) -> bool:
        has: bool = urgent or limited(self, slots, urgent)
        return has

    replace(HostLiveness, 'known_down', known_down)
    limited = replace(OperationSlots, '_has_slot', _has_slot)
