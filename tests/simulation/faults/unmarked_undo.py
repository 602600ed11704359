"""Install a fault: a build that its host undid counts as claimed when it is sent again with the same key.

The row does not record the host's undo. The simulator should report a server in ERROR because its last write met a
server without a host, though hosts were free.
"""

from __future__ import annotations

from typing import Any

from kilonova.db.queries import claims
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _mark_undone(conn: Any, key: str, reason: str) -> None:
        pass

    replace(claims, '_mark_undone', _mark_undone)
