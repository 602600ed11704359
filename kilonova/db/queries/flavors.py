"""Read and write flavors, their extra specs, and the projects that may use private flavors (API database).

A flavor is a dict of its columns plus ``extra_specs`` {key: value}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, exc

from kilonova.db import engine
from kilonova.db.engine import Database
from kilonova.db.models import api as models
from kilonova.db.queries import owners, patterns
from kilonova.db.queries.owners import Owner
from kilonova.errors import FlavorExists, FlavorIdExists

flavors = models.Flavor.__table__
extra_specs = models.FlavorExtraSpec.__table__
projects = models.FlavorProject.__table__

SORT_KEYS = (
    'created_at',
    'description',
    'disabled',
    'ephemeral_gb',
    'flavorid',
    'id',
    'is_public',
    'memory_mb',
    'name',
    'root_gb',
    'rxtx_factor',
    'swap',
    'updated_at',
    'vcpu_weight',
    'vcpus',
)


def _visible(owner: Owner) -> Any:
    """Return the condition that the owner may see a flavor: it is public, or the owner's project has access.

    An owner without a project sees only public flavors.
    """
    if owner is owners.ALL:
        return sa.true()
    granted = sa.exists().where(projects.c.flavor_id == flavors.c.id, owners.of(projects.c.project_id, owner))
    return sa.or_(flavors.c.is_public == sa.true(), granted)


def get(conn: Connection, flavorid: str, owner: Owner) -> dict[str, Any] | None:
    """Return a flavor that the owner may see, with its extra specs, or None. Runs one SQL statement."""
    rows = (
        conn.execute(
            sa.select(flavors, extra_specs.c.key.label('spec_key'), extra_specs.c.value.label('spec_value'))
            .join_from(flavors, extra_specs, extra_specs.c.flavor_id == flavors.c.id, isouter=True)
            .where(flavors.c.flavorid == flavorid, _visible(owner))
        )
        .mappings()
        .all()
    )
    if not rows:
        return None
    found = {name: value for name, value in rows[0].items() if not name.startswith('spec_')}
    found['extra_specs'] = {row['spec_key']: row['spec_value'] for row in rows if row['spec_key'] is not None}
    return found


def id_of(conn: Connection, flavorid: str) -> int | None:
    """Return the flavor's database id, which servers store as instance_type_id, or None for an unknown flavor."""
    return conn.execute(sa.select(flavors.c.id).where(flavors.c.flavorid == flavorid)).scalar()


def page(
    conn: Connection,
    *,
    owner: Owner,
    is_public: bool | None = None,
    min_ram: int = 0,
    min_disk: int = 0,
    name: str | None = None,
    order: Sequence[tuple[str, str]] = (),
    limit: int = 1000,
    marker: Mapping[str, Any] | None = None,
    specs: bool = True,
    disabled: bool | None = None,
) -> list[dict[str, Any]]:
    """Return a page of the flavors that the owner may see. Runs two SQL statements.

    ``name`` is a regular expression. ``order`` is a list of (column, 'asc' or 'desc'), and ``marker`` is the last
    flavor of the previous page. Raises InvalidPattern or SlowPattern if the database rejects the regular expression or
    takes too long for it.
    """
    full = [*order, *(() if any(key == 'id' for key, _ in order) else (('id', 'asc'),))]
    query = (
        sa.select(flavors)
        .where(_visible(owner), flavors.c.memory_mb >= min_ram, flavors.c.root_gb >= min_disk)
        .limit(limit)
    )
    if is_public is not None:
        query = query.where(flavors.c.is_public == sa.literal(is_public))
    if disabled is not None:
        query = query.where(sa.func.coalesce(flavors.c.disabled, sa.false()) == sa.literal(disabled))
    if name is not None:
        query = query.where(flavors.c.name.regexp_match(name))
    if marker is not None:
        query = query.where(_after(full, marker))
    for key, direction in full:
        column = flavors.c[key]
        query = query.order_by(
            *(
                part.desc() if direction == 'desc' else part.asc()
                for part in (sa.case((column.is_(None), 0), else_=1), column)
            )
        )
    with patterns.from_user(*([name] if name is not None else ())):
        found = [dict(row) for row in conn.execute(query).mappings()]
    _add_specs(conn, found if specs else [])
    return found


