"""Operation rows: a request is accepted, a server's rows are read, cancelled and ended (operations.md).

An accepting transaction writes the state change, the row and the action together; whoever ends a server's work writes
the end state and deletes the row together. Who works on them: ``operation_leases``.
"""
from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import sqlalchemy as sa
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

# Both databases have the same tables; one Table object serves both.
operations = cell_models.Operation.__table__
migrations = cell_models.Migration.__table__

RUN, WAIT = 'run', 'wait'
# Kinds of rows that run beside a server's others: what a host is to give back; a server that it is to start again after
# it went down.
RELEASE, RESUME = 'release', 'resume_on_host_boot'
FORWARD_KINDS = ('delete', 'soft_delete', 'confirm', 'revert', 'release', 'shelve_offload')
# What waits for a confirm or a revert.
MOVES = ('resize', 'migration')


@dataclass(kw_only=True)
class Operation:
    """An operation row. ``args``, ``context`` and ``outputs`` (what its steps came to) are JSON columns; ``position``
    and ``attempt`` say where it stands; ``slot``: RUN, WAIT, or the row's own uuid where others may run beside it;
    ``not_before``: epoch seconds by the database's clock; ``host``: the one that a release waits for; ``unreadable``:
    which of the JSON columns cannot be read and why ('' if all can), so that no conductor can run or undo the row.
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
    def new(cls, ctxt: RequestContext, kind: str, instance_uuid: str, args: dict[str, Any], *, beside: bool = False,
            not_before: float = 0.0, host: str | None = None) -> Self:
        """A row of this request; its uuid is chosen here. ``beside``: it may run beside others of the server."""
        uuid = uuidutils.generate_uuid()
        return cls(uuid=uuid, kind=kind, instance_uuid=instance_uuid, args=args, context=ctxt.to_dict(),
                   request_id=ctxt.request_id, slot=uuid if beside else RUN, not_before=not_before, host=host)

    @classmethod
    def read(cls, row: sa.RowMapping) -> Self:
        """Return a row of the database, whole or in part. A JSON column that cannot be read counts as empty, and is
        named in ``unreadable``."""
        read, why = texts.split(row, _JSON)
        values: dict[str, Any] = {**row, **read}
        # Without its error a row can go on: the reason is only shown.
        reason, lost = texts.split(row, ['error'])
        values['error'] = reason.get('error') or None
        if lost:
            LOG.error('The column %s of operation %s cannot be read: its reason is lost.', lost, row.get('uuid'))
        return cls(**values, unreadable=why)

    def columns(self) -> dict[str, Any]:
        """What is inserted; the age of the row is by the clock of the database."""
        left_out = ('id', 'created_at', 'updated_at', 'error', 'unreadable', *_JSON)
        return {**{name: value for name, value in vars(self).items() if name not in left_out},
                **{name: json.dumps(getattr(self, name)) for name in _JSON}}


_JSON = ('args', 'context', 'outputs')


def insert(conn: sa.Connection, rows: Iterable[Operation]) -> None:
    """Rows in one INSERT. How old they are is asked by the database's clock: a process whose own is ahead would keep
    sweeps away from them."""
    conn.execute(operations.insert().values(created_at=engine.db_utcnow()), [row.columns() for row in rows])


class TookTooLong(Unavailable):
    msg_fmt = 'The request took too long: what was made for it is given back. Ask again.'


@engine.retried
def plan(database: engine.Database, rows: Sequence[Operation], delay: float) -> None:
    """Rows that are due ``delay`` seconds from now, unless what they are about makes them needless before."""
    with database.write() as conn:
        if engine.repeated() and existing(conn, [row.uuid for row in rows]):
            return
        due = engine.now(conn) + delay if delay else 0.0
        insert(conn, [replace(row, not_before=due) for row in rows])


@engine.retried
def unplan(database: engine.Database, uuids: Sequence[str]) -> None:
    """What ``plan`` wrote is needless. TookTooLong: one has begun."""
    with database.write() as conn:
        if not end_planned(conn, uuids) and not engine.repeated():
            raise TookTooLong


@engine.retried
def hasten(database: engine.Database, uuid: str) -> None:
    """Let a row that ``plan`` wrote be taken now."""
    with database.write() as conn:
        conn.execute(operations.update().where(operations.c.uuid == uuid, operations.c.owner.is_(None))
                     .values(not_before=0))


def end_planned(conn: sa.Connection, uuids: Sequence[str]) -> bool:
    """Delete these rows unless somebody has taken them. Return False if not all of them were deleted."""
    return conn.execute(operations.delete().where(
        operations.c.uuid.in_(list(uuids)), operations.c.owner.is_(None))).rowcount == len(uuids)


@engine.retried
def accept_create(api_db: engine.Database, *, specs: Sequence[tuple[str, str]], requests: Sequence[dict[str, Any]],
                  mappings: Sequence[dict[str, Any]], operations: Sequence[Operation],
                  group: tuple[int, str] | None = None, instead_of: Sequence[str] = ()) -> None:
    """A create of N servers: four INSERTs in one transaction of the api database, whatever N is; one more makes them
    members of a server group, ``group``: its (id, uuid) (``instance_groups.GroupNotFound``). ``instead_of``: rows
    (``plan``) of what is given back where this doesn't come; TookTooLong: one of them has begun."""
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
def accept(cell_db: engine.Database, *, instance_uuid: str, event: str, operation: Operation | None,
           action: dict[str, Any], values: dict[str, Any] | None = None, migration: tuple[str, str, str] | None = None,
           finish: bool = False, write: Callable[[sa.Connection], object] | None = None) -> None:
    """Move the server by ``event``, write its operation row and action; all or nothing.

    ``migration``: (uuid, status that it must have, status to give it): of two requests that both want it, one gets 409.
    ``finish``: the action ends here (resetState); ``write(conn)``: what else is written. Raises InstanceInvalidState,
    InstanceNotFound.
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
    """Give a migration another status; False when it hasn't the status ``before``."""
    return conn.execute(migrations.update().where(
        migrations.c.uuid == uuid, migrations.c.status == before, migrations.c.deleted == 0)
        .values(status=after, updated_at=instance_queries.utcnow())).rowcount == 1


