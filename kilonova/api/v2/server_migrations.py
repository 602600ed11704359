"""The live migrations of a server that are in progress (``/servers/{server_id}/migrations``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.fields import Field, Fields, column, micro
from kilonova.api.rules import ADMIN, MANAGER, PREFIX, rule
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import ask_host, server_operations
from kilonova.api.services.server_operations import VIEW, WORK, ServerRef
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.db import engine
from kilonova.db.queries import instances, migrations, operations
from kilonova.errors import Invalid, KilonovaError, LiveMigrationAborted, NotFound

INDEX, SHOW = f'{PREFIX}servers:migrations:index', f'{PREFIX}servers:migrations:show'
SEE_HOSTS = f'{INDEX}:host'
ABORT, FORCE = f'{PREFIX}servers:migrations:delete', f'{PREFIX}servers:migrations:force_complete'
RULES = (
    rule(INDEX, MANAGER, 'List the live migrations of a server that are in progress.'),
    rule(SEE_HOSTS, ADMIN, 'See the hosts of the live migrations of a server.'),
    rule(SHOW, ADMIN, 'Show a live migration of a server that is in progress.'),
    rule(ABORT, MANAGER, 'Abort a live migration of a server that is in progress.'),
    rule(FORCE, MANAGER, 'Force a live migration of a server to complete.'),
)


LIVE = 'live-migration'
# RUNNING: the statuses in which a live migration can be aborted in every microversion.
# ABORTED: the statuses in which a live migration can be aborted from microversion 2.65 on.
RUNNING = ('running',)
ABORTED = ('queued', 'preparing', *RUNNING)


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ServerMigrationView:
    """The values that the response fields need in addition to a migration's row.

    ``hosts``: whether the caller may see the source and destination hosts.
    """

    hosts: bool


def _host(name: str) -> Callable[[Row, ServerMigrationView], Any]:
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


# --- request schemas -------------------------------------------------------------------------------------------------
FORCE_BODY = Obj(Prop('force_complete', {'type': 'null'}, required=True))
# From this microversion on a live migration can also be aborted while it is queued or prepared.
_EARLY = 65


# --- functions that the handlers call, and their errors --------------------------------------------------------------
class NotLiveMigration(NotFound):
    """Error 404 when a live migration is shown: the migration with this id is of another type."""

    msg_fmt = 'Migration %(id)s for server %(uuid)s is not live-migration.'


class NotUnderWay(NotFound):
    """Error 404 when a live migration is shown: the live migration has ended."""

    msg_fmt = 'Migration %(id)s for server %(uuid)s is not in progress.'


class ServerMigrationNotFound(NotFound):
    """Error 404 when a live migration is aborted: the server has no migration with this id."""

    msg_fmt = 'Migration %(migration_id)s not found for instance %(instance_id)s'


class NoMigrationToForce(Invalid):
    """Error 400 when a live migration is forced to complete: the server has no migration with this id."""

    msg_fmt = ServerMigrationNotFound.msg_fmt


class InvalidMigrationState(Invalid):
    """Error 400: the migration's status does not allow the request."""

    msg_fmt = (
        'Migration %(migration_id)s state of instance %(instance_uuid)s is %(state)s. Cannot %(method)s while '
        'the migration is in this state.'
    )


class Unknown(NotFound):
    """Error 404 when a live migration is shown: the server has no migration with this id."""

    msg_fmt = 'In-progress live migration %(id)s is not found for server %(uuid)s.'


def _under_way(server: ServerRef) -> list[dict[str, Any]]:
    """Return the rows of the server's live migrations that are in progress, newest first."""
    if server.cell is None:
        return []
    with server.cell.read() as conn:
        return migrations.by_instance(conn, server.uuid, statuses=migrations.LIVE_RUNNING, types=(LIVE,))


def _find(server: ServerRef, identifier: str) -> dict[str, Any] | None:
    """Return the row of a migration of the server by its id, or None if the server has no such migration."""
    row = None
    # Only a number with fewer than 10 digits can be the id of a migration. Do not search for any other text.
    if server.cell is not None and identifier.isascii() and identifier.isdigit() and len(identifier) < 10:
        with server.cell.read() as conn:
            row = migrations.get(conn, migration_id=int(identifier))
    return row if row is not None and row['instance_uuid'] == server.uuid else None


def _one(server: ServerRef, identifier: str) -> dict[str, Any]:
    """Return the row of the server's live migration with the id ``identifier``, if the migration is in progress.

    Raises (all with status 404):
        Unknown: The server has no migration with this id.
        NotLiveMigration: The migration has another type, such as a resize.
        NotUnderWay: The live migration has ended.
    """
    row = _find(server, identifier)
    if row is None:
        raise Unknown(id=identifier, uuid=server.uuid)
    if row['migration_type'] != LIVE:
        raise NotLiveMigration(id=identifier, uuid=server.uuid)
    if row['status'] not in migrations.LIVE_RUNNING:
        raise NotUnderWay(id=identifier, uuid=server.uuid)
    return row


