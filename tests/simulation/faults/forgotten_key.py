"""A host forgets the keys of orders that it finished, and does what is sent twice twice."""

from __future__ import annotations

from kilonova.compute.keys import TaskRegistry
from tests.simulation.faults import replace


def install() -> None:
    """Nothing is kept."""

    def _prune(self: TaskRegistry) -> None:
        self._finished.clear()

    replace(TaskRegistry, '_prune', _prune)
