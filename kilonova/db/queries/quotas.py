"""Read and write the quota limits of projects, users and classes (API database), and read their usage.

The usage is counted in the cells, and for build requests, which have no cell yet, in the API database.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import engine, envelopes, json_columns
from kilonova.db.engine import Database
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries.flavor_usage import COUNTS
from kilonova.db.rows import Row, insert_missing, many

quotas = api_models.Quota.__table__
user_quotas = api_models.ProjectUserQuota.__table__
classes = api_models.QuotaClass.__table__
requests = api_models.BuildRequest.__table__
groups = api_models.InstanceGroup.__table__
mappings = api_models.InstanceMapping.__table__
specs = api_models.RequestSpec.__table__
instances = cell_models.Instance.__table__
operations = cell_models.Operation.__table__

# The only quota class whose limits are enforced. Its limits apply to all projects.
DEFAULT_CLASS = 'default'
# Parameters of statements that run for each request to create servers. The statements are built only once.
_PROJECT, _USER = sa.bindparam('project_id', type_=sa.String), sa.bindparam('user_id', type_=sa.String)
_BESIDES: sa.BindParameter[list[str]] = sa.bindparam('besides', expanding=True)
# {resource: column of instances with the amount that a server uses}. None means that each server counts as one.
COUNTED: dict[str, str | None] = {'instances': None, 'cores': 'vcpus', 'ram': 'memory_mb'}


class Parts(NamedTuple):
    """Quota limits or usage as two dicts {resource: amount}.

    ``shared`` is for the whole project, and ``own`` for one user of the project.
    """

    shared: dict[str, int]
    own: dict[str, int]


# --- limits of quotas ------------------------------------------------------------------------------------------------
def limits(conn: Connection, project_id: str | None, user_id: str | None = None) -> Parts:
    """Return the quota limits that are stored for a project and for one of its users. Runs one SQL statement.

    If the project has no limit for a resource, the limit of the quota class 'default' is returned.
    """
    # The table quota_classes has no unique key. If two rows have the same class and resource, use the newer row.
    rows = sorted(
        tuple(row)
        for row in conn.execute(
            _limits(project_id is not None, user_id is not None), {'project_id': project_id, 'user_id': user_id}
        )
    )
    return Parts(
        {resource: limit for rank, _, resource, limit in rows if rank < 2},
        {resource: limit for rank, _, resource, limit in rows if rank == 2},
    )


@functools.cache
def _limits(of_project: bool, of_user: bool) -> sa.CompoundSelect[Any]:
    parts = [_said(0, classes, classes.c.class_name == DEFAULT_CLASS)]
    if of_project:
        parts.append(_said(1, quotas, quotas.c.project_id == _PROJECT))
        if of_user:
            parts.append(_said(2, user_quotas, user_quotas.c.project_id == _PROJECT, user_quotas.c.user_id == _USER))
    return sa.union_all(*parts)


def _said(rank: int, table: sa.Table, *criteria: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(sa.literal(rank).label('rank'), table.c.id, table.c.resource, table.c.hard_limit).where(
        *criteria, table.c.hard_limit.is_not(None)
    )


def class_limits(conn: Connection, name: str) -> dict[str, int]:
    """Return {resource: limit} with the limits that are set in a quota class."""
    rows = conn.execute(_said(0, classes, classes.c.class_name == name).order_by(classes.c.id))
    return {row.resource: row.hard_limit for row in rows}


def given_to_users(conn: Connection, project_id: str, but: str | None = None) -> dict[str, int]:
    """Return {resource: sum of the limits of the project's users}. The limits of the user ``but`` are left out.

    Unlimited values (less than 0) are not counted.
    """
    query = (
        sa.select(user_quotas.c.resource, sa.func.sum(user_quotas.c.hard_limit))
        .where(user_quotas.c.project_id == project_id, user_quotas.c.hard_limit >= 0)
        .group_by(user_quotas.c.resource)
    )
    if but is not None:
        query = query.where(user_quotas.c.user_id != but)
    return {resource: int(total) for resource, total in conn.execute(query)}


@engine.retried
def set_limits(database: Database, project_id: str, user_id: str | None, values: Mapping[str, int]) -> None:
    """Set quota limits of a project, or of one of its users. Limits of other resources are kept."""
    if not values:
        return
    table, key = _owner(project_id, user_id)
    with database.write() as conn:
        insert_missing(conn, table, [{**key, 'resource': name, 'hard_limit': limit} for name, limit in values.items()])
        conn.execute(
            table.update()
            .where(*(table.c[name] == value for name, value in key.items()), table.c.resource.in_(list(values)))
            .values(hard_limit=sa.case(dict(values), value=table.c.resource))
        )


@engine.retried
def set_class_limits(database: Database, name: str, values: Mapping[str, int]) -> None:
    """Set quota limits of a class. Limits of other resources are kept."""
    if not values:
        return
    with database.write() as conn:
        conn.execute(classes.delete().where(classes.c.class_name == name, classes.c.resource.in_(list(values))))
        conn.execute(
            classes.insert(),
            [{'class_name': name, 'resource': resource, 'hard_limit': limit} for resource, limit in values.items()],
        )


@engine.retried
def delete_limits(database: Database, project_id: str, user_id: str | None = None) -> None:
    """Delete the quota limits of one user, or of the project and all its users if ``user_id`` is None."""
    with database.write() as conn:
        conn.execute(
            user_quotas.delete().where(
                user_quotas.c.project_id == project_id, *([user_quotas.c.user_id == user_id] if user_id else [])
            )
        )
        if user_id is None:
            conn.execute(quotas.delete().where(quotas.c.project_id == project_id))


def _owner(project_id: str, user_id: str | None) -> tuple[sa.Table, dict[str, str]]:
    if user_id is None:
        return quotas, {'project_id': project_id}
    return user_quotas, {'project_id': project_id, 'user_id': user_id}


# --- usage that counts against quotas --------------------------------------------------------------------------------
def usage(conn: Connection, project_id: str, user_id: str | None = None, besides: Sequence[str] = ()) -> Parts:
    """Return the usage of a project, and of one of its users, in one cell: {instances, cores, ram (MiB)}.

    A server that is being resized to a larger size counts with the larger size. A soft-deleted server, which will be
    deleted later, counts only while it is being restored. Servers in ``besides`` (uuids) are left out, because they
    were counted already. Runs one SQL statement.
    """
    return _parts(
        conn.execute(
            _usage(conn.dialect.name, user_id is not None),
            {'project_id': project_id, 'user_id': user_id, 'besides': list(besides)},
        ).one()
    )


@functools.cache
def _usage(dialect: str, of_user: bool) -> sa.Select[Any]:
    args = json_columns.of(dialect, operations.c.args)
    amounts = {
        name: sa.literal(1)
        if column is None
        else _larger(instances.c[column], args['flavor', envelopes.FIELDS, column].as_integer())
        for name, column in COUNTED.items()
    }
    return (
        sa.select(*_sums(amounts, instances.c.user_id, of_user))
        .select_from(
            instances.outerjoin(
                operations, sa.and_(operations.c.instance_uuid == instances.c.uuid, operations.c.kind == 'resize')
            )
        )
        .where(instances.c.project_id == _PROJECT, instances.c.deleted == 0, COUNTS, instances.c.uuid.not_in(_BESIDES))
    )


def _larger(present: sa.ColumnElement[int], wanted: sa.ColumnElement[int]) -> Any:
    return sa.case((wanted > present, wanted), else_=sa.func.coalesce(present, 0))


def _sums(amounts: Mapping[str, Any], owner: sa.ColumnElement[str], of_user: bool) -> Iterable[Any]:
    for amount in amounts.values():
        yield sa.func.coalesce(sa.func.sum(amount), 0)
    if of_user:
        for amount in amounts.values():
            yield sa.func.coalesce(sa.func.sum(sa.case((owner == _USER, amount), else_=0)), 0)


def _parts(row: Sequence[Any]) -> Parts:
    numbers = [int(value) for value in row]
    return Parts(dict(zip(COUNTED, numbers, strict=False)), dict(zip(COUNTED, numbers[len(COUNTED) :], strict=False)))


def waiting(conn: Connection, project_id: str) -> list[Row]:
    """Return uuid, user_id and amounts by resource for each server that has no cell yet. Runs one SQL statement."""
    return many(conn.execute(_waiting(conn.dialect.name), {'project_id': project_id}))


@functools.cache
def _waiting(dialect: str) -> sa.Select[Any]:
    stored = json_columns.of(dialect, requests.c.instance)
    columns = [
        sa.func.coalesce(stored[envelopes.FIELDS, column].as_integer(), 0).label(name)
        for name, column in COUNTED.items()
        if column
    ]
    return sa.select(
        requests.c.instance_uuid.label('uuid'),
        stored[envelopes.FIELDS, 'user_id'].as_string().label('user_id'),
        sa.literal(1).label('instances'),
        *columns,
    ).where(requests.c.project_id == _PROJECT)


def of_silent(
    conn: Connection, cell_ids: Sequence[int], project_id: str, user_id: str | None = None, besides: Sequence[str] = ()
) -> Parts:
    """Return the usage of a project, and of one of its users, for cells that don't answer. Runs one SQL statement.

    The usage is estimated from the API database: each server that has an instance mapping counts with the flavor in its
    request spec. Servers in ``besides`` (uuids) are left out.
    """
    flavor = json_columns.of(conn.dialect.name, specs.c.spec)
    amounts = {
        name: sa.literal(1)
        if column is None
        else sa.func.coalesce(flavor[envelopes.FIELDS, 'flavor', envelopes.FIELDS, column].as_integer(), 0)
        for name, column in COUNTED.items()
    }
    query = (
        sa.select(*_sums(amounts, mappings.c.user_id, user_id is not None))
        .select_from(mappings.outerjoin(specs, specs.c.instance_uuid == mappings.c.instance_uuid))
        .where(
            mappings.c.cell_id.in_(list(cell_ids)),
            mappings.c.project_id == _PROJECT,
            sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false(),
        )
    )
    if besides:
        query = query.where(mappings.c.instance_uuid.not_in(list(besides)))
    return _parts(conn.execute(query, {'project_id': project_id, 'user_id': user_id}).one())


def server_groups(conn: Connection, project_id: str, user_id: str | None = None) -> tuple[int, int]:
    """Return (number of server groups of a project, number of the user's groups among them). Runs one SQL statement."""
    own = sa.func.coalesce(sa.func.sum(sa.case((groups.c.user_id == user_id, 1), else_=0)), 0)
    total, mine = conn.execute(sa.select(sa.func.count(), own).where(groups.c.project_id == project_id)).one()
    return int(total), int(mine)
