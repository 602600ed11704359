"""Move deleted rows of a cell to shadow tables, a server together with its related rows, and delete old shadow rows.

    moved = archive(databases.api(), cell, max_rows=1000)       # {'instances': 3, …, 'API_DB.instance_mappings': 3}
    purge(cell, before)                                         # {'shadow_instances': 3, …}

Each chunk is moved in one transaction of the cell. The servers' rows in the API database are deleted first. If the
program dies after that and before the chunk is moved, the next run archives these servers. A server with a running or
waiting operation is not archived. Pending releases (operations that free resources later) do not need the server's row:
they remain, and so do the rows of the devices that they release (operations.md rule 23).
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries.operations import RUN, WAIT

instances = models.Instance.__table__
actions = models.InstanceAction.__table__
events = models.InstanceActionEvent.__table__
tags = models.Tag.__table__
nodes = models.ComputeNode.__table__
devices = models.PciDevice.__table__
task_logs = models.TaskLog.__table__
operations = models.Operation.__table__

# The prefix of the names of API database tables in the results of ``archive``.
API = 'API_DB.'
CHUNK = 1000
SERVERS = 100
# Tables whose rows refer to a server. Action events are not among them, because they refer to actions.
DEPENDANTS = tuple(
    table
    for table in models.Base.metadata.sorted_tables
    if any(key.column.table is instances for key in table.foreign_keys)
)
# Tables whose deleted rows are also archived by themselves, not only together with the rows of their server.
# A table comes before the tables to which its rows refer. In another order, foreign keys would forbid the deletes.
LOOSE = tuple(
    table
    for table in reversed(models.Base.metadata.sorted_tables)
    if table.name in models.SHADOWS and table is not instances and table is not task_logs
)
OF_SERVERS = (
    api_models.InstanceGroupMember.__table__,
    api_models.InstanceMapping.__table__,
    api_models.RequestSpec.__table__,
    api_models.BuildRequest.__table__,
)


def of_cells(moved: Mapping[str, int]) -> int:
    """Return how many rows ``archive`` moved in the cell's database. Rows of the API database are not counted.

    ``moved`` is {table: number of rows}, the result of ``archive``. The names of the API database's tables begin with
    API. ``max_rows`` of ``archive`` limits only the rows of the cell.
    """
    return sum(count for name, count in moved.items() if not name.startswith(API))


def archive(
    api: engine.Database,
    cell: engine.Database,
    *,
    max_rows: int,
    before: datetime.datetime | None = None,
    task_log: bool = False,
) -> Counter[str]:
    """Move deleted rows of a cell's database to the shadow tables, and return the number of moved rows by table.

    If ``before`` is given, only rows that were deleted before this time are moved. At most ``max_rows`` rows are moved,
    or all rows of one server if the server has more. If ``task_log`` is True, the table task_log is included; its rows
    are selected by the time of their last change.
    """
    moved: Counter[str] = Counter()
    for step in (_servers, _loose, *((_task_log,) if task_log else ())):
        while (left := max_rows - of_cells(moved)) > 0:
            found = step(api, cell, min(left, CHUNK), before)
            if not found:
                break
            moved += found
    return moved


# --- archive servers with their related rows -------------------------------------------------------------------------
def _servers(api: engine.Database, cell: engine.Database, limit: int, before: datetime.datetime | None) -> Counter[str]:
    with cell.read() as conn:
        uuids = _next_servers(conn, limit, before)
    with api.read() as conn:
        # Skip servers that have an operation row in the API database (operations.md rule 19).
        # The cell has deleted a skipped server, but the server's boot is not yet completely handed over to the cell.
        busy = (
            set(
                conn.execute(
                    sa.select(operations.c.instance_uuid).where(operations.c.instance_uuid.in_(uuids))
                ).scalars()
            )
            if uuids
            else set()
        )
    uuids = [uuid for uuid in uuids if uuid not in busy]
    if not uuids:
        return Counter()
    return _forget(api, uuids) + _move_servers(cell, uuids)


def _next_servers(conn: Connection, limit: int, before: datetime.datetime | None) -> list[str]:
    """Return the uuids of the deleted servers to archive next.

    These servers have at most ``limit`` rows together. A server that alone has more rows is returned alone.
    """
    busy = sa.exists().where(operations.c.instance_uuid == instances.c.uuid, operations.c.slot.in_([RUN, WAIT]))
    query = sa.select(instances.c.uuid).where(instances.c.deleted != 0, ~busy).order_by(instances.c.id)
    if before is not None:
        query = query.where(instances.c.deleted_at < before)
    found = list(conn.execute(query.limit(min(limit, SERVERS))).scalars())
    counts = _counts(conn, found) if found else {}
    chosen: list[str] = []
    rows = 0
    for uuid in found:
        rows += 1 + counts.get(uuid, 0)
        if chosen and rows > limit:
            break
        chosen.append(uuid)
    return chosen


def _counts(conn: Connection, uuids: Sequence[str]) -> dict[str, int]:
    """Return {server: number of rows that refer to the server}. Runs one SQL statement."""
    parts = [
        sa.select(table.c.instance_uuid, sa.func.count().label('rows'))
        .where(table.c.instance_uuid.in_(uuids))
        .group_by(table.c.instance_uuid)
        for table in DEPENDANTS
    ]
    parts.append(
        sa.select(actions.c.instance_uuid, sa.func.count().label('rows'))
        .join_from(events, actions, events.c.action_id == actions.c.id)
        .where(actions.c.instance_uuid.in_(uuids))
        .group_by(actions.c.instance_uuid)
    )
    every = sa.union_all(*parts).subquery()
    return {
        uuid: int(rows)
        for uuid, rows in conn.execute(
            sa.select(every.c.instance_uuid, sa.func.sum(every.c.rows)).group_by(every.c.instance_uuid)
        )
    }


@engine.retried
def _forget(api: engine.Database, uuids: Sequence[str]) -> Counter[str]:
    with api.write() as conn:
        found = {
            table.name: conn.execute(sa.delete(table).where(table.c.instance_uuid.in_(uuids))).rowcount
            for table in OF_SERVERS
        }
    return +Counter({API + name: count for name, count in found.items()})


@engine.retried
def _move_servers(cell: engine.Database, uuids: Sequence[str]) -> Counter[str]:
    moved: Counter[str] = Counter()
    with cell.write() as conn:
        own = sa.select(actions.c.id).where(actions.c.instance_uuid.in_(uuids))
        moved[events.name] = _move(conn, events, events.c.action_id.in_(own))
        for table in DEPENDANTS:
            moved[table.name] = _move(conn, table, table.c.instance_uuid.in_(uuids))
        # Tags are deleted and not archived, because their table has no column for the time of deletion.
        conn.execute(sa.delete(tags).where(tags.c.resource_id.in_(uuids)))
        moved[instances.name] = _move(conn, instances, instances.c.uuid.in_(uuids))
    return +moved


# --- archive rows of other tables ------------------------------------------------------------------------------------
def _loose(api: engine.Database, cell: engine.Database, limit: int, before: datetime.datetime | None) -> Counter[str]:
    for table in LOOSE:
        wanted = [table.c.deleted != 0, *([table.c.deleted_at < before] if before is not None else [])]
        if table is nodes:
            wanted.append(~sa.exists().where(devices.c.compute_node_id == nodes.c.id))
        elif table is actions:
            wanted.append(~sa.exists().where(events.c.action_id == actions.c.id))
        moved = _move_some(cell, table, limit, wanted)
        if moved:
            return Counter({table.name: moved})
    return Counter()


def _task_log(
    api: engine.Database, cell: engine.Database, limit: int, before: datetime.datetime | None
) -> Counter[str]:
    stamp = sa.func.coalesce(task_logs.c.updated_at, task_logs.c.created_at)
    wanted = [stamp < before] if before is not None else []
    return +Counter({task_logs.name: _move_some(cell, task_logs, limit, wanted)})


@engine.retried
def _move_some(cell: engine.Database, table: sa.Table, limit: int, wanted: Sequence[Any]) -> int:
    with cell.write() as conn:
        return _move(conn, table, *wanted, limit=limit)


def _move(conn: Connection, table: sa.Table, *wanted: sa.ColumnElement[bool], limit: int | None = None) -> int:
    """Move the rows that fulfil all conditions ``wanted`` to the shadow table, and return their number.

    At most ``limit`` rows are moved. The copied rows are deleted by their ids, so rows that are inserted meanwhile are
    kept.
    """
    ids = list(conn.execute(sa.select(table.c.id).where(*wanted).order_by(table.c.id).limit(limit)).scalars())
    shadow, names = models.SHADOWS[table.name], table.columns.keys()
    for chunk in _chunks(ids):
        conn.execute(
            sa.insert(shadow).from_select(names, sa.select(table).where(table.c.id.in_(chunk)), include_defaults=False)
        )
        conn.execute(sa.delete(table).where(table.c.id.in_(chunk)))
    return len(ids)


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


# --- delete archived rows --------------------------------------------------------------------------------------------
def purge(cell: engine.Database, before: datetime.datetime | None = None) -> Counter[str]:
    """Delete all archived rows, or only rows that were deleted before a time.

    Return {name of a shadow table: number of rows that were deleted from it}. For rows that have no time of deletion,
    the time of the last change is compared with ``before``.
    """
    removed: Counter[str] = Counter()
    for shadow in models.SHADOWS.values():
        while count := _purge_some(cell, shadow, before):
            removed[shadow.name] += count
    return removed


@engine.retried
def _purge_some(cell: engine.Database, shadow: sa.Table, before: datetime.datetime | None) -> int:
    stamp = sa.func.coalesce(shadow.c.deleted_at, shadow.c.updated_at, shadow.c.created_at)
    query = sa.select(shadow.c.shadow_id).where(*([stamp < before] if before is not None else []))
    with cell.write() as conn:
        ids = list(conn.execute(query.order_by(shadow.c.shadow_id).limit(CHUNK)).scalars())
        if ids:
            conn.execute(sa.delete(shadow).where(shadow.c.shadow_id.in_(ids)))
    return len(ids)
