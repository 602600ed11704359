"""Migrations of servers (``/os-migrations``): the migrations of one or of all projects in all cells.

The list is sorted newest first from microversion 2.59 on, and oldest first before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils

from kilonova.api.fields import ABSENT, Field, Fields, column, micro
from kilonova.api.rules import ADMIN, MANAGER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells, first
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import migrations
from kilonova.errors import Invalid, UnknownMarker

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX = f'{PREFIX}os-migrations:index'
ALL_PROJECTS, HOST = f'{INDEX}:all_projects', f'{INDEX}:host'
RULES = (
    rule(INDEX, MANAGER, 'List the migrations of a project.'),
    rule(ALL_PROJECTS, ADMIN, 'List the migrations of all or of other projects.'),
    rule(HOST, ADMIN, 'See the hosts of migrations.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
QUERY = QuerySchema.of(
    Prop('hidden', t.ANY_TEXT),
    Prop('host', t.ANY_TEXT),
    Prop('instance_uuid', t.ANY_TEXT),
    Prop('source_compute', t.ANY_TEXT),
    Prop('status', t.ANY_TEXT),
    Prop('migration_type', t.ANY_TEXT),
    Prop('limit', t.NUMBER_TEXT, since=59, single=True),
    Prop('marker', t.UUID, since=59, single=True),
    Prop('changes-since', t.DATE_TEXT, since=59, single=True),
    Prop('changes-before', t.DATE_TEXT, since=66, single=True),
    Prop('user_id', t.ANY_TEXT, since=80),
    Prop('project_id', t.ANY_TEXT, since=80),
    strict_since=59,
)


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


@dataclass(frozen=True)
class MigrationView:
    """The values that the response fields need in addition to a migration's row.

    ``hosts``: whether the caller may see the source and destination hosts. ``links``: the builder of links for the
    request.
    """

    hosts: bool
    links: Any = None


# Statuses of live migrations that are in progress. Such a migration has links to ``/servers/{server_id}/migrations``.
_UNDER_WAY = frozenset(('queued', 'preparing', 'running', 'post-migrating'))


def _links(row: Row, viewer: MigrationView) -> Any:
    if row['migration_type'] != 'live-migration' or row['status'] not in _UNDER_WAY:
        return ABSENT
    return viewer.links.of(f'servers/{row["instance_uuid"]}/migrations', row['id'])


def _host(name: str) -> Callable[[Row, MigrationView], Any]:
    return lambda row, viewer: row[name] if viewer.hosts else None


FIELDS = Fields(
    Field('created_at', lambda row, viewer: micro(row['created_at'])),
    Field('dest_compute', _host('dest_compute')),
    Field('dest_host', _host('dest_host')),
    Field('dest_node', _host('dest_node')),
    Field('id', column('id')),
    Field('instance_uuid', column('instance_uuid')),
    Field('new_instance_type_id', column('new_instance_type_id')),
    Field('old_instance_type_id', column('old_instance_type_id')),
    Field('source_compute', _host('source_compute')),
    Field('source_node', _host('source_node')),
    Field('status', column('status')),
    Field('updated_at', lambda row, viewer: micro(row['updated_at'])),
    Field('migration_type', column('migration_type'), since=23),
    Field('links', _links, since=23),
    Field('uuid', column('uuid'), since=59),
    Field('user_id', column('user_id'), since=80),
    Field('project_id', column('project_id'), since=80),
)


# --- functions that the handlers call, and their errors --------------------------------------------------------------
def _page(
    backend: Backend,
    filters: dict[str, Any],
    *,
    limit: int | None,
    marker: str | None = None,
    seen_by: str | None = None,
) -> list[dict[str, Any]]:
    """Return one page of migrations, newest first, or all migrations if ``limit`` is None.

    Cells that do not answer are left out.

    ``filters`` restrict the list. ``marker`` is the uuid of the last migration of the page before. ``seen_by`` is the
    project of a caller who may not see other projects, or None. A marker of another project is then reported as
    unknown, so that the caller does not learn that it exists.

    Raises:
        UnknownMarker: No cell has the migration ``marker``, or the caller may not see it (400).
        Unanswered: The migration ``marker`` may be in a cell that does not answer (503).
    """
    rows: list[dict[str, Any]] = []
    last = _find(backend, marker, seen_by) if marker is not None else None

    def ask(cell: Database) -> list[dict[str, Any]]:
        with cell.read() as conn:
            known = last is not None and migrations.get(conn, uuid=marker) is not None
            found = migrations.list_migrations(
                conn, filters=filters, limit=None if last and not known else limit, marker=marker if known else None
            )
        return [row for row in found if known or last is None or _rank(row) < _rank(last)]

    for _, found in ask_cells(backend.compute_cells(), ask, []):
        rows.extend(found)
    rows.sort(key=_rank, reverse=True)
    return rows[:limit]


def _find(backend: Backend, uuid: str, seen_by: str | None) -> dict[str, Any]:
    def find(conn: Connection) -> dict[str, Any] | None:
        row = migrations.get(conn, uuid=uuid)
        return row if row is not None and seen_by in (None, row['project_id']) else None

    return first(backend.compute_cells(), find, UnknownMarker(marker=uuid))


def _rank(row: dict[str, Any]) -> tuple[Any, int]:
    return row['created_at'], row['id']


# --- handlers of requests --------------------------------------------------------------------------------------------
PAGED_SINCE, BEFORE_SINCE, OWNERS_SINCE = 59, 66, 80
_PLAIN = ('host', 'instance_uuid', 'source_compute', 'status', 'migration_type')


def index(call: Call) -> Any:
    """List migrations (``GET /os-migrations``)."""
    filters: dict[str, Any] = {name: call.one(name) for name in _PLAIN if call.one(name) is not None}
    filters.update(_hidden(call), **_changed(call))
    everything = call.may(ALL_PROJECTS)
    filters.update(_owner(call, everything))
    paged = call.version >= PAGED_SINCE
    limit = call.limit() if paged else None
    rows = (
        []
        if limit == 0
        else _page(
            call.backend,
            filters,
            limit=limit,
            marker=call.one('marker') if paged else None,
            seen_by=None if everything else call.ctxt.project_id,
        )
    )
    if not paged:
        rows.reverse()
    viewer = MigrationView(hosts=call.may(HOST), links=call.links)
    body: dict[str, Any] = {'migrations': [FIELDS.render(row, viewer, call.version) for row in rows]}
    if paged and rows and len(rows) == limit:
        body['migrations_links'] = call.links.next('os-migrations', call.query, rows[-1]['uuid'])
    return body


def _hidden(call: Call) -> dict[str, bool]:
    text = call.one('hidden')
    try:
        return {} if text is None else {'hidden': strutils.bool_from_string(text, strict=True)}
    except ValueError as error:
        raise Invalid(str(error)) from None


def _changed(call: Call) -> dict[str, Any]:
    since = call.one('changes-since') if call.version >= PAGED_SINCE else None
    before = call.one('changes-before') if call.version >= BEFORE_SINCE else None
    if since and before and t.when(since) > t.when(before):
        raise Invalid('The value of changes-since must be less than or equal to changes-before.')
    found = {'changes_since': since, 'changes_before': before}
    return {name: t.when(value) for name, value in found.items() if value}


def _owner(call: Call, everything: bool) -> dict[str, str]:
    """Return the request's filters project_id and user_id as a dict, after checking that the caller may use them.

    ``everything`` is True if the policy rule ALL_PROJECTS lets the caller list the migrations of all projects. Raises
    PolicyNotAuthorized (403) if ``everything`` is False and project_id is not the caller's own project, or is missing.
    """
    wanted = {name: call.one(name) for name in ('project_id', 'user_id')} if call.version >= OWNERS_SINCE else {}
    owner = {name: value for name, value in wanted.items() if value is not None}
    if owner.get('project_id') != call.ctxt.project_id and not everything:
        call.authorise(ALL_PROJECTS)
    return owner


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (Route('GET', '/os-migrations', index, INDEX, query=QUERY, asks=(ALL_PROJECTS, HOST)),)
