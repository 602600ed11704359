"""Operation rows: accept a request, take a row, decide on it, end it (operations.md).

An accepting transaction writes the state change, the row and the action together; whoever ends a server's work writes
the end state and deletes the row together. Decisions are UPDATEs that check the owner: zero rows = another owner.
"""
from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import sqlalchemy as sa
from oslo_utils import uuidutils
from sqlalchemy import exc

from kilonova import states
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import build_requests, instance_groups, instance_mappings, request_specs
from kilonova.db.queries import instances as instance_queries
from kilonova.errors import InstanceBusy, InstanceNotFound, Unavailable

# Both databases have the same tables; one Table object serves both.
operations = cell_models.Operation.__table__
leases = cell_models.Lease.__table__
migrations = cell_models.Migration.__table__

RUN, WAIT = 'run', 'wait'
FORWARD_KINDS = ('delete', 'soft_delete', 'confirm', 'revert', 'release', 'shelve_offload')
# What waits for a confirm or a revert.
MOVES = ('resize', 'migration')


@dataclass(kw_only=True)
class Operation:
    """An operation row. ``args``, ``context`` and ``outputs`` (what its steps came to) are JSON columns; ``position``
    and ``attempt`` say where it stands; ``slot``: RUN, WAIT, or the row's own uuid where others may run beside it;
    ``not_before``: epoch seconds by the database's clock; ``host``: the one that a release waits for.
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
    written: str = ''
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    id: int = 0

    @classmethod
    def new(cls, ctxt: RequestContext, kind: str, instance_uuid: str, args: dict[str, Any], *, beside: bool = False,
            not_before: float = 0.0, host: str | None = None) -> Self:
        """A row of this request; its uuid is chosen here. ``beside``: it may run beside others of the server."""
        uuid = uuidutils.generate_uuid()
        return cls(uuid=uuid, kind=kind, instance_uuid=instance_uuid, args=args, context=ctxt.stored(),
                   request_id=ctxt.request_id, slot=uuid if beside else RUN, not_before=not_before, host=host)

    @classmethod
    def read(cls, row: sa.RowMapping) -> Self:
        """Of a database's row, whole or in part."""
        values: dict[str, Any] = {**row}
        for name in _JSON.intersection(values):
            values[name] = json.loads(values[name] or '{}')
        values['error'] = json.loads(values['error']) if values.get('error') else None
        return cls(**values)

    def columns(self) -> dict[str, Any]:
        """What is inserted; the age of the row is by the clock of the database."""
        left_out = ('id', 'created_at', 'updated_at', 'error', *_JSON)
        return {**{name: value for name, value in vars(self).items() if name not in left_out},
                **{name: json.dumps(getattr(self, name)) for name in _JSON}}


_JSON = frozenset(('args', 'context', 'outputs'))


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
        if not _end_planned(conn, uuids) and not engine.repeated():
            raise TookTooLong


def _end_planned(conn: sa.Connection, uuids: Sequence[str]) -> bool:
    """Delete rows that nobody has taken yet; False: not all of them."""
    return conn.execute(operations.delete().where(
        operations.c.uuid.in_(list(uuids)), operations.c.owner.is_(None))).rowcount == len(uuids)


# --- accepting -------------------------------------------------------------------------------------------------------
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
        if instead_of and not _end_planned(conn, instead_of):
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
        if _accepted(conn, instance_uuid, action):
            return
        if not instance_queries.transition(conn, instance_uuid, event, values):
            raise instance_queries.refuse(conn, instance_uuid, event)
        if migration is not None and not _swap(conn, *migration):
            raise _busy(conn, instance_uuid, event)
        if operation is not None:
            try:
                insert(conn, [operation])
            except exc.IntegrityError:
                raise _busy(conn, instance_uuid, event) from None
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


def _kinds(conn: sa.Connection, instance_uuid: str) -> dict[str, str]:
    """slot → kind of what runs and of what waits."""
    return {row.slot: row.kind for row in conn.execute(_KINDS, {'instance_uuid': instance_uuid})}