def _confirming(conn: sa.Connection, instance_uuid: str) -> str | None:
    """Whoever takes a server's move that waits for an answer confirms it: its uuid, None when there is none."""
    uuid = conn.execute(sa.select(migrations.c.uuid).where(
        migrations.c.instance_uuid == instance_uuid, migrations.c.status == 'finished', migrations.c.deleted == 0,
        migrations.c.migration_type.in_(MOVES))).scalar()
    return uuid if uuid is not None and _swap(conn, uuid, 'finished', 'confirming') else None


_KINDS = sa.select(operations.c.slot, operations.c.kind).where(
    operations.c.instance_uuid == sa.bindparam('instance_uuid'), operations.c.slot.in_([RUN, WAIT]))


def kinds(conn: sa.Connection, instance_uuid: str) -> dict[str, str]:
    """Return the kinds of a server's running row and of the one that waits behind it, by slot (RUN, WAIT)."""
    return {row.slot: row.kind for row in conn.execute(_KINDS, {'instance_uuid': instance_uuid})}


def accepted(conn: sa.Connection, instance_uuid: str, action: dict[str, Any]) -> bool:
    """Return whether an earlier attempt wrote this request, and only the answer to its COMMIT was lost."""
    table = instance_queries.actions
    return engine.repeated() and conn.execute(sa.select(table.c.id).where(
        table.c.instance_uuid == instance_uuid, table.c.request_id == action['request_id'],
        table.c.action == action['action'])).first() is not None


def busy(conn: sa.Connection, uuid: str, event: str) -> Exception:
    """Return what to raise for an event that another operation of the server bars."""
    method = states.TRANSITIONS[event].method
    return InstanceBusy(method=method, instance_uuid=uuid, attr='task_state', state='another operation')


def running(conn: sa.Connection, instance_uuid: str) -> str | None:
    """The kind of the operation that is at work on a server; None: there is none."""
    return kinds(conn, instance_uuid).get(RUN)


