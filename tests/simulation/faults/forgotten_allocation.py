"""A delete ends without giving its allocation back: Placement keeps what no server has."""
from __future__ import annotations

from kilonova.clients.placement import PlacementClient


def install() -> None:
    """Each fourth deletion of allocations is only said to be done."""
    original, asked = PlacementClient.delete_allocations, [0]

    def delete_allocations(self: PlacementClient, consumer: str) -> bool:
        asked[0] += 1
        return True if asked[0] % 4 == 0 else original(self, consumer)
    PlacementClient.delete_allocations = delete_allocations  # type: ignore[method-assign]
