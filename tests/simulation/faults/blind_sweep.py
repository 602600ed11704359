"""Install a fault: rows that a conductor holds use up the batch of its sweep, so it never sees later rows.

The simulator should report a delete whose cast was lost and that no sweep finds. A batch is small here, as the
simulated clouds are.
"""

from __future__ import annotations

from typing import Any

from kilonova.db.queries import operation_leases
from tests.simulation.faults import replace

BATCH = 3


def install() -> None:
    """See the module."""

    def free(conn: Any, owner: str, limit: int, age: float = -60.0, after: int = 0) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = original(conn, owner, BATCH, age, after)
        return rows

    original = replace(operation_leases, 'free', free)
