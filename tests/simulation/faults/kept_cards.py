"""A server keeps what it has for a port that was deleted in Neutron: its device, its card and what it guaranteed.

The simulator should see ports in info caches that Neutron doesn't have.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows.network import network_changed
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _detach(work: Any, port_id: str) -> None:
        return None

    replace(network_changed, '_detach', _detach)
