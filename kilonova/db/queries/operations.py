"""Accept requests as operation rows, and read, cancel and delete the rows of a server.

docs/contributor/operations.md describes the rules. The transaction that accepts a request writes the state change, the
operation row and the action together. The transaction that writes a server's end state deletes the row.
``operation_leases`` has the functions of the conductors that work on the rows.
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
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import build_requests, instance_groups, instance_mappings, request_specs
from kilonova.db.queries import instances as instance_queries
from kilonova.errors import InstanceBusy, InstanceNotFound, Unavailable

LOG = logging.getLogger(__name__)

# The API database and the cell databases have the same table, and one Table object is used for all of them.
operations = cell_models.Operation.__table__
migrations = cell_models.Migration.__table__

RUN, WAIT = 'run', 'wait'
# Kinds of rows that run concurrently with the other rows of a server. A pending release undoes, later, what a host
# holds of the server. A resume has a host start the server again after the host went down.
RELEASE, RESUME = 'release', 'resume_on_host_boot'
FORWARD_KINDS = ('delete', 'soft_delete', 'confirm', 'revert', 'release', 'shelve_offload')
# Types of migrations that wait for a confirm or a revert.
MOVES = ('resize', 'migration')


@dataclass(kw_only=True)
class OperationRow:
    """An operation row: an accepted request, and how far conductors have come with it.

    Attributes:
        args: The arguments of the request (a JSON column).
        context: The request context (a JSON column).
        outputs: Results of the steps (a JSON column).
        position: Index of the step that the operation has reached.
        attempt: Number of the host that is tried, from 1.
        slot: RUN, WAIT, or the row's own uuid if it may run concurrently with other rows of the server.
        not_before: The time before which no conductor takes the row, in epoch seconds by the database's clock.
        host: The host that a pending release waits for.
        unreadable: Names of the JSON columns that cannot be read and why, '' if all can. No conductor can run or undo
            such a row.
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
        args: dict[str, Any],
        *,
        beside: bool = False,
        not_before: float = 0.0,
        host: str | None = None,
    ) -> Self:
        """Create a row for this request, with a new uuid.

        With ``beside`` it may run concurrently with the server's other rows.
        """
        uuid = uuidutils.generate_uuid()
        return cls(
            uuid=uuid,
            kind=kind,
            instance_uuid=instance_uuid,
            args=args,
            context=ctxt.to_dict(),
            request_id=ctxt.request_id,
            slot=uuid if beside else RUN,
            not_before=not_before,
            host=host,
        )

    @classmethod
    def read(cls, row: sa.RowMapping) -> Self:
        """Return the operation of a database row that has all columns or some.

        A JSON column that cannot be read counts as empty, and ``unreadable`` names it.
        """
        read, why = texts.split(row, _JSON)
        values: dict[str, Any] = {**row, **read}
        # An unreadable error does not stop the operation, because the error is only displayed.
        reason, lost = texts.split(row, ['error'])
        values['error'] = reason.get('error') or None
        if lost:
            LOG.error(
                'Could not read column %s of operation %s; the reason of its failure is lost', lost, row.get('uuid')
            )
        return cls(**values, unreadable=why)

    def columns(self) -> dict[str, Any]:
        """Return the columns to insert. The database sets the time of creation by its own clock."""
        left_out = ('id', 'created_at', 'updated_at', 'error', 'unreadable', *_JSON)
        return {
            **{name: value for name, value in vars(self).items() if name not in left_out},
            **{name: json.dumps(getattr(self, name)) for name in _JSON},
        }


_JSON = ('args', 'context', 'outputs')


def insert(conn: sa.Connection, rows: Iterable[OperationRow]) -> None:
    """Insert operation rows by one SQL statement.

    The database's clock sets their time of creation. A process whose own clock is ahead would keep sweeps from taking
    them.
    """
    conn.execute(operations.insert().values(created_at=engine.db_utcnow()), [row.columns() for row in rows])


class TookTooLong(Unavailable):
    """The request took so long that the planned undo of its resources has begun (HTTP 503)."""

    msg_fmt = (
        'The request took too long and is being rolled back: the resources that were created for it are '
        'deleted. Please retry.'
    )


@engine.retried
def plan(database: engine.Database, rows: Sequence[OperationRow], delay: float) -> None:
    """Insert operation rows that conductors may take in ``delay`` seconds, unless ``unplan`` deletes them before.

    The API plans releases this way before it creates volumes, snapshots or images for a request. If the request fails
    or its process dies, a conductor deletes them.
    """
    with database.write() as conn:
        if engine.repeated() and existing(conn, [row.uuid for row in rows]):
            return
        due = engine.now(conn) + delay if delay else 0.0
        insert(conn, [replace(row, not_before=due) for row in rows])


