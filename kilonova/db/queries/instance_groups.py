"""Read and write server groups with their policies and members (API database), and read the members' hosts (cells).

    group = get(conn, uuid)         # {'id', 'uuid', 'name', 'policy', 'rules': {…}, 'members': [server uuids], …}
    places(cell_conn, members)      # {server: {hosts}}, including both hosts of a move

A server is a member from its creation until its deletion is complete. When the deletion is complete, the server's
mapping is marked as queued for deletion, and the server's row in instance_group_member is ignored from then on. This
row is deleted when the mapping is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy import Connection, exc

from kilonova import errors, texts
from kilonova.db import engine
from kilonova.db.engine import Database
from kilonova.db.models.api import InstanceGroup, InstanceGroupMember, InstanceGroupPolicy, InstanceMapping
from kilonova.db.models.cell import Instance, Migration
from kilonova.db.queries import owners
from kilonova.db.queries.migrations import ENDED
from kilonova.db.rows import Row, many, one

groups = InstanceGroup.__table__
members = InstanceGroupMember.__table__
policies = InstanceGroupPolicy.__table__
mappings = InstanceMapping.__table__
instances = Instance.__table__
migrations = Migration.__table__

LOG = logging.getLogger(__name__)

# Maximum number of servers in one statement.
CHUNK = 1000


class GroupNotFound(errors.NotFound):
    """No server group has this uuid (HTTP 404)."""

    msg_fmt = 'Instance group %(group_uuid)s could not be found.'


# The condition that a member of a group is a server that isn't deleted.
# A deleted server has no instance mapping, or its mapping is marked as queued for deletion.
_LIVING = sa.and_(
    mappings.c.instance_uuid == members.c.instance_uuid,
    sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false(),
)


# --- read and write server groups ------------------------------------------------------------------------------------
def _groups() -> sa.Select[Any]:
    return sa.select(groups, policies.c.policy, policies.c.rules).select_from(
        groups.outerjoin(policies, policies.c.group_id == groups.c.id)
    )


def _read(row: Row) -> Row:
    """Return a server group as a dict with its policy and its parsed rules, but without its members.

    Rules that cannot be read are logged and ignored. Then anti-affinity allows only one server of the group on a host.
    """
    rules: dict[str, Any] = {}
    try:
        rules = {name: int(value) for name, value in texts.mapping(row['rules']).items()}
    except (ValueError, TypeError) as error:
        LOG.error(
            'Could not read the rules of server group %s (%s: %s); its policy %s is applied without them',
            row['uuid'],
            type(error).__name__,
            error,
            row['policy'],
        )
    return {**row, 'rules': {name: str(value) for name, value in rules.items()}, 'members': []}


def get(conn: Connection, uuid: str) -> Row | None:
    """Return one server group with its members, or None if the group does not exist. Runs two SQL statements."""
    found = one(conn.execute(_groups().where(groups.c.uuid == uuid)))
    if found is None:
        return None
    group = _read(found)
    group['members'] = _members(conn, [group['id']]).get(group['id'], [])
    return group


def page(conn: Connection, owner: owners.Owner, limit: int, offset: int = 0) -> list[Row]:
    """Return a page of the owner's server groups with their members, sorted by id. Runs two SQL statements."""
    query = _groups().where(owners.of(groups.c.project_id, owner)).order_by(groups.c.id).limit(limit).offset(offset)
    rows = [_read(row) for row in many(conn.execute(query))]
    found = _members(conn, [row['id'] for row in rows]) if rows else {}
    return [{**row, 'members': found.get(row['id'], [])} for row in rows]


