"""Statements on volume_usage_cache: what servers' guests have read and written of volumes.

    rows = volume_usage.count(conn, [{'volume_id': …, 'instance_uuid': …, 'curr_reads': 7, …}])
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
    """Write what guests count now: volume_id, instance_uuid, project_id, user_id, availability_zone and the four
    ``curr_*``. The rows as they are then, without those of servers that don't have the volume any more.

    A counter that is smaller than it was began anew, with its guest or on another host: what was counted before is
    added to ``tot_*``. So are the rows of servers that had the volume before. Six statements at most.
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
    return [row for row in many(conn.execute(sa.select(usages).where(which).order_by(usages.c.id)))
            if _pair(row) in pairs]


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return row['instance_uuid'], row['volume_id']


def _held(conn: Connection, volumes: Collection[str]) -> set[tuple[str, str]]:
    """(server, volume) where a server has one of these."""
    return {(server, volume) for server, volume in conn.execute(
        sa.select(block_devices.c.instance_uuid, block_devices.c.volume_id).where(
            block_devices.c.volume_id.in_(volumes), block_devices.c.deleted == 0))}


def _before(old: Row | None, now: Mapping[str, Any], ended: Sequence[Row]) -> Row:
    """``tot_*`` of a row that is ``old`` until ``now``, with all that rows of other servers ``ended`` with."""
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