@engine.retried
def unplan(database: engine.Database, uuids: Sequence[str]) -> None:
    """Delete operation rows that ``plan`` wrote, because they are not needed.

    Raises TookTooLong if a conductor has taken one of them.
    """
    with database.write() as conn:
        if not end_planned(conn, uuids) and not engine.repeated():
            raise TookTooLong


@engine.retried
def hasten(database: engine.Database, uuid: str) -> None:
    """Let conductors take an operation row at once that ``plan`` wrote for a later time."""
    with database.write() as conn:
        conn.execute(
            operations.update().where(operations.c.uuid == uuid, operations.c.owner.is_(None)).values(not_before=0)
        )


def end_planned(conn: sa.Connection, uuids: Sequence[str]) -> bool:
    """Delete these operation rows unless a conductor has taken them. Return False if not all of them were deleted."""
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
    """Accept the creation of N servers by four INSERTs in one transaction of the API database, for any N.

    With ``group``, the (id, uuid) of a server group, one more INSERT makes the servers its members. ``instead_of`` are
    uuids of rows that ``plan`` wrote, to release what was created for the servers if they are not accepted. They are
    deleted in the same transaction. Raises TookTooLong if a conductor has taken one of these rows, and
    ``instance_groups.GroupNotFound`` if the group does not exist.
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

    All is written in one transaction. ``migration``: (uuid of a migration, status that it must have, status to give
    it). If two requests want to change the same migration, one gets InstanceBusy (HTTP 409). ``finish``: the action is
    finished at once (resetState). ``write(conn)`` writes more rows in the transaction.

    Raises:
        InstanceInvalidState: The server's state does not allow the event.
        InstanceBusy: Another operation of the server is running, or the migration has another status.
        InstanceNotFound: The server does not exist.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return
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
    """Give a migration another status. Return False if its status is not ``before``."""
    return (
        conn.execute(
            migrations.update()
            .where(migrations.c.uuid == uuid, migrations.c.status == before, migrations.c.deleted == 0)
            .values(status=after, updated_at=instance_queries.utcnow())
        ).rowcount
        == 1
    )


def _confirming(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Set the server's move that waits for a confirm or revert to 'confirming'.

    Return the uuid of the migration, or None if there is none or another request has taken it.
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
    """Return the kinds of a server's running and waiting operation, as a dict from slot (RUN, WAIT) to kind.

    The waiting operation starts after the running one has ended.
    """
    return {row.slot: row.kind for row in conn.execute(_KINDS, {'instance_uuid': instance_uuid})}


def accepted(conn: sa.Connection, instance_uuid: str, action: dict[str, Any]) -> bool:
    """Return whether an earlier try of this transaction wrote the request.

    That is the case if it was committed, and only the answer to its COMMIT was lost.
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
    """Return the InstanceBusy error for an event that is refused because of another operation of the server."""
    method = states.TRANSITIONS[event].method
    return InstanceBusy(method=method, instance_uuid=uuid, attr='task_state', state='another operation')


