"""Install a fault: `wake` ignores operations that are parked until a slot of their host is free.

The simulator should report that the delete of a server whose operation is parked takes as long as the call in that
slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kilonova.conductor.workers import OperationSlots
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def unpark(self: OperationSlots[Any], uuids: Iterable[str]) -> list[Any]:
        return []

    replace(OperationSlots, 'unpark', unpark)