def _add_specs(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    by_id = {row['id']: row for row in rows}
    for row in rows:
        row['extra_specs'] = {}
    if by_id:
        for flavor_id, key, value in conn.execute(
            sa.select(extra_specs.c.flavor_id, extra_specs.c.key, extra_specs.c.value).where(
                extra_specs.c.flavor_id.in_(list(by_id))
            )
        ):
            by_id[flavor_id]['extra_specs'][key] = value


def _after(order: Sequence[tuple[str, str]], marker: Mapping[str, Any]) -> Any:
    reached: list[Any] = []
    options = []
    after: sa.ColumnElement[bool]
    for key, direction in order:
        column, value, down = flavors.c[key], marker[key], direction == 'desc'
        if value is None:
            after = sa.false() if down else column.is_not(None)
        else:
            after = sa.or_(column < value, column.is_(None)) if down else column > value
        options.append(sa.and_(*reached, after))
        reached.append(column.is_(None) if value is None else column == value)
    return sa.or_(*options)


@engine.retried
def create(database: Database, values: Mapping[str, Any]) -> dict[str, Any]:
    """Insert a flavor and return it.

    Raises FlavorExists if another flavor has this name, and FlavorIdExists if another flavor has this id.
    """
    try:
        with database.write() as conn:
            conn.execute(flavors.insert(), dict(values))
            return get(conn, values['flavorid'], owners.ALL)  # type: ignore[return-value]
    except exc.IntegrityError as error:
        if not engine.is_duplicate(error):
            raise
    with database.read() as conn:
        taken = conn.execute(sa.select(flavors.c.id).where(flavors.c.name == values['name'])).first()
    raise FlavorExists(name=values['name']) if taken else FlavorIdExists(flavor_id=values['flavorid'])


@engine.retried
def describe(database: Database, flavorid: str, description: str | None) -> dict[str, Any] | None:
    """Change the description of a flavor and return the flavor, or None for an unknown flavor."""
    with database.write() as conn:
        conn.execute(flavors.update().where(flavors.c.flavorid == flavorid).values(description=description))
        return get(conn, flavorid, owners.ALL)


@engine.retried
def delete(database: Database, flavorid: str) -> bool:
    """Delete a flavor with its extra specs and access list. Return False if the flavor does not exist.

    Servers keep their own copies of the flavor.
    """
    with database.write() as conn:
        flavor_id = id_of(conn, flavorid)
        if flavor_id is None:
            return False
        for table in (extra_specs, projects):
            conn.execute(table.delete().where(table.c.flavor_id == flavor_id))
        conn.execute(flavors.delete().where(flavors.c.id == flavor_id))
    return True


@engine.retried
def set_specs(database: Database, flavorid: str, values: Mapping[str, str]) -> bool:
    """Set these extra specs of a flavor, and keep its other extra specs. Return False for an unknown flavor."""
    with database.write() as conn:
        flavor_id = id_of(conn, flavorid)
        if flavor_id is None:
            return False
        conn.execute(
            extra_specs.delete().where(extra_specs.c.flavor_id == flavor_id, extra_specs.c.key.in_(list(values)))
        )
        if values:
            conn.execute(
                extra_specs.insert(),
                [{'flavor_id': flavor_id, 'key': key, 'value': value} for key, value in values.items()],
            )
    return True


@engine.retried
def delete_spec(database: Database, flavor_id: int, key: str) -> bool:
    """Delete one extra spec of a flavor. Return False if the flavor did not have it."""
    with database.write() as conn:
        return bool(
            conn.execute(
                extra_specs.delete().where(extra_specs.c.flavor_id == flavor_id, extra_specs.c.key == key)
            ).rowcount
        )


def access(conn: Connection, flavor_id: int) -> list[str]:
    """Return the projects that may use a private flavor."""
    return list(
        conn.execute(
            sa.select(projects.c.project_id).where(projects.c.flavor_id == flavor_id).order_by(projects.c.id)
        ).scalars()
    )


@engine.retried
def grant(database: Database, flavor_id: int, project_id: str) -> list[str] | None:
    """Give a project access to a flavor. Return all projects with access, or None if the project had access already."""
    try:
        with database.write() as conn:
            conn.execute(projects.insert(), {'flavor_id': flavor_id, 'project_id': project_id})
            return access(conn, flavor_id)
    except exc.IntegrityError as error:
        if not engine.is_duplicate(error):
            raise
    return None


@engine.retried
def revoke(database: Database, flavor_id: int, project_id: str) -> list[str] | None:
    """Withdraw a project's access to a flavor. Return the remaining projects, or None if the project had no access."""
    with database.write() as conn:
        if not conn.execute(
            projects.delete().where(projects.c.flavor_id == flavor_id, projects.c.project_id == project_id)
        ).rowcount:
            return None
        return access(conn, flavor_id)