@engine.retried
def accept_delete(cell_db: engine.Database, *, instance_uuid: str, operation: Operation, action: dict[str, Any],
                  event: str = 'delete.start') -> str | None:
    """Accept a delete beside whatever runs (rule 17).

    Returns the uuid of the operation that a conductor should be woken for (the delete's own; while another row is
    being unwound it waits), or None when a delete was already accepted. Raises InstanceNotFound.
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
            # A soft delete or an evacuation that hasn't begun: this one does more.
            forget_waiting(conn, instance_uuid)
        # The running operation may end before this row is there to wait for it: then nothing is cancelled.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def add_beside(cell_db: engine.Database, row: Operation, write: Callable[[sa.Connection], None] | None = None) -> str:
    """Call ``write`` and ``put_beside`` in one transaction of their own; return what ``put_beside`` returns."""
    with cell_db.write() as conn:
        if write is not None:
            write(conn)
        return put_beside(conn, row)


def put_beside(conn: sa.Connection, row: Operation) -> str:
    """Insert a row that runs beside a server's others, unless a row that says the same waits and has done nothing yet.
    Return the uuid of the row that is there."""
    for other in of_instance(conn, row.instance_uuid):
        if not other.unreadable and (other.kind, other.args, other.owner, other.position) == (
                row.kind, row.args, None, 0):
            return other.uuid
    insert(conn, [row])
    return row.uuid


@engine.retried
def hurry(cell_db: engine.Database, instance_uuid: str, kind: str) -> str | None:
    """The running row of this kind that waits for its time may be taken now: its uuid; None: there is none."""
    mine = sa.and_(operations.c.instance_uuid == instance_uuid, operations.c.slot == RUN, operations.c.kind == kind,
                   operations.c.owner.is_(None))
    with cell_db.write() as conn:
        uuid: str | None = conn.execute(sa.select(operations.c.uuid).where(mine)).scalar()
        conn.execute(operations.update().where(mine).values(not_before=0))
    return uuid


@engine.retried
def accept_soft_delete(cell_db: engine.Database, *, instance_uuid: str, operation: Operation,
                       action: dict[str, Any]) -> str:
    """Accept a soft delete beside what runs and can be unwound; a move that waits for an answer is confirmed first.

    Returns the uuid of the operation that a runner can be woken for. Raises InstanceInvalidState (deleted already; or a
    confirm or revert is under way, which can't be stopped), InstanceNotFound.
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
        # The running operation may end before this row is there to wait for it: then nothing is cancelled.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def reset_state(cell_db: engine.Database, *, instance_uuid: str, event: str, action: dict[str, Any],
                operation: Operation) -> str | None:
    """resetState: the state changes at once; a running row is cancelled and unwinds without touching the state.

    A move that waits for an answer would wait for ever in the new state: it is confirmed by ``operation``, whose uuid
    is returned then, so that a runner can be woken.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return operation.uuid if get(conn, operation.uuid) else None
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        # What only goes forward ends by itself; cancelled halfway it would leave what it still had to give back.
        cancel(conn, instance_uuid, spared=FORWARD_KINDS)
        # An evacuation that hasn't begun.
        forget_waiting(conn, instance_uuid, spared=FORWARD_KINDS)
        instance_queries.start_action(conn, instance_uuid, action)
        instance_queries.finish_action(conn, instance_uuid, action['request_id'])
        slots = kinds(conn, instance_uuid)
        # Of what runs beside such a move only a delete is left, and that takes the move along.
        moved = None if slots else _confirming(conn, instance_uuid)
        if moved is None:
            return None
        insert(conn, [replace(operation, args={**operation.args, 'migration_uuid': moved})])
    return operation.uuid


def forget_waiting(conn: sa.Connection, instance_uuid: str, spared: Sequence[str] = ()) -> None:
    """Delete the row that waits behind a server's running one, unless it is of the ``spared`` kinds.

    What was asked for since does more. The action of an evacuation ends as a failed one.
    """
    waiting = conn.execute(sa.select(operations.c.id, operations.c.kind, operations.c.request_id).where(
        operations.c.instance_uuid == instance_uuid, operations.c.slot == WAIT)).first()
    if waiting is None or waiting.kind in spared:
        return
    conn.execute(operations.delete().where(operations.c.id == waiting.id))
    instance_queries.finish_action(conn, instance_uuid, waiting.request_id,
                                   'Error' if waiting.kind == 'evacuate' else None)


def cancel(conn: sa.Connection, instance_uuid: str, spared: Sequence[str] = ()) -> int:
    """Mark the running row of a server cancelled; its holder unwinds, after its death the next one does.

    ``spared``: kinds that go on all the same.
    """
    return conn.execute(operations.update().where(
        operations.c.instance_uuid == instance_uuid, operations.c.slot == RUN, operations.c.kind.not_in(list(spared)))
        .values(cancelled=True, not_before=0)).rowcount


@engine.retried
def delete_build_request(api_db: engine.Database, instance_uuid: str) -> bool:
    """Early delete (rule 18): True when the build request was still there; its boot row is cancelled with it."""
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
    """Cancel a server's running row of this kind, with what is to be said of it: its uuid. None: there is none, or it
    is cancelled or failed already."""
    mine = sa.and_(operations.c.instance_uuid == instance_uuid, operations.c.slot == RUN, operations.c.kind == kind,
                   operations.c.cancelled == sa.false(), operations.c.failed == sa.false())
    uuid: str | None = conn.execute(sa.select(operations.c.uuid).where(mine)).scalar()
    done = conn.execute(operations.update().where(mine).values(
        cancelled=True, not_before=0, error=json.dumps(reason))).rowcount
    return uuid if done else None


@engine.retried
def cancel_with(db: engine.Database, uuid: str, reason: dict[str, Any]) -> bool:
    """Cancel this row, with what its server's fault shall say; False: it is gone, or was cancelled before."""
    with db.write() as conn:
        if conn.execute(operations.update().where(
                operations.c.uuid == uuid, operations.c.cancelled == sa.false(), operations.c.failed == sa.false())
                .values(cancelled=True, not_before=0, error=json.dumps(reason))).rowcount:
            return True
        row = get(conn, uuid) if engine.repeated() else None
        return row is not None and row.error == reason