def _accepted(conn: sa.Connection, instance_uuid: str, action: dict[str, Any]) -> bool:
    """Whether the attempt before wrote this very request, and only the answer to its COMMIT was lost."""
    table = instance_queries.actions
    return engine.repeated() and conn.execute(sa.select(table.c.id).where(
        table.c.instance_uuid == instance_uuid, table.c.request_id == action['request_id'],
        table.c.action == action['action'])).first() is not None


def _busy(conn: sa.Connection, uuid: str, event: str) -> Exception:
    method = states.TRANSITIONS[event].method
    return InstanceBusy(method=method, instance_uuid=uuid, attr='task_state', state='another operation')


def running(conn: sa.Connection, instance_uuid: str) -> str | None:
    """The kind of the operation that is at work on a server; None: there is none."""
    return _kinds(conn, instance_uuid).get(RUN)


@engine.retried
def accept_delete(cell_db: engine.Database, *, instance_uuid: str, operation: Operation, action: dict[str, Any],
                  event: str = 'delete.start') -> str | None:
    """Accept a delete beside whatever runs (rule 17).

    Returns the uuid of the operation that a conductor should be woken for (the delete's own; while another row is
    being unwound it waits), or None when a delete was already accepted. Raises InstanceNotFound.
    """
    with cell_db.write() as conn:
        if _accepted(conn, instance_uuid, action):
            return operation.uuid
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        slots = _kinds(conn, instance_uuid)
        if 'delete' in slots.values():
            return None
        if WAIT in slots:
            # A soft delete that hasn't begun: this one does more.
            conn.execute(operations.delete().where(operations.c.instance_uuid == instance_uuid,
                                                   operations.c.slot == WAIT))
        # The running operation may end before this row is there to wait for it: then nothing is cancelled.
        running = cancel(conn, instance_uuid) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instance_queries.start_action(conn, instance_uuid, action)
    return operation.uuid


@engine.retried
def add_beside(cell_db: engine.Database, row: Operation) -> str:
    """A row that runs beside a server's others, unless one that says the same waits to be taken and has done nothing
    yet; the uuid of the one that is there."""
    with cell_db.write() as conn:
        for other in of_instance(conn, row.instance_uuid):
            if (other.kind, other.args, other.owner, other.position) == (row.kind, row.args, None, 0):
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
        if _accepted(conn, instance_uuid, action):
            return operation.uuid
        values = {'deleted_at': engine.db_utcnow()}
        if not instance_queries.transition(conn, instance_uuid, event, values):
            raise instance_queries.refuse(conn, instance_uuid, event)
        slots = _kinds(conn, instance_uuid)
        if not set(FORWARD_KINDS).isdisjoint(slots.values()):
            raise _busy(conn, instance_uuid, event)
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
        if _accepted(conn, instance_uuid, action):
            return operation.uuid if get(conn, operation.uuid) else None
        if not instance_queries.transition(conn, instance_uuid, event):
            raise instance_queries.refuse(conn, instance_uuid, event)
        # What only goes forward ends by itself; cancelled halfway it would leave what it still had to give back.
        cancel(conn, instance_uuid, spared=FORWARD_KINDS)
        instance_queries.start_action(conn, instance_uuid, action)
        instance_queries.finish_action(conn, instance_uuid, action['request_id'])
        slots = _kinds(conn, instance_uuid)
        # Of what runs beside such a move only a delete is left, and that takes the move along.
        moved = None if slots else _confirming(conn, instance_uuid)
        if moved is None:
            return None
        insert(conn, [replace(operation, args={**operation.args, 'migration_uuid': moved})])
    return operation.uuid


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


# --- working ---------------------------------------------------------------------------------------------------------
# Where a row stands: (position, attempt).
Place = tuple[int, int]


def _living() -> Any:
    return sa.select(leases.c.owner).where(leases.c.expires > engine.db_now())


