"""Live migrations of a server that are under way."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.fields import Field, Fields, column, micro
from kilonova.api.rules import ADMIN, MANAGER, PREFIX, rule
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import live_migrations_under_way as under_way
from kilonova.api.services.accept import VIEW, WORK, Found
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.db.queries import migrations
from kilonova.errors import NotFound

INDEX, SHOW = f'{PREFIX}servers:migrations:index', f'{PREFIX}servers:migrations:show'
SEE_HOSTS = f'{INDEX}:host'
ABORT, FORCE = f'{PREFIX}servers:migrations:delete', f'{PREFIX}servers:migrations:force_complete'
RULES = (
    rule(INDEX, MANAGER, 'List the live migrations of a server that are under way.'),
    rule(SEE_HOSTS, ADMIN, 'See the hosts of the live migrations of a server.'),
    rule(SHOW, ADMIN, 'Show a live migration of a server that is under way.'),
    rule(ABORT, MANAGER, 'Abort a live migration of a server that is under way.'),
    rule(FORCE, MANAGER, 'Force a live migration of a server to its end.'),
)


# --- what is shown ---------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Viewer:
    """``hosts``: whether the caller sees from where to where."""

    hosts: bool


def _host(name: str) -> Callable[[Row, Viewer], Any]:
    return lambda row, viewer: row[name] if viewer.hosts else None


def _bytes(what: str, part: str) -> Field:
    return Field(f'{what}_{part}_bytes', column(f'{what}_{part}'))


FIELDS = Fields(
    Field('created_at', lambda row, viewer: micro(row['created_at'])),
    Field('dest_compute', _host('dest_compute')),
    Field('dest_host', _host('dest_host')),
    Field('dest_node', _host('dest_node')),
    *(_bytes('disk', part) for part in ('processed', 'remaining', 'total')),
    Field('id', column('id')),
    *(_bytes('memory', part) for part in ('processed', 'remaining', 'total')),
    Field('server_uuid', column('instance_uuid')),
    Field('source_compute', _host('source_compute')),
    Field('source_node', _host('source_node')),
    Field('status', column('status')),
    Field('updated_at', lambda row, viewer: micro(row['updated_at'])),
    Field('uuid', column('uuid'), since=59),
    Field('user_id', column('user_id'), since=80),
    Field('project_id', column('project_id'), since=80),
)


# --- what may be said ------------------------------------------------------------------------------------------------
FORCE_BODY = Obj(Prop('force_complete', {'type': 'null'}, required=True))
# Before they run they can be aborted from this version on.
_EARLY = 65


# --- use cases -------------------------------------------------------------------------------------------------------
class NotLive(NotFound):
    msg_fmt = 'Migration %(id)s for server %(uuid)s is not live-migration.'


class NotUnderWay(NotFound):
    msg_fmt = 'Migration %(id)s for server %(uuid)s is not in progress.'


class Unknown(NotFound):
    msg_fmt = 'In-progress live migration %(id)s is not found for server %(uuid)s.'


def _under_way(server: Found) -> list[dict[str, Any]]:
    """The newest first."""
    if server.cell is None:
        return []
    with server.cell.read() as conn:
        return migrations.by_instance(conn, server.uuid, statuses=migrations.LIVE_RUNNING, types=(under_way.LIVE,))


def _one(server: Found, identifier: str) -> dict[str, Any]:
    """One of them by its number: Unknown, NotLive, NotUnderWay (all 404)."""
    row = under_way.find(server, identifier)
    if row is None:
        raise Unknown(id=identifier, uuid=server.uuid)
    if row['migration_type'] != under_way.LIVE:
        raise NotLive(id=identifier, uuid=server.uuid)
    if row['status'] not in migrations.LIVE_RUNNING:
        raise NotUnderWay(id=identifier, uuid=server.uuid)
    return row


# --- handlers --------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """GET /servers/{server_id}/migrations."""
    viewer = Viewer(hosts=call.may(SEE_HOSTS))
    return {'migrations': [FIELDS.render(row, viewer, call.version) for row in _under_way(call.server)]}


def show(call: Call) -> Any:
    """GET /servers/{server_id}/migrations/{migration_id}."""
    row = _one(call.server, call.path['migration_id'])
    return {'migration': FIELDS.render(row, Viewer(hosts=True), call.version)}


def abort(call: Call) -> None:
    """DELETE /servers/{server_id}/migrations/{migration_id}."""
    statuses = under_way.ABORTED if call.version >= _EARLY else under_way.RUNNING
    under_way.abort(call.backend, call.ctxt, call.server, call.path['migration_id'], statuses)


def force_complete(call: Call) -> None:
    """POST /servers/{server_id}/migrations/{migration_id}/action."""
    under_way.force_complete(call.backend, call.ctxt, call.server, call.path['migration_id'])


# --- routes ----------------------------------------------------------------------------------------------------------
_PATH = f'{SERVER}/migrations'
ROUTES = (
    Route('GET', _PATH, index, INDEX, server=VIEW, asks=(SEE_HOSTS,), since=23),
    Route('GET', f'{_PATH}/{{migration_id}}', show, SHOW, server=VIEW, since=23),
    Route('DELETE', f'{_PATH}/{{migration_id}}', abort, ABORT, status=202, server=WORK, since=24),
    Route('POST', f'{_PATH}/{{migration_id}}/action', force_complete, FORCE, body=FORCE_BODY, status=202,
          action='force_complete', server=WORK, since=22),
)
