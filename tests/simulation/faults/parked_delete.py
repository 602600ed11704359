"""Finding 1.7: the delete of a server whose operation waits for a slot of a host waits for somebody else's call.

``wake`` passes over what is parked. The simulator should see such a delete take as long as the call does.
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