# Statements that every conductor sends every few seconds, built once.
_ME, _AGE = sa.bindparam('me', type_=sa.String), sa.bindparam('age', type_=sa.Double)
_MOST = sa.bindparam('most', type_=sa.Integer)
_RENEW = leases.update().where(leases.c.owner == sa.bindparam('renewed'), leases.c.expires > engine.db_now()).values(
    expires=engine.db_now() + sa.bindparam('seconds', type_=sa.Double))
_LIVING = sa.select(leases.c.owner, leases.c.host).where(leases.c.expires > engine.db_now())
_FREE = sa.select(
    operations.c.id, operations.c.uuid, operations.c.kind, operations.c.instance_uuid, operations.c.host,
    operations.c.cancelled, operations.c.failed, operations.c.owner).where(
    operations.c.id > sa.bindparam('after'), operations.c.slot != WAIT, operations.c.not_before <= engine.db_now(),
    engine.db_age(operations.c.created_at) >= _AGE,
    sa.or_(operations.c.owner.is_(None), operations.c.owner == _ME, operations.c.owner.not_in(_living()))).order_by(
    operations.c.id).limit(_MOST)
_STOPPED = sa.select(operations.c.id, operations.c.uuid, operations.c.slot).where(operations.c.id > sa.bindparam(
    'after'), sa.or_(
    sa.and_(operations.c.slot == WAIT, engine.db_age(operations.c.created_at) >= _AGE),
    sa.and_(operations.c.owner == _ME, operations.c.cancelled == sa.true(), operations.c.failed == sa.false()))
).order_by(operations.c.id).limit(_MOST)


# Statements of every step, built once. No parameter of an UPDATE may have the name of a column.
_OF, _OWNER = sa.bindparam('of_uuid', type_=sa.String), sa.bindparam('of_owner', type_=sa.String)
_UUIDS = sa.bindparam('of_uuids', type_=sa.String, expanding=True)
_TAKE = operations.update().where(
    operations.c.uuid.in_(_UUIDS), operations.c.slot != WAIT,
    sa.or_(operations.c.owner.is_(None), operations.c.owner == _OWNER, operations.c.owner.not_in(_living())),
    operations.c.not_before <= engine.db_now(), _OWNER.in_(_living())).values(owner=_OWNER)
_TAKEN = sa.select(operations).where(
    operations.c.uuid.in_(_UUIDS), operations.c.owner == _OWNER, operations.c.slot != WAIT).order_by(operations.c.id)
_GET = sa.select(operations).where(operations.c.uuid == _OF)
_BEGIN_LEASE = leases.insert().values(
    owner=_OWNER, host=sa.bindparam('of_host', type_=sa.String),
    expires=engine.db_now() + sa.bindparam('seconds', type_=sa.Double))
_LONG_OVER = leases.delete().where(leases.c.expires < engine.db_now() - 3600)


@functools.cache
def _owned(placed: bool, cancelled: bool) -> tuple[Any, ...]:
    """The row is an owner's, whose lease has not run out, and stands at the place, if it is ``placed``; ``cancelled``
    False: and it isn't cancelled. See ``_owner``."""
    conditions = [operations.c.uuid == _OF, operations.c.owner == _OWNER,
                  sa.exists().where(leases.c.owner == _OWNER, leases.c.expires > engine.db_now())]
    if placed:
        conditions += [operations.c.position == sa.bindparam('of_position'),
                       operations.c.attempt == sa.bindparam('of_attempt')]
    if not cancelled:
        conditions.append(operations.c.cancelled == sa.false())
    return tuple(conditions)


@functools.cache
def _decide(placed: bool, cancelled: bool) -> Any:
    return operations.update().where(*_owned(placed, cancelled))


@functools.cache
def _end(placed: bool, cancelled: bool) -> Any:
    return operations.delete().where(*_owned(placed, cancelled))


