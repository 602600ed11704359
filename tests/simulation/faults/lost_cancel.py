"""Install a fault: the sweep ignores waiting deletes and the operations that they cancelled.

The simulator should report a delete whose cast was lost and that waits until the operation before it ends by itself.
"""

from __future__ import annotations

from typing import Any

from kilonova.db.queries import operation_leases
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def stopped(
        conn: Any, owner: str, limit: int, age: float = -60.0, after: int = 0
    ) -> tuple[list[str], list[str], int]:
        return [], [], 0

    replace(operation_leases, 'stopped', stopped)
