"""Finding 1.5: a build that its host undid counts as claimed when it is asked again under the same key.

Nothing is noted in the row of an undo on the host. The simulator should see a server in ERROR since its last write met
a server that is nobody's, though hosts were free.
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
