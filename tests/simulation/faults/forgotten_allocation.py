"""A delete ends without giving its allocation back: Placement keeps what no server has."""

from __future__ import annotations

from kilonova.clients.placement import PlacementClient
from tests.simulation.faults import replace


def install() -> None:
    """Each fourth deletion of allocations is only said to be done."""
    asked = [0]

    def delete_allocations(self: PlacementClient, consumer: str) -> bool:
        asked[0] += 1
        done: bool = asked[0] % 4 == 0 or original(self, consumer)
        return done

    original = replace(PlacementClient, 'delete_allocations', delete_allocations)
