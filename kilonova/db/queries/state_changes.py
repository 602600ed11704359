"""Changes of servers' states, told to one listener of this process once they are committed.

    state_changes.watch(callback)       # callback(Change); None: nobody any more

Without a listener a change costs nothing more; with one it costs a statement that reads the states before.
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
    """``before`` and ``after`` are (vm state, task state); ``created``: the server is new in this cell."""

    database: engine.Database
    uuid: str
    before: States
    after: States
    created: bool = False


_watchers: list[Callable[[Change], None]] = []


def watch(callback: Callable[[Change], None] | None) -> None:
    """Tell ``callback`` from now on, instead of whoever was told before. It must not block, nor raise."""
    _watchers[:] = [] if callback is None else [callback]


def before(conn: sa.Connection, uuid: str, created: bool = False) -> States | None:
    """The states in this transaction, None when nobody wants to know. ``created``: of a server that isn't there yet."""
    if not _watchers:
        return None
    if created:
        return None, None
    row = conn.execute(sa.select(instances.c.vm_state, instances.c.task_state).where(
        instances.c.uuid == uuid, instances.c.deleted == 0)).first()
    return (row.vm_state, row.task_state) if row is not None else None


def changed(conn: sa.Connection, uuid: str, was: States | None, vm_state: str | None, task_state: str | None,
            created: bool = False) -> None:
    """Say so when the transaction is committed. ``vm_state`` None: it stayed."""
    if was is None:
        return
    after = (vm_state or was[0], task_state)

    def tell(database: engine.Database) -> None:
        for callback in tuple(_watchers):
            callback(Change(database, uuid, was, after, created))
    if created or after != was:
        engine.after_commit(conn, tell)
