"""Notify one listener of this process about changes of servers' states after they are committed.

    state_changes.watch(callback)       # callback(Change); None removes the listener

A listener is a function that is called for each change. If a listener is set, each change runs one more SQL statement,
which reads the old states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.cell import Instance

instances = Instance.__table__

States = tuple[str | None, str | None]


@dataclass(frozen=True)
class Change:
    """A committed change of a server's states.

    Attributes:
        database: The database of the server's cell.
        uuid: The server.
        before: (vm state, task state) before the change.
        after: (vm state, task state) after the change.
        created: True if the server is new in this cell.
    """

    database: engine.Database
    uuid: str
    before: States
    after: States
    created: bool = False


_watchers: list[Callable[[Change], None]] = []


def watch(callback: Callable[[Change], None] | None) -> None:
    """Set the function that is called for each change. None removes the function that was set before.

    ``callback`` must not block and must not raise an exception.
    """
    _watchers[:] = [] if callback is None else [callback]


def before(conn: sa.Connection, uuid: str, created: bool = False) -> States | None:
    """Return the server's (vm state, task state) before a change of its row.

    The caller then changes the row and passes the result to ``changed`` as ``was``. Without a listener the result is
    None, and no statement is run. ``created`` is True if the server is new in this cell; then the result is (None,
    None).
    """
    if not _watchers:
        return None
    if created:
        return None, None
    row = conn.execute(
        sa.select(instances.c.vm_state, instances.c.task_state).where(
            instances.c.uuid == uuid, instances.c.deleted == 0
        )
    ).first()
    return (row.vm_state, row.task_state) if row is not None else None


def changed(
    conn: sa.Connection,
    uuid: str,
    was: States | None,
    vm_state: str | None,
    task_state: str | None,
    created: bool = False,
) -> None:
    """Notify the listener of a server's change of state as soon as the transaction is committed.

    ``was`` are the states before the change, as ``before`` returned them. A ``vm_state`` of None means that the vm
    state does not change.
    """
    if was is None:
        return
    after = (vm_state or was[0], task_state)

    def tell(database: engine.Database) -> None:
        for callback in tuple(_watchers):
            callback(Change(database, uuid, was, after, created))

    if created or after != was:
        engine.after_commit(conn, tell)
