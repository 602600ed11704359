"""Accept requests as operation rows, and read, cancel and delete the operation rows of a server.

docs/contributor/operations.md describes the rules. The transaction that accepts a request writes the state change, the
operation row and the action together. The transaction that writes a server's end state deletes the operation row.
``operation_leases`` has the functions for the conductors that work on the rows.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import sqlalchemy as sa
from oslo_log import log as logging
from oslo_utils import uuidutils
from sqlalchemy import exc

from kilonova import states, texts
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments import kinds as arguments_of
from kilonova.db.arguments.base import Arguments, ArgumentsT, narrowed
from kilonova.db.arguments.moves import ConfirmArguments, SoftDeleteArguments
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import adoption, build_requests, instance_groups, instance_mappings, request_specs
from kilonova.db.queries import instances as instance_queries
from kilonova.errors import InstanceBusy, InstanceNotFound, Unavailable

LOG = logging.getLogger(__name__)

# The API database and the cell databases have the same table, so one Table object is used for all of them.
operations = cell_models.Operation.__table__
migrations = cell_models.Migration.__table__

RUN, WAIT = 'run', 'wait'
# A 'release' operation frees, later, what a server left on a host that was down.
# A 'resume_on_host_boot' operation starts a server again after its host was down.
RELEASE, RESUME = 'release', 'resume_on_host_boot'
FORWARD_KINDS = ('delete', 'soft_delete', 'confirm', 'revert', 'release', 'shelve_offload')
# Types of migrations that a user must confirm or revert.
MOVES = ('resize', 'migration')


@dataclass(kw_only=True)
class OperationRow:
    """An operation row: an accepted request, and how far conductors have come with it.

    Attributes:
        args: The arguments of the request as the row stores them (a JSON column). The method ``arguments`` returns them
            as an object.
        context: The request context (a JSON column).
        outputs: Results of the steps (a JSON column).
        position: Index of the step that the operation has reached.
        attempt: Counter that is 1 for the first host and grows by 1 with each further host that is tried.
        slot: RUN, WAIT, or the row's own uuid if it may run concurrently with other rows of the server.
        not_before: The time before which no conductor takes the row, in epoch seconds by the database's clock.
        host: The host that must act when it is up again: free what it holds of the server (a pending release), or start
            the server's guest. For the kind host_removal, the host that is removed. None for other operations.
        unreadable: Names of the JSON columns that cannot be read, with the reasons; '' if all can be read. No conductor
            can run or undo an unreadable row.
    """

    uuid: str
    kind: str
    instance_uuid: str
    args: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    request_id: str = ''
    slot: str = RUN
    position: int = 0
    attempt: int = 1
    outputs: dict[str, Any] = field(default_factory=dict)
    owner: str | None = None
    not_before: float = 0.0
    host: str | None = None
    failed: bool = False
    undoing: bool = False
    cancelled: bool = False
    error: dict[str, Any] | None = None
    unreadable: str = ''
    written: str = ''
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    id: int = 0

    @classmethod
    def new(
        cls,
        ctxt: RequestContext,
        kind: str,
        instance_uuid: str,
        args: Arguments | None = None,
        *,
        beside: bool = False,
        not_before: float = 0.0,
        host: str | None = None,
    ) -> Self:
        """Create an operation row with a new uuid. The caller inserts the row into the database.

        Args:
            ctxt: Context of the request that starts the operation.
            kind: Kind of the operation, such as 'delete'.
            instance_uuid: The uuid of the server, or of the aggregate (kind mirror) or service (kind host_removal).
            args: The operation's arguments. None if operations of this kind have no arguments.
            beside: Whether the operation may run concurrently with other operations of the server.
            not_before: The time before which no conductor takes the row, in epoch seconds by the database's clock.
            host: The host that must act when it is up again, or the host that is removed. None for other operations.

        Raises TypeError if ``args`` is not of the class that ``db.arguments.kinds`` has for this kind.
        """
        uuid = uuidutils.generate_uuid()
        return cls(
            uuid=uuid,
            kind=kind,
            instance_uuid=instance_uuid,
            args=arguments_of.write(kind, args),
            context=ctxt.to_dict(),
            request_id=ctxt.request_id,
            slot=uuid if beside else RUN,
            not_before=not_before,
            host=host,
        )

    @classmethod
    def read(cls, row: sa.RowMapping) -> Self:
        """Return the operation for a database row, which has all columns or some of them.

        A JSON column that cannot be read counts as empty, and ``unreadable`` names it.
        """
        read, why = texts.split(row, _JSON)
        values: dict[str, Any] = {**row, **read}
        # If the column ``error`` is unreadable, the operation still runs, because the error is only displayed.
        # An operation with an unreadable column in _JSON does not run (``unreadable``).
        reason, lost = texts.split(row, ['error'])
        values['error'] = reason.get('error') or None
        if lost:
            LOG.error(
                'Could not read column %s of operation %s; the reason of its failure is lost', lost, row.get('uuid')
            )
        return cls(**values, unreadable=why)

    def arguments(self, cls: type[ArgumentsT]) -> ArgumentsT:
        """Return the arguments of the operation, as an object of the class ``cls``.

        Raises TypeError if this kind of operation has another class of arguments.
        """
        return narrowed(arguments_of.read(self.kind, self.args), cls)

    def with_arguments(self, args: Arguments, **values: Any) -> Self:
        """Return a copy of the row with these arguments, and with other values of the attributes in ``values``."""
        return replace(self, args=arguments_of.write(self.kind, args), **values)

    def is_like(self, other: OperationRow) -> bool:
        """Return whether this row and ``other`` do the same work, so that one of them is enough.

        They must have the same kind and equal values of the arguments in ``identity`` (see ``Arguments``). A kind
        without ``identity`` is like no other row.
        """
        same = type(self.arguments(Arguments)).identity
        return bool(same) and other.kind == self.kind and all(other.args.get(name) == self.args[name] for name in same)

    def columns(self) -> dict[str, Any]:
        """Return {column: value} to insert the row. The database sets the time of creation by its own clock."""
        left_out = ('id', 'created_at', 'updated_at', 'error', 'unreadable', *_JSON)
        return {
            **{name: value for name, value in vars(self).items() if name not in left_out},
            **{name: json.dumps(getattr(self, name)) for name in _JSON},
        }


_JSON = ('args', 'context', 'outputs')


def insert(conn: sa.Connection, rows: Iterable[OperationRow]) -> None:
    """Insert operation rows by one SQL statement.

    The database's clock sets the time of creation. The clock of a process may be fast, and conductors would then find
    the rows too late.
    """
    conn.execute(operations.insert().values(created_at=engine.db_utcnow()), [row.columns() for row in rows])


class TookTooLong(Unavailable):
    """The request took so long that the planned undo of its resources has already begun (HTTP 503)."""

    msg_fmt = (
        'The request took too long and is being rolled back: the resources that were created for it are '
        'deleted. Please retry.'
    )


@engine.retried
def plan(database: engine.Database, rows: Sequence[OperationRow], delay: float) -> None:
    """Insert operation rows that conductors may take after ``delay`` seconds, unless ``unplan`` deletes them before.

    The API plans releases in this way before it creates volumes, snapshots or images for a request. If the request
    fails or its process dies, a conductor deletes these resources.
    """
    with database.write() as conn:
        if engine.repeated() and existing(conn, [row.uuid for row in rows]):
            return
        due = engine.now(conn) + delay if delay else 0.0
        insert(conn, [replace(row, not_before=due) for row in rows])


@engine.retried
def unplan(database: engine.Database, uuids: Sequence[str]) -> None:
    """Delete operation rows that ``plan`` wrote to undo a request, because the request has succeeded.

    Raises TookTooLong if a conductor has taken one of the rows, and so is already undoing the request.
    """
    with database.write() as conn:
        if not end_planned(conn, uuids) and not engine.repeated():
            raise TookTooLong


@engine.retried
def hasten(database: engine.Database, uuid: str) -> None:
    """Let conductors take an operation row at once, although ``plan`` has written it with a delay."""
    with database.write() as conn:
        conn.execute(
            operations.update().where(operations.c.uuid == uuid, operations.c.owner.is_(None)).values(not_before=0)
        )


def end_planned(conn: sa.Connection, uuids: Sequence[str]) -> bool:
    """Delete these operation rows, except rows that a conductor has taken. Return False if some were not deleted."""
    return conn.execute(
        operations.delete().where(operations.c.uuid.in_(list(uuids)), operations.c.owner.is_(None))
    ).rowcount == len(uuids)


@engine.retried
def accept_create(
    api_db: engine.Database,
    *,
    specs: Sequence[tuple[str, str]],
    requests: Sequence[dict[str, Any]],
    mappings: Sequence[dict[str, Any]],
    operations: Sequence[OperationRow],
    group: tuple[int, str] | None = None,
    instead_of: Sequence[str] = (),
) -> None:
    """Accept the creation of servers in one transaction of the API database: four INSERTs for any number of servers.

    ``group`` is the (id, uuid) of a server group; one more INSERT makes the servers its members. ``instead_of`` are
    uuids of operation rows that ``plan`` wrote, to release the request's volumes if it fails. These rows are deleted in
    the same transaction. Raises TookTooLong if a conductor has taken one of them, and ``instance_groups.GroupNotFound``
    if the group does not exist.
    """
    with api_db.write() as conn:
        if engine.repeated() and request_specs.get(conn, specs[0][0]) is not None:
            return
        if instead_of and not end_planned(conn, instead_of):
            raise TookTooLong
        request_specs.create(conn, specs)
        build_requests.create(conn, requests)
        instance_mappings.create(conn, mappings)
        insert(conn, operations)
        if group is not None:
            instance_groups.add_members(conn, group, [uuid for uuid, _ in specs])


@engine.retried
def accept(
    cell_db: engine.Database,
    *,
    instance_uuid: str,
    event: str,
    operation: OperationRow | None,
    action: dict[str, Any],
    values: dict[str, Any] | None = None,
    migration: tuple[str, str, str] | None = None,
    finish: bool = False,
    write: Callable[[sa.Connection], object] | None = None,
) -> None:
    """Accept a request for a server: change its state by ``event``, and write its operation row and action.

    Everything is written in one transaction. ``migration`` is (uuid of a migration, status that it must have, its new
    status). If two requests want to change the same migration, the later one gets InstanceBusy. If ``finish``
    is True, the action is written as finished, because nothing more is to be done (resetState). ``write(conn)`` may
    write more rows in the transaction.

    Raises:
        InstanceInvalidState: The server's state does not allow the event.
        InstanceBusy: Another operation of the server is running, or the migration has another status.
        InstanceNotFound: The server does not exist.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return
        adoption.refuse_not_adopted(cell_db, conn, instance_uuid)
        if not instance_queries.transition(conn, instance_uuid, event, values):
            raise instance_queries.refuse(conn, instance_uuid, event)
        if migration is not None and not _swap(conn, *migration):
            raise busy(conn, instance_uuid, event)
        if operation is not None:
            try:
                insert(conn, [operation])
            except exc.IntegrityError:
                raise busy(conn, instance_uuid, event) from None
        if write is not None:
            write(conn)
        instance_queries.start_action(conn, instance_uuid, action)
        if finish:
            instance_queries.finish_action(conn, instance_uuid, action['request_id'])