def _check(row: Mapping[str, Any], statuses: tuple[str, ...], method: str) -> None:
    if row['migration_type'] != LIVE or row['status'] not in statuses:
        raise InvalidMigrationState(
            migration_id=row['id'], instance_uuid=row['instance_uuid'], state=row['status'], method=method
        )


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List the live migrations of a server that are in progress (``GET /servers/{server_id}/migrations``)."""
    viewer = ServerMigrationView(hosts=call.may(SEE_HOSTS))
    return {'migrations': [FIELDS.render(row, viewer, call.version) for row in _under_way(call.server)]}


def show(call: Call) -> Any:
    """Return a live migration that is in progress (``GET /servers/{server_id}/migrations/{migration_id}``)."""
    row = _one(call.server, call.path['migration_id'])
    return {'migration': FIELDS.render(row, ServerMigrationView(hosts=True), call.version)}


def abort(call: Call) -> None:
    """Cancel a live migration (``DELETE /servers/{server_id}/migrations/{migration_id}``).

    The conductor and the hosts that work on the migration undo it, unless the guest runs on its destination already.

    Raises:
        ServerMigrationNotFound: The server has no such migration (404).
        InvalidMigrationState: The migration is not a live migration, or its status does not allow an abort (400).
        InstanceInvalidState: The server's state does not allow an abort (409).
    """
    backend, ctxt, server, identifier = call.backend, call.ctxt, call.server, call.path['migration_id']
    server_operations.check(ctxt, server, 'live_migrate.abort')
    row = _find(server, identifier)
    if row is None:
        raise ServerMigrationNotFound(migration_id=identifier, instance_id=server.uuid)
    _check(row, ABORTED if call.version >= _EARLY else RUNNING, 'abort live migration')
    error = LiveMigrationAborted()
    reason = {
        'class': type(error).__name__,
        'message': str(error),
        'code': error.code,
        'details': None,
        'request_id': ctxt.request_id,
    }
    cancelled: list[str] = []

    def cancel(conn: engine.Connection) -> None:
        uuid = operations.cancel_kind(conn, server.uuid, 'live_migrate', reason)
        if uuid is None:
            found = migrations.get(conn, migration_id=row['id']) or row
            raise InvalidMigrationState(
                migration_id=row['id'], instance_uuid=server.uuid, state=found['status'], method='abort live migration'
            )
        cancelled[:] = [uuid]

    operations.accept(
        server.cell,
        instance_uuid=server.uuid,
        event='live_migrate.abort',
        operation=None,
        action=server_operations.action(ctxt, 'live_migration_cancel'),
        write=cancel,
    )
    # Send RPC messages: the source and destination hosts stop their work for the cancelled live migration.
    # A conductor undoes the cancelled migration.
    # If a message is lost, a conductor finds the cancelled operation row in the database later.
    for uuid in cancelled:
        for host in sorted({row['source_compute'], row['dest_compute']} - {None}):
            if backend.compute is not None:
                backend.compute.cancel(ctxt, server=host, key_prefix=f'{uuid}/')
        backend.conductor.run_operation(ctxt, operation=uuid)


def force_complete(call: Call) -> None:
    """Force a live migration to complete (``POST /servers/{server_id}/migrations/{migration_id}/action``).

    The API calls the source host and waits for the result. An error of the host becomes the response. The event of the
    instance action also stores the success or the error.

    Raises:
        NoMigrationToForce: The server has no such migration (400).
        InvalidMigrationState: The migration is not a live migration, or it is not running (400).
        InstanceInvalidState: The server's state does not allow the request (409).
        ServerHostDown, HostTooOld: The source host is down, or its release does not have this RPC method (409).
        KilonovaError: The host refuses the request.
    """
    backend, ctxt, server, identifier = call.backend, call.ctxt, call.server, call.path['migration_id']
    server_operations.check(ctxt, server, 'live_migrate.force')
    row = _find(server, identifier)
    if row is None:
        raise NoMigrationToForce(migration_id=identifier, instance_id=server.uuid)
    _check(row, RUNNING, 'force complete')
    operations.accept(
        server.cell,
        instance_uuid=server.uuid,
        event='live_migrate.force',
        operation=None,
        action=server_operations.action(ctxt, 'live_migration_force_complete'),
    )
    began, problem = instances.utcnow(), 'Unknown error'
    try:
        ask_host.ask(backend, ctxt, server, 'live_migration_force_complete')
        problem = ''
    except KilonovaError as error:
        problem = str(error)
        raise
    finally:
        event = {
            'event': 'compute_live_migration_force_complete',
            'result': 'Error' if problem else 'Success',
            'host': row['source_compute'],
            'start_time': began,
            'finish_time': instances.utcnow(),
            'details': problem or None,
            'traceback': None,
        }
        with server.cell.write() as conn:
            instances.add_events(conn, server.uuid, ctxt.request_id, [event])
            instances.finish_action(conn, server.uuid, ctxt.request_id, 'Error' if problem else None)


# --- routes of the handlers ------------------------------------------------------------------------------------------
_PATH = f'{SERVER}/migrations'
ROUTES = (
    Route('GET', _PATH, index, INDEX, server=VIEW, asks=(SEE_HOSTS,), since=23),
    Route('GET', f'{_PATH}/{{migration_id}}', show, SHOW, server=VIEW, since=23),
    Route('DELETE', f'{_PATH}/{{migration_id}}', abort, ABORT, status=202, server=WORK, since=24),
    Route(
        'POST',
        f'{_PATH}/{{migration_id}}/action',
        force_complete,
        FORCE,
        body=FORCE_BODY,
        status=202,
        action='force_complete',
        server=WORK,
        since=22,
    ),
)
