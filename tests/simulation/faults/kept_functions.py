"""A server that is deleted keeps the accelerators behind its ports: its delete looks at its flavor alone.

The simulator should see requests that are no server's.
"""

from __future__ import annotations

from typing import Any

from kilonova.accel import holder
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def has_ports(uuid: str, metadata: Any) -> bool:
        return False

    replace(holder, 'has_ports', has_ports)