def _swap(conn: sa.Connection, uuid: str, before: str, after: str) -> bool:
    """Change the status of a migration from ``before`` to ``after``. Return False if its status is not ``before``."""
    return (
        conn.execute(
            migrations.update()
            .where(migrations.c.uuid == uuid, migrations.c.status == before, migrations.c.deleted == 0)
            .values(status=after, updated_at=instance_queries.utcnow())
        ).rowcount
        == 1
    )


def _confirming(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Set the server's move that waits for a confirm or revert to status 'confirming'.

    Return the uuid of the migration. Return None if no move waits, or if another request has taken it.
    """
    uuid = conn.execute(
        sa.select(migrations.c.uuid).where(
            migrations.c.instance_uuid == instance_uuid,
            migrations.c.status == 'finished',
            migrations.c.deleted == 0,
            migrations.c.migration_type.in_(MOVES),
        )
    ).scalar()
    return uuid if uuid is not None and _swap(conn, uuid, 'finished', 'confirming') else None


_KINDS = sa.select(operations.c.slot, operations.c.kind).where(
    operations.c.instance_uuid == sa.bindparam('instance_uuid'), operations.c.slot.in_([RUN, WAIT])
)


def kinds(conn: sa.Connection, instance_uuid: str) -> dict[str, str]:
    """Return the kinds of a server's running and waiting operation as {slot: kind}, where slot is RUN or WAIT.

    The waiting operation starts after the running one has ended.
    """
    return {row.slot: row.kind for row in conn.execute(_KINDS, {'instance_uuid': instance_uuid})}


def accepted(conn: sa.Connection, instance_uuid: str, action: dict[str, Any]) -> bool:
    """Return whether an earlier attempt of this transaction has already written the request.

    That is the case if the earlier attempt was committed, and only the answer to its COMMIT was lost.
    """
    table = instance_queries.actions
    return (
        engine.repeated()
        and conn.execute(
            sa.select(table.c.id).where(
                table.c.instance_uuid == instance_uuid,
                table.c.request_id == action['request_id'],
                table.c.action == action['action'],
            )
        ).first()
        is not None
    )


def busy(conn: sa.Connection, uuid: str, event: str) -> Exception:
    """Return an InstanceBusy error for the caller to raise, because another operation of the server prevents ``event``.

    ``event`` is a key of states.TRANSITIONS, such as 'delete.start'.
    """
    method = states.TRANSITIONS[event].method
    return InstanceBusy(method=method, instance_uuid=uuid, attr='task_state', state='another operation')


def running(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Return the kind of the operation that runs on a server, or None if no operation runs."""
    return kinds(conn, instance_uuid).get(RUN)


@engine.retried
def accept_delete(
    cell_db: engine.Database,
    *,
    instance_uuid: str,
    operation: OperationRow,
    action: dict[str, Any],
    event: str = 'delete.start',
) -> str | None:
    """Accept a delete of a server, whatever operation runs on it (operations.md rule 17).

    Return the uuid of the delete operation, for which a conductor should be woken, or None if a delete was accepted
    before. If another operation runs, that operation is cancelled and undone, and only then the delete begins. Raises
    InstanceNotFound if the server does not exist.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid
        adoption.refuse_not_adopted(cell_db, conn, instance_uuid)
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        slots = kinds(conn, instance_uuid)
        if 'delete' in slots.values():
            return None
        if WAIT in slots:
            # Another operation of the server waits: a soft delete, an evacuation or the confirm of a resetState.
            # The waiting operation has not begun. Remove it: the new delete replaces it.
            forget_waiting(conn, instance_uuid)
        # Cancel the running operation of the server. A server has at most one.
        # ``cancel`` returns 1 if it has cancelled the operation, and 0 if no operation runs any more.
        # If the operation was cancelled, the delete waits until the operation is undone. Otherwise the delete runs now.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def add_beside(
    cell_db: engine.Database, row: OperationRow, write: Callable[[sa.Connection], None] | None = None
) -> str:
    """Insert an operation row that runs concurrently with the server's other rows, in a transaction of its own.

    ``write`` is called in the same transaction. Return the uuid of the row, or of an equal row that has not begun (see
    ``put_beside``).
    """
    with cell_db.write() as conn:
        if write is not None:
            write(conn)
        return put_beside(conn, row)


def put_beside(conn: sa.Connection, row: OperationRow) -> str:
    """Insert an operation row that runs concurrently with a server's other rows, and return its uuid.

    If the server already has a row with the same kind and arguments, and no conductor has begun to work on it, nothing
    is inserted. In this case return the uuid of the existing row.
    """
    for other in of_instance(conn, row.instance_uuid):
        if not other.unreadable and (other.kind, other.args, other.owner, other.position) == (
            row.kind,
            row.args,
            None,
            0,
        ):
            return other.uuid
    insert(conn, [row])
    return row.uuid


@engine.retried
def hurry(cell_db: engine.Database, instance_uuid: str, kind: str) -> str | None:
    """Make the server's operation of this ``kind`` due now, so that a conductor may take it before its planned time.

    Return the operation's uuid, or None if the server has no such operation or a conductor has taken it already.
    """
    mine = sa.and_(
        operations.c.instance_uuid == instance_uuid,
        operations.c.slot == RUN,
        operations.c.kind == kind,
        operations.c.owner.is_(None),
    )
    with cell_db.write() as conn:
        uuid: str | None = conn.execute(sa.select(operations.c.uuid).where(mine)).scalar()
        conn.execute(operations.update().where(mine).values(not_before=0))
    return uuid


@engine.retried
def accept_soft_delete(
    cell_db: engine.Database, *, instance_uuid: str, operation: OperationRow, action: dict[str, Any]
) -> str:
    """Accept a soft delete of a server, even if an operation runs that can be undone.

    A move that waits for a confirm or revert is confirmed first. Return the uuid of the soft delete, for which a
    conductor can be woken. The soft delete waits until a running operation is undone.

    Raises:
        InstanceInvalidState: The server's state does not allow a soft delete, for example because it is deleted
            already.
        InstanceBusy: An operation that can't be stopped is running, such as a confirm or a revert.
        InstanceNotFound: The server does not exist.
    """
    event = 'soft_delete.start'
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid
        adoption.refuse_not_adopted(cell_db, conn, instance_uuid)
        values = {'deleted_at': engine.db_utcnow()}
        if not instance_queries.transition(conn, instance_uuid, event, values):
            raise instance_queries.refuse(conn, instance_uuid, event)
        slots = kinds(conn, instance_uuid)
        if not set(FORWARD_KINDS).isdisjoint(slots.values()):
            raise busy(conn, instance_uuid, event)
        if WAIT in slots:
            forget_waiting(conn, instance_uuid)
        moved = _confirming(conn, instance_uuid)
        if moved is not None:
            operation = operation.with_arguments(SoftDeleteArguments(migration_uuid=moved))
        # ``running`` is the number of operations that were cancelled: 1, or 0 if the operation ended just now.
        # The soft delete waits until a cancelled operation is undone.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def reset_state(
    cell_db: engine.Database, *, instance_uuid: str, event: str, action: dict[str, Any], operation: OperationRow
) -> str | None:
    """Accept resetState: change the server's state at once, and cancel its running operation.

    The cancelled operation is undone, and its undo does not change the new state. In the new state, the user could not
    confirm or revert a resize any more. So if a resize waits for this, ``operation``, a row of the kind 'confirm', is
    inserted with the arguments to confirm it. The confirm begins when a cancelled operation is undone. Return the uuid
    of this row, so that the caller can wake a conductor, or None if no row was inserted.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid if get(conn, operation.uuid) else None
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        # Do not cancel operations that release resources (FORWARD_KINDS), or these resources would never be released.
        # ``running`` is the number of operations that were cancelled, 0 or 1.
        running = cancel(conn, instance_uuid, spared=FORWARD_KINDS)
        # Delete a waiting evacuation, which has not begun.
        # A waiting delete, soft delete or confirm stays (FORWARD_KINDS). No other kinds of operations can wait.
        forget_waiting(conn, instance_uuid, spared=FORWARD_KINDS)
        instance_queries.start_action(conn, instance_uuid, action)
        instance_queries.finish_action(conn, instance_uuid, action['request_id'])
        # Confirm a resize that waits for a confirm or revert, unless an operation such as a delete was not cancelled.
        spared = not set(FORWARD_KINDS).isdisjoint(kinds(conn, instance_uuid).values())
        moved = None if spared else _confirming(conn, instance_uuid)
        if moved is None:
            return None
        operation = operation.with_arguments(ConfirmArguments(migration_uuid=moved))
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
    return operation.uuid


def forget_waiting(conn: sa.Connection, instance_uuid: str, spared: Sequence[str] = ()) -> None:
    """Delete the server's waiting operation, unless its kind is one of ``spared``.

    A waiting operation begins when the server's running operation ends. The caller accepts a new request in place of
    the waiting operation. The instance action of the deleted operation is finished, as failed if it is an evacuation.
    """
    waiting = conn.execute(
        sa.select(operations.c.id, operations.c.kind, operations.c.request_id).where(
            operations.c.instance_uuid == instance_uuid, operations.c.slot == WAIT
        )
    ).first()
    if waiting is None or waiting.kind in spared:
        return
    conn.execute(operations.delete().where(operations.c.id == waiting.id))
    instance_queries.finish_action(
        conn, instance_uuid, waiting.request_id, 'Error' if waiting.kind == 'evacuate' else None
    )


def cancel(conn: sa.Connection, instance_uuid: str, spared: Sequence[str] = ()) -> int:
    """Mark the running operation of a server as cancelled, unless its kind is one of ``spared``.

    The conductor that owns the operation row undoes the operation. If this conductor dies, the next owner of the row
    undoes it. Return the number of rows that were cancelled, 0 or 1.
    """
    return conn.execute(
        operations.update()
        .where(
            operations.c.instance_uuid == instance_uuid,
            operations.c.slot == RUN,
            operations.c.kind.not_in(list(spared)),
        )
        .values(cancelled=True, not_before=0)
    ).rowcount


@engine.retried
def delete_build_request(api_db: engine.Database, instance_uuid: str) -> bool:
    """Delete a server that has no cell yet, and cancel its boot (operations.md rule 18).

    Return False, and change nothing, if the build request does not exist any more.
    """
    with api_db.write() as conn:
        if engine.repeated() and instance_mappings.is_queued_for_delete(conn, instance_uuid):
            return True
        if not build_requests.destroy(conn, instance_uuid):
            return False
        cancel(conn, instance_uuid)
        instance_groups.remove_members(conn, [instance_uuid])
        instance_mappings.set_queued_for_delete(conn, instance_uuid)
    return True


def cancel_kind(conn: sa.Connection, instance_uuid: str, kind: str, reason: dict[str, Any]) -> str | None:
    """Cancel a server's running operation of this kind, and store ``reason`` as its error.

    Return the operation's uuid, or None if no such operation runs, or if it was cancelled or failed before.
    """
    mine = sa.and_(
        operations.c.instance_uuid == instance_uuid,
        operations.c.slot == RUN,
        operations.c.kind == kind,
        operations.c.cancelled == sa.false(),
        operations.c.failed == sa.false(),
    )
    uuid: str | None = conn.execute(sa.select(operations.c.uuid).where(mine)).scalar()
    done = conn.execute(
        operations.update().where(mine).values(cancelled=True, not_before=0, error=json.dumps(reason))
    ).rowcount
    return uuid if done else None


@engine.retried
def cancel_with(db: engine.Database, uuid: str, reason: dict[str, Any]) -> bool:
    """Cancel an operation, and store ``reason`` as its error, which becomes the fault of its server.

    Return False if the operation does not exist any more, or was cancelled or failed before.
    """
    with db.write() as conn:
        if conn.execute(
            operations.update()
            .where(operations.c.uuid == uuid, operations.c.cancelled == sa.false(), operations.c.failed == sa.false())
            .values(cancelled=True, not_before=0, error=json.dumps(reason))
        ).rowcount:
            return True
        row = get(conn, uuid) if engine.repeated() else None
        return row is not None and row.error == reason


_GET = sa.select(operations).where(operations.c.uuid == sa.bindparam('of_uuid', type_=sa.String))


def get(conn: sa.Connection, uuid: str) -> OperationRow | None:
    """Return the operation with this uuid, or None if it does not exist."""
    row = conn.execute(_GET, {'of_uuid': uuid}).mappings().first()
    return OperationRow.read(row) if row else None


def end(conn: sa.Connection, uuid: str, instance_uuid: str) -> str | None:
    """Delete an operation row, whichever conductor owns it, and let the server's waiting operation run.

    Return the uuid of the waiting operation, so that a conductor can be woken for it, or None if no operation waited.
    """
    conn.execute(operations.delete().where(operations.c.uuid == uuid))
    return promote(conn, instance_uuid)


def end_releases(conn: sa.Connection, host: str) -> int:
    """Delete the pending releases of a host, because the host is removed. Return the number of deleted rows.

    A pending release is a stored operation, with which a conductor later frees what a host holds of a server.
    """
    return conn.execute(operations.delete().where(operations.c.kind == 'release', operations.c.host == host)).rowcount


def promote(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Let the server's waiting operation run. Called when the operation for which it waited has ended.

    Return the uuid of the waiting operation, so that the caller can wake a conductor, or None if no operation waits.
    """
    waiting = conn.execute(
        sa.select(operations.c.uuid).where(operations.c.instance_uuid == instance_uuid, operations.c.slot == WAIT)
    ).scalar()
    if waiting:
        conn.execute(operations.update().where(operations.c.uuid == waiting).values(slot=RUN))
    return waiting


def of_instance(conn: sa.Connection, instance_uuid: str) -> list[OperationRow]:
    """Return all operations of a server, oldest first, including those that free resources later (pending releases)."""
    rows = (
        conn.execute(sa.select(operations).where(operations.c.instance_uuid == instance_uuid).order_by(operations.c.id))
        .mappings()
        .all()
    )
    return [OperationRow.read(row) for row in rows]


def busy_instances(conn: sa.Connection, uuids: Sequence[str], host: str) -> set[str]:
    """Return which of these servers ``host`` must not change after its restart, because conductors work on them.

    Each of the returned servers has one of these operations:

    - an operation that runs, or that waits until the running operation ends
    - a resume, which tells the host to start the server again
    - a pending release: a conductor will make the host delete or rename something, for example the original disks of a
      resize, which are in <uuid>_resize
    """
    return set(
        conn.execute(
            sa.select(operations.c.instance_uuid).where(
                operations.c.instance_uuid.in_(list(uuids)),
                sa.or_(
                    operations.c.slot.in_([RUN, WAIT]),
                    sa.and_(operations.c.kind.in_([RELEASE, RESUME]), operations.c.host == host),
                ),
            )
        ).scalars()
    )


def instance_or_404(conn: sa.Connection, uuid: str) -> dict[str, Any]:
    """Return the server's row (see ``instances.get``). Raises InstanceNotFound if the server does not exist."""
    row = instance_queries.get(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return row


def existing(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Return which of these uuids belong to operation rows in this database."""
    return set(conn.execute(sa.select(operations.c.uuid).where(operations.c.uuid.in_(list(uuids)))).scalars())


def waiting_boots(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Return the servers whose boot operation still waits for a host. ``uuids`` are the uuids of the operations.

    The boot has no chosen host yet, and was not cancelled and has not failed. The rows are in the API database.
    """
    return set(
        conn.execute(
            sa.select(operations.c.instance_uuid).where(
                operations.c.uuid.in_(list(uuids)),
                operations.c.kind == 'boot',
                operations.c.position == 0,
                operations.c.failed == sa.false(),
                operations.c.cancelled == sa.false(),
            )
        ).scalars()
    )
