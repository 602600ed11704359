"""Accelerator requests that were made for nothing stay: no conductor looks for them.

The simulator should see requests that never go.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows import accelerators
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def drop_abandoned(env: Any) -> int:
        return 0

    replace(accelerators, 'drop_abandoned', drop_abandoned)