@functools.cache
def _stands() -> Any:
    return sa.select(operations.c.id).where(
        *_owned(placed=True, cancelled=True),
        sa.or_(operations.c.cancelled == sa.false(), operations.c.failed == sa.true()))


def _owner(uuid: str, owner: str, at: Place | None = None) -> dict[str, Any]:
    """What ``_owned`` is asked with."""
    place = {} if at is None else {'of_position': at[0], 'of_attempt': at[1]}
    return {'of_uuid': uuid, 'of_owner': owner, **place}


@engine.retried
def take(db: engine.Database, uuids: Sequence[str], owner: str) -> list[Operation]:
    """Own these rows (compare-and-swap on the owner) and read them; those of an owner with a valid lease are left
    out. An owner whose lease has run out gets none."""
    with db.write() as conn:
        asked = {'of_uuids': list(uuids), 'of_owner': owner}
        conn.execute(_TAKE, asked)
        rows = conn.execute(_TAKEN, asked).mappings().all()
    return [Operation.read(row) for row in rows]


def get(conn: sa.Connection, uuid: str) -> Operation | None:
    """One row, or None."""
    row = conn.execute(_GET, {'of_uuid': uuid}).mappings().first()
    return Operation.read(row) if row else None


def stands(conn: sa.Connection, uuid: str, owner: str, at: Place) -> bool:
    """Whether the row is this living owner's, stands at the place and isn't cancelled, or is being unwound
    already."""
    return conn.execute(_stands(), _owner(uuid, owner, at)).first() is not None


def free(conn: sa.Connection, owner: str, limit: int, age: float = -60.0, after: int = 0) -> list[Operation]:
    """Rows that may be taken now, without their JSON columns, oldest first: unowned, of dead owners, or our own (the
    runner knows which it holds). ``age``: seconds that a row must be old; of a younger one the cast may still be on its
    way. ``after``: the id behind which to go on.
    """
    rows = conn.execute(_FREE, {'me': owner, 'after': after, 'age': age, 'most': limit}).mappings().all()
    return [Operation.read(row) for row in rows]


def stopped(conn: sa.Connection, owner: str, limit: int, age: float = -60.0,
            after: int = 0) -> tuple[list[str], list[str], int]:
    """(deletes that wait behind another row, our own rows that are cancelled and aren't being unwound, the id
    behind which to go on next time: 0 at the end). Oldest first, of those behind the id ``after``."""
    rows = conn.execute(_STOPPED, {'me': owner, 'age': age, 'most': limit, 'after': after}).all()
    return ([row.uuid for row in rows if row.slot == WAIT], [row.uuid for row in rows if row.slot != WAIT],
            rows[-1].id if len(rows) == limit else 0)


def decide(conn: sa.Connection, uuid: str, owner: str, values: dict[str, Any], *, at: Place | None = None,
           cancelled: bool = False) -> bool:
    """One write by an owner whose lease stands, to a row that stands at ``at``; ``cancelled`` False also demands that
    the row wasn't cancelled meanwhile."""
    encoded = {name: json.dumps(value) if name in ('args', 'outputs', 'error') and value is not None else value
               for name, value in values.items()}
    return conn.execute(_decide(at is not None, cancelled).values(**encoded), _owner(uuid, owner, at)).rowcount == 1


def give_back(conn: sa.Connection, uuid: str, owner: str, at: Place, pause: float, outputs: dict[str, Any]) -> bool:
    """Nobody's row from now on, to be taken after a pause (seconds). One that was cancelled and isn't being unwound yet
    may be taken at once: another operation waits for it."""
    stopped_now = sa.and_(operations.c.cancelled == sa.true(), operations.c.failed == sa.false())
    return conn.execute(_decide(placed=True, cancelled=True).values(
        owner=None, outputs=json.dumps(outputs), not_before=engine.db_now() + sa.case((stopped_now, 0.0), else_=pause)),
        _owner(uuid, owner, at)).rowcount == 1


