"""How many servers of a project have which flavor: what quotas of resource classes and PCI aliases are counted by.

The servers' own copies of their flavors count, so a flavor that was changed or deleted since changes nothing. Results
have a row for each combination of sizes, extra specs and what of an image changes amounts, however many servers have
it; one statement each.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import json_columns
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

# Servers that wait for their deletion (soft-delete) count against no quota, until somebody wants them back.
COUNTS = sa.or_(sa.func.coalesce(instances.c.vm_state, '') != VmState.SOFT_DELETED.value,
                instances.c.task_state == TaskState.RESTORING.value)

# What a server's image may say of amounts besides its flavor.
IMAGE_PROPERTIES = ('hw_cpu_policy', 'hw_mem_encryption')
SIZES = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap')

Flavor = dict[str, Any]


class Alike(NamedTuple):
    """``number`` servers with equal flavors {vcpus, memory_mb, root_gb, ephemeral_gb, swap, extra_specs; image: its
    IMAGE_PROPERTIES}; ``wanted``: the flavor that they are being resized to."""

    number: int
    flavor: Flavor
    wanted: Flavor | None = None


def in_cell(conn: Connection, project_id: str, besides: Sequence[str] = ()) -> list[Alike]:
    """The servers of a cell that count, but those ``besides``."""
    stored, args = (json_columns.of(conn.dialect.name, column) for column in (extras.c.flavor, operations.c.args))
    columns = [*_columns(stored, ('cur', 'nova_object.data'), 'have'),
               *_columns(args, ('flavor', 'nova_object.data'), 'want'), *image_columns()]
    query = sa.select(*columns).select_from(
        instances.outerjoin(extras, extras.c.instance_uuid == instances.c.uuid).outerjoin(
            operations, sa.and_(operations.c.instance_uuid == instances.c.uuid, operations.c.kind == 'resize'))).where(
        instances.c.project_id == project_id, instances.c.deleted == 0,
        COUNTS)
    if besides:
        query = query.where(instances.c.uuid.not_in(list(besides)))
    return _alike(conn, query)


def waiting(conn: Connection, project_id: str) -> list[tuple[str, Alike]]:
    """(uuid, its flavor) of each server that no cell was chosen for yet."""
    stored = json_columns.of(conn.dialect.name, requests.c.instance)
    kept = [stored['nova_object.data', 'system_metadata', f'image_{name}'].as_string().label(f'image_{name}')
            for name in IMAGE_PROPERTIES]
    query = sa.select(requests.c.instance_uuid, *_columns(stored, (
        'nova_object.data', 'flavor', 'nova_object.data'), 'have'), *kept).where(requests.c.project_id == project_id)
    return [(row['instance_uuid'], Alike(1, _flavor(row, 'have') or {})) for row in conn.execute(query).mappings()]


def of_silent(conn: Connection, cell_ids: Sequence[int], project_id: str, besides: Sequence[str] = ()) -> list[Alike]:
    """The servers of cells that don't answer, as the API database knows them."""
    stored = json_columns.of(conn.dialect.name, specs.c.spec)
    properties = ('nova_object.data', 'image', 'nova_object.data', 'properties', 'nova_object.data')
    image = [stored[(*properties, name)].as_string().label(f'image_{name}') for name in IMAGE_PROPERTIES]
    have = _columns(stored, ('nova_object.data', 'flavor', 'nova_object.data'), 'have')
    query = sa.select(*have, *image).select_from(
        mappings.outerjoin(specs, specs.c.instance_uuid == mappings.c.instance_uuid)).where(
        mappings.c.cell_id.in_(list(cell_ids)), mappings.c.project_id == project_id,
        sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false())
    if besides:
        query = query.where(mappings.c.instance_uuid.not_in(list(besides)))
    return _alike(conn, query)


def image_columns() -> list[Any]:
    """Columns of a select from instances: what ``image_of`` reads."""
    table = system_metadata
    # Each value by itself: a row that is there twice must not count its server twice.
    return [sa.select(sa.func.max(table.c.value)).where(
        table.c.instance_uuid == instances.c.uuid, table.c.key == f'image_{name}', table.c.deleted == 0)
        .correlate(instances).scalar_subquery().label(f'image_{name}') for name in IMAGE_PROPERTIES]


def image_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Those of the IMAGE_PROPERTIES that a server's image has."""
    return {name: str(row[f'image_{name}']) for name in IMAGE_PROPERTIES if row[f'image_{name}'] is not None}


def _columns(stored: sa.ColumnElement[Any], path: tuple[str, ...], prefix: str) -> list[Any]:
    return [*(stored[(*path, name)].as_integer().label(f'{prefix}_{name}') for name in SIZES),
            stored[(*path, 'extra_specs')].as_string().label(f'{prefix}_extra_specs')]


def _alike(conn: Connection, query: sa.Select[Any]) -> list[Alike]:
    # Grouped outside: PostgreSQL doesn't see that two expressions with parameters are the same.
    inside = query.subquery()
    rows = conn.execute(sa.select(sa.func.count().label('number'), *inside.c).group_by(*inside.c)).mappings()
    return [Alike(row['number'], _flavor(row, 'have') or {}, _flavor(row, 'want')) for row in rows]


def _flavor(row: Mapping[Any, Any], prefix: str) -> Flavor | None:
    if row.get(f'{prefix}_vcpus') is None:
        return None
    sizes = {name: row[f'{prefix}_{name}'] or 0 for name in SIZES}
    return {**sizes, 'extra_specs': json.loads(row[f'{prefix}_extra_specs'] or '{}'), 'image': image_of(row)}
