"""Read and write volume_usage_cache: how much the guests of servers read from volumes and wrote to them.

    rows = volume_usage.count(conn, [{'volume_id': …, 'instance_uuid': …, 'curr_reads': 7, …}])

Computes report these counters periodically.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db.models.base import utcnow
from kilonova.db.models.cell import BlockDeviceMapping, VolumeUsage
from kilonova.db.rows import Row, insert_missing, many

usages = VolumeUsage.__table__
block_devices = BlockDeviceMapping.__table__

COUNTERS = ('reads', 'read_bytes', 'writes', 'write_bytes')


def count(conn: Connection, found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Store the present counters of guests' volumes, and return the stored rows.

    ``found`` are the reported counters: each item has volume_id, instance_uuid, project_id, user_id, availability_zone
    and the four ``curr_*`` counters. Items of servers that don't have the volume any more are ignored, and are not in
    the result. If any counter of a volume is smaller than before, the guest was started again or is on another host.
    Then the old ``curr_*`` values are added to the ``tot_*`` columns. If another server had the volume before, all
    counters in that server's row are added to the ``tot_*`` columns, too, and that row is deleted. Runs at most six SQL
    statements.
    """
    which = usages.c.volume_id.in_({one['volume_id'] for one in found})
    rows = many(conn.execute(sa.select(usages).where(which).order_by(usages.c.id).with_for_update()))
    held = _held(conn, {one['volume_id'] for one in found})
    own = {_pair(row): row for row in rows}
    left: dict[str, list[Row]] = {}
    for row in rows:
        if _pair(row) not in held:
            left.setdefault(row['volume_id'], []).append(row)
    now = utcnow()
    told = [one for one in found if _pair(one) in held]
    changed, new, gone = [], [], []
    for one in told:
        old, ended = own.get(_pair(one)), left.pop(one['volume_id'], [])
        gone += [row['id'] for row in ended]
        values = {**one, **_before(old, one, ended), 'curr_last_refreshed': now}
        if old is None:
            new.append({**values, 'created_at': now, 'deleted': 0})
        else:
            changed.append({**values, 'updated_at': now, 'row_id': old['id']})
    if changed:
        conn.execute(usages.update().where(usages.c.id == sa.bindparam('row_id')), changed)
    insert_missing(conn, usages, new)
    if gone:
        conn.execute(usages.delete().where(usages.c.id.in_(gone)))
    pairs = {_pair(one) for one in told}
    return [
        row for row in many(conn.execute(sa.select(usages).where(which).order_by(usages.c.id))) if _pair(row) in pairs
    ]


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return row['instance_uuid'], row['volume_id']


def _held(conn: Connection, volumes: Collection[str]) -> set[tuple[str, str]]:
    """Return {(server uuid, volume id)} for all servers that have one of these volumes."""
    return {
        (server, volume)
        for server, volume in conn.execute(
            sa.select(block_devices.c.instance_uuid, block_devices.c.volume_id).where(
                block_devices.c.volume_id.in_(volumes), block_devices.c.deleted == 0
            )
        )
    }


def _before(old: Row | None, now: Mapping[str, Any], ended: Sequence[Row]) -> Row:
    """Return the new ``tot_*`` columns of a volume's row: the sums of all counters before the last start of the guest.

    ``old`` is the stored row or None, and ``now`` has the new ``curr_*`` counters. If one of them is smaller than in
    ``old``, the guest was started again, and the old ``curr_*`` counters are added. ``ended`` are the rows of other
    servers that had the volume earlier; all their counters are added.
    """
    before: Row = {'tot_last_refreshed': None, **{f'tot_{name}': 0 for name in COUNTERS}}
    if old is not None:
        before = {name: old[name] for name in before}
        if any(now[f'curr_{name}'] < old[f'curr_{name}'] for name in COUNTERS):
            ended = [*ended, {**old, **{f'tot_{name}': 0 for name in COUNTERS}}]
    for row in ended:
        for name in COUNTERS:
            before[f'tot_{name}'] += row[f'tot_{name}'] + row[f'curr_{name}']
        before['tot_last_refreshed'] = row['curr_last_refreshed']
    return before