def lives(conn: sa.Connection, owner: str) -> bool:
    """Whether the owner's lease stands."""
    return conn.execute(sa.select(leases.c.owner).where(
        leases.c.owner == owner, leases.c.expires > engine.db_now())).first() is not None


def end(conn: sa.Connection, uuid: str, instance_uuid: str) -> str | None:
    """Delete the row whoever has it; see ``promote`` for what it returns."""
    conn.execute(operations.delete().where(operations.c.uuid == uuid))
    return promote(conn, instance_uuid)


def end_owned(conn: sa.Connection, uuid: str, owner: str, cancelled: bool, at: Place | None = None) -> bool:
    """Delete a row that must be ours, stand at ``at`` and, unless ``cancelled`` allows it, not be cancelled."""
    return conn.execute(_end(at is not None, cancelled), _owner(uuid, owner, at)).rowcount == 1


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
    """Which of these servers a restarted ``host`` leaves to their flow: they have a running or waiting row, or
    something to give back there, such as the disk that a move put aside."""
    return set(conn.execute(sa.select(operations.c.instance_uuid).where(
        operations.c.instance_uuid.in_(list(uuids)), sa.or_(
            operations.c.slot.in_([RUN, WAIT]),
            sa.and_(operations.c.kind == 'release', operations.c.host == host)))).scalars())


# --- leases ----------------------------------------------------------------------------------------------------------
@engine.retried
def begin_lease(db: engine.Database, owner: str, host: str, seconds: float) -> None:
    """The lease of a new owner; the database's clock counts. Leases that ran out long ago go."""
    with db.write() as conn:
        if engine.repeated() and conn.execute(sa.select(leases.c.owner).where(leases.c.owner == owner)).first():
            return
        conn.execute(_BEGIN_LEASE, {'of_owner': owner, 'of_host': host, 'seconds': seconds})
        conn.execute(_LONG_OVER)


@engine.retried
def renew_lease(db: engine.Database, owner: str, seconds: float) -> bool:
    """One statement. False: the lease has run out, or is gone; it is never renewed then."""
    with db.write() as conn:
        return conn.execute(_RENEW, {'renewed': owner, 'seconds': seconds}).rowcount == 1


def living(conn: sa.Connection) -> list[tuple[str, str]]:
    """(owner, the description of its process) of the leases that haven't run out."""
    return [(row.owner, row.host) for row in conn.execute(_LIVING)]


@engine.retried
def drop_lease(db: engine.Database, owner: str) -> None:
    """A conductor that ends gives its rows free at once."""
    with db.write() as conn:
        conn.execute(operations.update().where(operations.c.owner == owner).values(owner=None))
        conn.execute(leases.delete().where(leases.c.owner == owner))


def instance_or_404(conn: sa.Connection, uuid: str) -> dict[str, Any]:
    """The server's row (see instances.get) or InstanceNotFound."""
    row = instance_queries.get(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return row


def existing(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Which of these rows exist in this database."""
    return set(conn.execute(sa.select(operations.c.uuid).where(operations.c.uuid.in_(list(uuids)))).scalars())


def own(conn: sa.Connection, uuid: str, owner: str) -> None:
    """Own a row whose twin in the api database is ours (a repeated hand-over), unless an owner with a lease has it."""
    living = _living()
    conn.execute(operations.update().where(
        operations.c.uuid == uuid, sa.literal(owner).in_(living),
        sa.or_(operations.c.owner.is_(None), operations.c.owner.not_in(living))).values(owner=owner))


def waiting_boots(conn: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """The servers of those of these boots (rows of the api database) that still wait for a host: none was chosen, they
    were neither cancelled nor have they failed."""
    return set(conn.execute(sa.select(operations.c.instance_uuid).where(
        operations.c.uuid.in_(list(uuids)), operations.c.kind == 'boot', operations.c.position == 0,
        operations.c.failed == sa.false(), operations.c.cancelled == sa.false())).scalars())
