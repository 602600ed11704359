"""Who may not touch a server: ``instances.locked`` and ``locked_by``, and why (system metadata ``locked_reason``)."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.cell import Instance
from kilonova.db.queries import instances as queries
from kilonova.db.queries.servers import LOCKED_REASON
from kilonova.errors import InstanceIsLocked, InstanceNotFound

instances = Instance.__table__


@engine.retried
def lock(database: engine.Database, uuid: str, *, locked_by: str, reason: str | None, again: bool,
         action: dict[str, Any], host: str) -> bool:
    """Lock a server for ``locked_by`` ('owner' or 'admin'), with its action and event.

    ``again`` False: a locked server stays as it is, and the answer is False. Raises InstanceNotFound.
    """
    conditions = [] if again else [sa.func.coalesce(instances.c.locked, sa.false()) == sa.false()]
    with database.write() as conn:
        if not _update(conn, uuid, conditions, locked=True, locked_by=locked_by):
            _living(conn, uuid)
            return False
        queries.set_system_metadata(conn, uuid, {LOCKED_REASON: reason})
        _tell(conn, uuid, action, 'api_lock', host)
    return True


@engine.retried
def unlock(database: engine.Database, uuid: str, *, locked_by: str | None, action: dict[str, Any], host: str) -> None:
    """Unlock a server that is locked by ``locked_by`` as the caller has seen it.

    Raises InstanceNotFound; InstanceIsLocked when somebody else has locked it meanwhile.
    """
    same = instances.c.locked_by.is_(None) if locked_by is None else instances.c.locked_by == locked_by
    with database.write() as conn:
        if not _update(conn, uuid, [same], locked=False, locked_by=None):
            _living(conn, uuid)
            raise InstanceIsLocked(instance_uuid=uuid)
        queries.set_system_metadata(conn, uuid, {LOCKED_REASON: None})
        _tell(conn, uuid, action, 'api_unlock', host)


def _update(conn: sa.Connection, uuid: str, conditions: list[Any], **values: Any) -> bool:
    return conn.execute(instances.update().where(
        instances.c.uuid == uuid, instances.c.deleted == 0, *conditions).values(**values)).rowcount == 1


def _living(conn: sa.Connection, uuid: str) -> None:
    query = sa.select(instances.c.id).where(instances.c.uuid == uuid, instances.c.deleted == 0)
    if conn.execute(query).first() is None:
        raise InstanceNotFound(instance_id=uuid)


def _tell(conn: sa.Connection, uuid: str, action: dict[str, Any], event: str, host: str) -> None:
    now = queries.utcnow()
    queries.start_action(conn, uuid, {**action, 'finish_time': now})
    queries.add_events(conn, uuid, action['request_id'], [
        {'event': event, 'result': 'Success', 'host': host, 'start_time': now, 'finish_time': now}])