_GET = sa.select(operations).where(operations.c.uuid == sa.bindparam('of_uuid', type_=sa.String))


def get(conn: sa.Connection, uuid: str) -> Operation | None:
    """One row, or None."""
    row = conn.execute(_GET, {'of_uuid': uuid}).mappings().first()
    return Operation.read(row) if row else None


def end(conn: sa.Connection, uuid: str, instance_uuid: str) -> str | None:
    """Delete the row whoever has it; see ``promote`` for what it returns."""
    conn.execute(operations.delete().where(operations.c.uuid == uuid))
    return promote(conn, instance_uuid)


def end_releases(conn: sa.Connection, host: str) -> int:
    """Delete the pending releases of a host that was removed: there is no host left to do them. How many."""
    return conn.execute(operations.delete().where(operations.c.kind == 'release', operations.c.host == host)).rowcount


def promote(conn: sa.Connection, instance_uuid: str) -> str | None:
    """A delete that waited behind a row which is gone may run now: its uuid, so that a runner can be woken."""
    waiting = conn.execute(sa.select(operations.c.uuid).where(
        operations.c.instance_uuid == instance_uuid, operations.c.slot == WAIT)).scalar()
    if waiting:
        conn.execute(operations.update().where(operations.c.uuid == waiting).values(slot=RUN))
    return waiting


def of_instance(conn: sa.Connection, instance_uuid: str) -> list[Operation]:
    """Every row of a server, pending releases included."""
    rows = conn.execute(sa.select(operations).where(operations.c.instance_uuid == instance_uuid)
                        .order_by(operations.c.id)).mappings().all()
    return [Operation.read(row) for row in rows]


def busy_instances(conn: sa.Connection, uuids: Sequence[str], host: str) -> set[str]:
    """Return which of these servers a restarted ``host`` leaves to their flow.

    They have a running or waiting row, something to give back there, such as the disk that a move put aside, or a row
    that has the host start them.
    """
    return set(conn.execute(sa.select(operations.c.instance_uuid).where(
        operations.c.instance_uuid.in_(list(uuids)), sa.or_(
            operations.c.slot.in_([RUN, WAIT]),
            sa.and_(operations.c.kind.in_([RELEASE, RESUME]), operations.c.host == host)))).scalars())


def instance_or_404(conn: sa.Connection, uuid: str) -> dict[str, Any]:
    """The server's row (see instances.get) or InstanceNotFound."""
    row = instance_queries.get(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return row


def existing(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Which of these rows exist in this database."""
    return set(conn.execute(sa.select(operations.c.uuid).where(operations.c.uuid.in_(list(uuids)))).scalars())


def waiting_boots(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """The servers of those of these boots (rows of the api database) that still wait for a host: none was chosen, they
    were neither cancelled nor have they failed."""
    return set(conn.execute(sa.select(operations.c.instance_uuid).where(
        operations.c.uuid.in_(list(uuids)), operations.c.kind == 'boot', operations.c.position == 0,
        operations.c.failed == sa.false(), operations.c.cancelled == sa.false())).scalars())
