"""Count a project's servers by flavor, for quotas of resource classes and PCI aliases.

The servers' own copies of their flavors are counted, so later changes of a flavor have no effect. A result has one row
for each combination of sizes, extra specs and relevant image properties, whatever the number of servers. Each function
runs one SQL statement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import envelopes, json_columns
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.states import TaskState, VmState

requests = api_models.BuildRequest.__table__
mappings = api_models.InstanceMapping.__table__
specs = api_models.RequestSpec.__table__
instances = cell_models.Instance.__table__
extras = cell_models.InstanceExtra.__table__
system_metadata = cell_models.InstanceSystemMetadata.__table__
operations = cell_models.Operation.__table__

# The condition that a server counts against quotas.
# A soft-deleted server, which will be deleted later, counts only while it is being restored.
COUNTS = sa.or_(
    sa.func.coalesce(instances.c.vm_state, '') != VmState.SOFT_DELETED.value,
    instances.c.task_state == TaskState.RESTORING.value,
)

# Image properties that change the amounts of resources which a server needs, in addition to its flavor.
IMAGE_PROPERTIES = ('hw_cpu_policy', 'hw_mem_encryption')
SIZES = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap')

Flavor = dict[str, Any]


class Alike(NamedTuple):
    """A group of servers whose flavors and relevant image properties are equal.

    Attributes:
        number: Number of the servers.
        flavor: {vcpus, memory_mb, root_gb, ephemeral_gb, swap, extra_specs, image}. ``image`` is {property: value} with
            the image properties that count for quotas (IMAGE_PROPERTIES).
        wanted: The new flavor if the servers are being resized. None if they are not.
    """

    number: int
    flavor: Flavor
    wanted: Flavor | None = None


def in_cell(conn: Connection, project_id: str, besides: Sequence[str] = ()) -> list[Alike]:
    """Count a project's servers in a cell by flavor, and return one ``Alike`` for each group of equal servers.

    The servers' own copies of their flavors and relevant image properties are compared. Only servers that count against
    quotas are included. ``besides`` are the uuids of servers that are left out.
    """
    stored, args = (json_columns.of(conn.dialect.name, column) for column in (extras.c.flavor, operations.c.args))
    columns = [
        *_columns(stored, ('cur', envelopes.FIELDS), 'have'),
        *_columns(args, ('flavor', envelopes.FIELDS), 'want'),
        *image_columns(),
    ]
    query = (
        sa.select(*columns)
        .select_from(
            instances.outerjoin(extras, extras.c.instance_uuid == instances.c.uuid).outerjoin(
                operations, sa.and_(operations.c.instance_uuid == instances.c.uuid, operations.c.kind == 'resize')
            )
        )
        .where(instances.c.project_id == project_id, instances.c.deleted == 0, COUNTS)
    )
    if besides:
        query = query.where(instances.c.uuid.not_in(list(besides)))
    return _alike(conn, query)


def waiting(conn: Connection, project_id: str) -> list[tuple[str, Alike]]:
    """Return a pair (uuid, ``Alike`` with number 1) for each server of a project that has no cell yet.

    The ``Alike`` has the server's flavor. The servers are read from the build requests.
    """
    stored = json_columns.of(conn.dialect.name, requests.c.instance)
    kept = [
        stored[envelopes.FIELDS, 'system_metadata', f'image_{name}'].as_string().label(f'image_{name}')
        for name in IMAGE_PROPERTIES
    ]
    query = sa.select(
        requests.c.instance_uuid, *_columns(stored, (envelopes.FIELDS, 'flavor', envelopes.FIELDS), 'have'), *kept
    ).where(requests.c.project_id == project_id)
    return [(row['instance_uuid'], Alike(1, _flavor(row, 'have') or {})) for row in conn.execute(query).mappings()]


def of_silent(conn: Connection, cell_ids: Sequence[int], project_id: str, besides: Sequence[str] = ()) -> list[Alike]:
    """Return a project's servers in cells that don't answer, as one ``Alike`` for each group with equal flavors.

    The servers and flavors are read from the API database. Servers in ``besides`` (uuids) are left out.
    """
    stored = json_columns.of(conn.dialect.name, specs.c.spec)
    properties = (envelopes.FIELDS, 'image', envelopes.FIELDS, 'properties', envelopes.FIELDS)
    image = [stored[(*properties, name)].as_string().label(f'image_{name}') for name in IMAGE_PROPERTIES]
    have = _columns(stored, (envelopes.FIELDS, 'flavor', envelopes.FIELDS), 'have')
    query = (
        sa.select(*have, *image)
        .select_from(mappings.outerjoin(specs, specs.c.instance_uuid == mappings.c.instance_uuid))
        .where(
            mappings.c.cell_id.in_(list(cell_ids)),
            mappings.c.project_id == project_id,
            sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false(),
        )
    )
    if besides:
        query = query.where(mappings.c.instance_uuid.not_in(list(besides)))
    return _alike(conn, query)


def image_columns() -> list[Any]:
    """Return the columns of a SELECT on instances that read the image properties in IMAGE_PROPERTIES of each server.

    These properties can change the resources that the quotas count.

    ``image_of`` returns the properties from a row of the result.
    """
    table = system_metadata
    # Each value is a subquery. With a join, a duplicate metadata row would count its server twice.
    return [
        sa.select(sa.func.max(table.c.value))
        .where(table.c.instance_uuid == instances.c.uuid, table.c.key == f'image_{name}', table.c.deleted == 0)
        .correlate(instances)
        .scalar_subquery()
        .label(f'image_{name}')
        for name in IMAGE_PROPERTIES
    ]


def image_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return {property: value} for a server's image properties that count for quotas.

    ``row`` is a result row with the columns that ``image_columns`` returned.
    """
    return {name: str(row[f'image_{name}']) for name in IMAGE_PROPERTIES if row[f'image_{name}'] is not None}


def _columns(stored: sa.ColumnElement[Any], path: tuple[str, ...], prefix: str) -> list[Any]:
    return [
        *(stored[(*path, name)].as_integer().label(f'{prefix}_{name}') for name in SIZES),
        stored[(*path, 'extra_specs')].as_string().label(f'{prefix}_extra_specs'),
    ]


def _alike(conn: Connection, query: sa.Select[Any]) -> list[Alike]:
    # Group in an outer SELECT, because PostgreSQL does not see that GROUP BY repeats an expression with parameters.
    inside = query.subquery()
    rows = conn.execute(sa.select(sa.func.count().label('number'), *inside.c).group_by(*inside.c)).mappings()
    return [Alike(row['number'], _flavor(row, 'have') or {}, _flavor(row, 'want')) for row in rows]


def _flavor(row: Mapping[Any, Any], prefix: str) -> Flavor | None:
    if row.get(f'{prefix}_vcpus') is None:
        return None
    sizes = {name: row[f'{prefix}_{name}'] or 0 for name in SIZES}
    return {**sizes, 'extra_specs': json.loads(row[f'{prefix}_extra_specs'] or '{}'), 'image': image_of(row)}