def _members(conn: Connection, group_ids: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for group_id, uuid in conn.execute(
        sa.select(members.c.group_id, members.c.instance_uuid)
        .join(mappings, _LIVING)
        .where(members.c.group_id.in_(group_ids))
        .order_by(members.c.id)
    ):
        found.setdefault(group_id, []).append(uuid)
    return found


@engine.retried
def create(api_db: Database, values: Row, policy: str, rules: dict[str, str]) -> None:
    """Insert a server group with its policy. ``values`` has uuid, name, project_id and user_id."""
    with api_db.write() as conn:
        if engine.repeated() and conn.execute(sa.select(groups.c.id).where(groups.c.uuid == values['uuid'])).first():
            return
        key = conn.execute(groups.insert().values(values)).inserted_primary_key
        assert key is not None
        conn.execute(policies.insert().values(group_id=key[0], policy=policy, rules=json.dumps(rules)))


@engine.retried
def destroy(api_db: Database, uuid: str) -> bool:
    """Delete a server group, but not its servers. Return False if the group does not exist."""
    with api_db.write() as conn:
        group_id = _lock(conn, uuid)
        if group_id is None:
            return False
        for table in (members, policies):
            conn.execute(table.delete().where(table.c.group_id == group_id))
        conn.execute(groups.delete().where(groups.c.id == group_id))
    return True


def _lock(conn: Connection, uuid: str) -> int | None:
    return conn.execute(sa.select(groups.c.id).where(groups.c.uuid == uuid).with_for_update()).scalar()


# --- change the members of server groups -----------------------------------------------------------------------------
def add_members(conn: Connection, group: tuple[int, str], uuids: Sequence[str]) -> None:
    """Add servers to a ``group`` (id, uuid) by one INSERT.

    Raises GroupNotFound if the group does not exist any more.
    """
    group_id, group_uuid = group
    try:
        conn.execute(members.insert(), [{'group_id': group_id, 'instance_uuid': uuid} for uuid in uuids])
    except exc.IntegrityError as error:
        raise GroupNotFound(group_uuid=group_uuid) from error


def remove_members(conn: Connection, uuids: Iterable[str]) -> None:
    """Remove these servers from all groups that they are in."""
    conn.execute(members.delete().where(members.c.instance_uuid.in_(list(uuids))))


def count_members(conn: Connection, group_id: int) -> int:
    """Return the number of servers of a group."""
    return int(
        conn.execute(
            sa.select(sa.func.count())
            .select_from(members.join(mappings, _LIVING))
            .where(members.c.group_id == group_id)
        ).scalar_one()
    )


def of_server(conn: Connection, uuid: str) -> list[str]:
    """Return the uuids of the groups that a server is in. Runs one SQL statement."""
    return list(
        conn.execute(
            sa.select(groups.c.uuid)
            .join(members, members.c.group_id == groups.c.id)
            .where(members.c.instance_uuid == uuid)
            .order_by(groups.c.id)
        ).scalars()
    )


# --- hosts of the members of server groups ---------------------------------------------------------------------------
def cells_of_members(conn: Connection, uuid: str) -> tuple[Row, dict[str, int | None]] | None:
    """Return (server group without its members, {member: id of its cell}).

    The id is None for a server that has no cell yet. The result is None if the group does not exist any more.
    """
    found = one(conn.execute(_groups().where(groups.c.uuid == uuid)))
    if found is None:
        return None
    rows = conn.execute(
        sa.select(members.c.instance_uuid, mappings.c.cell_id)
        .select_from(members.join(mappings, _LIVING))
        .where(members.c.group_id == found['id'])
        .order_by(members.c.id)
    )
    return _read(found), {row.instance_uuid: row.cell_id for row in rows}


def locked(conn: Connection, uuid: str) -> tuple[Row, dict[str, int | None]] | None:
    """Lock a server group until the end of the transaction, and return (the group, {member: id of its cell}).

    The id is None for a server that has no cell yet. The result is None if the group does not exist any more.
    """
    return cells_of_members(conn, uuid) if _lock(conn, uuid) is not None else None


def places(conn: Connection, uuids: Iterable[str]) -> dict[str, set[str]]:
    """Return {server: hosts} for the servers in ``uuids`` that are on a host of this cell.

    A server whose move hasn't ended has both hosts of the move, because the move may still be confirmed or reverted.
    Runs one SQL statement for each thousand servers.
    """
    names = list(uuids)
    found: dict[str, set[str]] = {}
    for start in range(0, len(names), CHUNK):
        some = names[start : start + CHUNK]
        under_way = sa.and_(
            migrations.c.instance_uuid.in_(some), migrations.c.deleted == 0, migrations.c.status.not_in(ENDED)
        )
        # Three SELECTs read the host of the server, and source and destination of its unfinished moves.
        # Each of the three SELECTs uses an index. A single SELECT with OR would use no index.
        for uuid, host in conn.execute(
            sa.union_all(
                sa.select(instances.c.uuid, instances.c.host).where(
                    instances.c.uuid.in_(some), instances.c.deleted == 0
                ),
                sa.select(migrations.c.instance_uuid, migrations.c.source_compute).where(under_way),
                sa.select(migrations.c.instance_uuid, migrations.c.dest_compute).where(under_way),
            )
        ):
            if host is not None:
                found.setdefault(uuid, set()).add(host)
    return found
