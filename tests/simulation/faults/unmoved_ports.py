"""The ports of a server that is reverted to its source stay bound to the host that it leaves.

The simulator should see ports that are bound elsewhere.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flows import ports
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    def to_host(work: Any, host: str, zone: str | None, requests: Any = None, *, agent_away: bool = False) -> None:
        if work.kind != 'revert':
            real(work, host, zone, requests, agent_away=agent_away)
    real = replace(ports, 'to_host', to_host)
