"""The ports of a server that is reverted to its source stay bound to the host that it leaves.

The simulator should see ports that are bound elsewhere.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows.network import port_moves
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def to_source(work: Any, migration: Any, zone: str | None, *, agent_away: bool = False) -> None:
        if work.kind != 'revert':
            real(work, migration, zone, agent_away=agent_away)

    real = replace(port_moves, 'to_source', to_source)