def running(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Return the kind of the operation that runs on a server, or None if there is none."""
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

    Return the uuid of the delete, whose conductor should be woken, or None if a delete was already accepted. The delete
    waits if another row runs: that row is cancelled and must be undone first. Raises InstanceNotFound if the server
    does not exist.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        slots = kinds(conn, instance_uuid)
        if 'delete' in slots.values():
            return None
        if WAIT in slots:
            # The waiting row is a soft delete or an evacuation that hasn't begun. The delete supersedes it.
            forget_waiting(conn, instance_uuid)
        # The running operation may end before this row is inserted. Then nothing is cancelled, and the delete need not
        # wait.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def add_beside(
    cell_db: engine.Database, row: OperationRow, write: Callable[[sa.Connection], None] | None = None
) -> str:
    """Insert an operation row that runs concurrently with the server's other rows, in a transaction of its own.

    ``write`` is called in the same transaction. Return the result of ``put_beside``, which is the row's uuid, or that
    of an equal row that has not begun.
    """
    with cell_db.write() as conn:
        if write is not None:
            write(conn)
        return put_beside(conn, row)


def put_beside(conn: sa.Connection, row: OperationRow) -> str:
    """Insert an operation row that runs concurrently with a server's other rows, and return its uuid.

    If a row with the same kind and arguments exists that no conductor has taken and that has done nothing yet, insert
    nothing and return the uuid of that row.
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
    """Let conductors take a server's running operation of this kind at once, although it waits for a later time.

    Return the operation's uuid, or None if there is no such operation or a conductor has it.
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

    A move that waits for a confirm or revert is confirmed first. Return the uuid of the soft delete, whose conductor
    can be woken. It waits until a running operation is undone.

    Raises:
        InstanceInvalidState: The server's state does not allow it, for example because the server is deleted already.
        InstanceBusy: An operation that can't be stopped is running, such as a confirm or a revert.
        InstanceNotFound: The server does not exist.
    """
    event = 'soft_delete.start'
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid
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
            operation = replace(operation, args={**operation.args, 'migration_uuid': moved})
        # The running operation may end before this row is inserted. Then nothing is cancelled, and the row need not
        # wait.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def reset_state(
    cell_db: engine.Database, *, instance_uuid: str, event: str, action: dict[str, Any], operation: OperationRow
) -> str | None:
    """Accept resetState: change the server's state at once, and cancel its running operation.

    The cancelled operation is undone and leaves the new state unchanged. A move that waits for a confirm or revert
    would wait for ever in the new state, so ``operation`` confirms it. Then return the uuid of ``operation``, whose
    conductor can be woken, else None.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid if get(conn, operation.uuid) else None
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        # Operations that only go forward end by themselves. If they were cancelled halfway, resources that they still
        # had to release would remain.
        cancel(conn, instance_uuid, spared=FORWARD_KINDS)
        # Delete an evacuation that hasn't begun.
        forget_waiting(conn, instance_uuid, spared=FORWARD_KINDS)
        instance_queries.start_action(conn, instance_uuid, action)
        instance_queries.finish_action(conn, instance_uuid, action['request_id'])
        slots = kinds(conn, instance_uuid)
        # Now only a delete can run on a server with such a move, and a delete ends the move itself.
        moved = None if slots else _confirming(conn, instance_uuid)
        if moved is None:
            return None
        insert(conn, [replace(operation, args={**operation.args, 'migration_uuid': moved})])
    return operation.uuid


def forget_waiting(conn: sa.Connection, instance_uuid: str, spared: Sequence[str] = ()) -> None:
    """Delete the operation that waits for a server's running one to end, unless it is of one of the ``spared`` kinds.

    The caller accepts a request that supersedes the waiting one. The action of a deleted evacuation is finished as
    failed.
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
    """Mark the running operation of a server as cancelled, unless it is of one of the ``spared`` kinds.

    Its conductor undoes the operation. If that conductor dies, the next one that takes the row does. Return the number
    of rows that were cancelled, 0 or 1.
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

    Return True if the build request still existed, else False.
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

    Return the operation's uuid, or None if there is none, or if it is cancelled or failed already.
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
    """Return the operation with this uuid, or None if there is none."""
    row = conn.execute(_GET, {'of_uuid': uuid}).mappings().first()
    return OperationRow.read(row) if row else None


def end(conn: sa.Connection, uuid: str, instance_uuid: str) -> str | None:
    """Delete an operation row, whichever conductor has taken it, and let the row run that waited for it.

    Return the uuid of the row that waited, so that a conductor can be woken, or None.
    """
    conn.execute(operations.delete().where(operations.c.uuid == uuid))
    return promote(conn, instance_uuid)


def end_releases(conn: sa.Connection, host: str) -> int:
    """Delete the pending releases of a host that was removed and can't do them any more.

    Return the number of deleted rows.
    """
    return conn.execute(operations.delete().where(operations.c.kind == 'release', operations.c.host == host)).rowcount


def promote(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Let the operation run that waited for a server's deleted row, so that a conductor can be woken for it.

    Return its uuid, or None if none waits.
    """
    waiting = conn.execute(
        sa.select(operations.c.uuid).where(operations.c.instance_uuid == instance_uuid, operations.c.slot == WAIT)
    ).scalar()
    if waiting:
        conn.execute(operations.update().where(operations.c.uuid == waiting).values(slot=RUN))
    return waiting


def of_instance(conn: sa.Connection, instance_uuid: str) -> list[OperationRow]:
    """Return all operations of a server, including pending releases, oldest first."""
    rows = (
        conn.execute(sa.select(operations).where(operations.c.instance_uuid == instance_uuid).order_by(operations.c.id))
        .mappings()
        .all()
    )
    return [OperationRow.read(row) for row in rows]


def busy_instances(conn: sa.Connection, uuids: Sequence[str], host: str) -> set[str]:
    """Return which of these servers a restarted ``host`` must leave to their operations.

    These servers have a running or waiting row, a pending release on the host (for example of a disk that a move
    renamed), or a row that has the host start them.
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
    """Return the server's row (see ``instances.get``). Raises InstanceNotFound if it does not exist."""
    row = instance_queries.get(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return row


def existing(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Return which of these uuids are operation rows in this database."""
    return set(conn.execute(sa.select(operations.c.uuid).where(operations.c.uuid.in_(list(uuids)))).scalars())


def waiting_boots(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Return the servers whose boot operation (a row of the API database, given by uuid) still waits for a host.

    No host was chosen for such a boot, and it was not cancelled and has not failed.
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
