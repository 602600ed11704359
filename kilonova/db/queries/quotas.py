"""Limits of projects (API database) and what they use (cells, and build requests that have no cell yet)."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models

quotas = api_models.Quota.__table__
classes = api_models.QuotaClass.__table__
requests = api_models.BuildRequest.__table__
instances = cell_models.Instance.__table__

# The only class whose limits count: those of all projects.
DEFAULT_CLASS = 'default'


def limits(conn: Any, project_id: str | None) -> dict[str, int]:
    """resource → limit where the database says one: the project's own, else the default class's. One statement."""
    parts = [sa.select(sa.literal(0).label('own'), classes.c.resource, classes.c.hard_limit).where(
        classes.c.class_name == DEFAULT_CLASS)]
    if project_id is not None:
        parts.append(sa.select(sa.literal(1).label('own'), quotas.c.resource, quotas.c.hard_limit).where(
            quotas.c.project_id == project_id))
    rows = sorted((tuple(row) for row in conn.execute(sa.union_all(*parts))), key=lambda row: row[0])
    return {resource: limit for _, resource, limit in rows if limit is not None}


def usage(conn: Any, project_id: str) -> dict[str, int]:
    """What the servers of a project in one cell use: {instances, cores, ram (MiB)}. One statement."""
    count, cores, ram = conn.execute(sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(instances.c.vcpus), 0),
        sa.func.coalesce(sa.func.sum(instances.c.memory_mb), 0)).where(
        instances.c.project_id == project_id, instances.c.deleted == 0)).one()
    return {'instances': int(count), 'cores': int(cores), 'ram': int(ram)}


def requested(conn: Any, project_id: str) -> dict[str, int]:
    """The same for servers that no cell was chosen for yet. One statement, and one row whatever waits."""
    # PostgreSQL's operators want the type, the others' functions take the text.
    kind: Any = sa.cast if conn.dialect.name == 'postgresql' else sa.type_coerce
    stored = kind(requests.c.instance, sa.JSON)

    def total(name: str) -> Any:
        return sa.func.coalesce(sa.func.sum(stored['nova_object.data', name].as_integer()), 0)
    count, cores, ram = conn.execute(sa.select(sa.func.count(), total('vcpus'), total('memory_mb')).where(
        requests.c.project_id == project_id)).one()
    return {'instances': int(count), 'cores': int(cores), 'ram': int(ram)}
