"""Finding 1.5: a build that its host undid counts as claimed when it is asked again under the same key.

Nothing is noted in the row of an undo on the host. The simulator should see a server in ERROR since its last write met
a server that is nobody's, though hosts were free.
"""
from __future__ import annotations

from kilonova.db.queries import claims


def install() -> None:
    """See the module."""
    claims._mark_undone = lambda conn, key, reason: None
