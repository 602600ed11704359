"""Live migrations that are under way: abort one, or force it to its end."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.services import accept, ask_host
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries import instances, migrations, operations
from kilonova.errors import Invalid, KilonovaError, LiveMigrationAborted, NotFound

LIVE = 'live-migration'
# What may be aborted, in each version and from 2.65 on.
RUNNING = ('running',)
ABORTED = ('queued', 'preparing', *RUNNING)


class MigrationNotFound(NotFound):
    msg_fmt = 'Migration %(migration_id)s not found for instance %(instance_id)s'


class NoMigrationToForce(Invalid):
    msg_fmt = MigrationNotFound.msg_fmt


class InvalidMigrationState(Invalid):
    msg_fmt = ('Migration %(migration_id)s state of instance %(instance_uuid)s is %(state)s. Cannot %(method)s while '
               'the migration is in this state.')


def find(server: Found, identifier: str) -> dict[str, Any] | None:
    """A move of the server by its number; None: it has none of that."""
    row = None
    # No number of a row is longer; what is no number names none.
    if server.cell is not None and identifier.isascii() and identifier.isdigit() and len(identifier) < 10:
        with server.cell.read() as conn:
            row = migrations.get(conn, migration_id=int(identifier))
    return row if row is not None and row['instance_uuid'] == server.uuid else None


def _check(row: Mapping[str, Any], statuses: tuple[str, ...], method: str) -> None:
    if row['migration_type'] != LIVE or row['status'] not in statuses:
        raise InvalidMigrationState(migration_id=row['id'], instance_uuid=row['instance_uuid'], state=row['status'],
                                    method=method)


def abort(backend: Backend, ctxt: RequestContext, server: Found, identifier: str, statuses: tuple[str, ...]) -> None:
    """The migration is cancelled; whoever has it takes it back, unless the guest has gone. MigrationNotFound (404),
    InvalidMigrationState (400), InstanceInvalidState (409)."""
    accept.check(ctxt, server, 'live_migrate.abort')
    row = find(server, identifier)
    if row is None:
        raise MigrationNotFound(migration_id=identifier, instance_id=server.uuid)
    _check(row, statuses, 'abort live migration')
    error = LiveMigrationAborted()
    reason = {'class': type(error).__name__, 'message': str(error), 'code': error.code, 'details': None,
              'request_id': ctxt.request_id}
    cancelled: list[str] = []

    def cancel(conn: engine.Connection) -> None:
        uuid = operations.cancel_kind(conn, server.uuid, 'live_migrate', reason)
        if uuid is None:
            found = migrations.get(conn, migration_id=row['id']) or row
            raise InvalidMigrationState(migration_id=row['id'], instance_uuid=server.uuid, state=found['status'],
                                        method='abort live migration')
        cancelled[:] = [uuid]
    operations.accept(server.cell, instance_uuid=server.uuid, event='live_migrate.abort', operation=None,
                      action=accept.action(ctxt, 'live_migration_cancel'), write=cancel)
    # Only so that they needn't wait for a conductor to look at its rows.
    for uuid in cancelled:
        for host in sorted({row['source_compute'], row['dest_compute']} - {None}):
            if backend.compute is not None:
                backend.compute.cancel(ctxt, server=host, key_prefix=f'{uuid}/')
        backend.conductor.run_operation(ctxt, operation=uuid)


def force_complete(backend: Backend, ctxt: RequestContext, server: Found, identifier: str) -> None:
    """The source is asked to bring it to its end, in the request. NoMigrationToForce, InvalidMigrationState (400);
    InstanceInvalidState, HostDown, HostTooOld (409); what the host says."""
    accept.check(ctxt, server, 'live_migrate.force')
    row = find(server, identifier)
    if row is None:
        raise NoMigrationToForce(migration_id=identifier, instance_id=server.uuid)
    _check(row, RUNNING, 'force complete')
    operations.accept(server.cell, instance_uuid=server.uuid, event='live_migrate.force', operation=None,
                      action=accept.action(ctxt, 'live_migration_force_complete'))
    began, problem = instances.utcnow(), 'Unknown error'
    try:
        ask_host.ask(backend, ctxt, server, 'live_migration_force_complete')
        problem = ''
    except KilonovaError as error:
        problem = str(error)
        raise
    finally:
        event = {'event': 'compute_live_migration_force_complete', 'result': 'Error' if problem else 'Success',
                 'host': row['source_compute'], 'start_time': began, 'finish_time': instances.utcnow(),
                 'details': problem or None, 'traceback': None}
        with server.cell.write() as conn:
            instances.add_events(conn, server.uuid, ctxt.request_id, [event])
            instances.finish_action(conn, server.uuid, ctxt.request_id, 'Error' if problem else None)
