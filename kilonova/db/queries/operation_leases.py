"""Who works on operation rows: processes of the conductor, each an owner with a lease.

    operation_leases.begin_lease(db, owner, host, seconds)
    rows = operation_leases.take(db, uuids, owner)        # free ones, and those of owners whose lease ran out
    operation_leases.decide(conn, uuid, owner, {'position': 2}, at=(1, 1))

Decisions are UPDATEs that check the owner and its lease: zero rows = another owner, or a lease that ran out.
"""
from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models import cell as cell_models
from kilonova.db.queries.operations import WAIT, Operation, operations

leases = cell_models.Lease.__table__
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
    out. An owner whose lease has run out gets none. Rows that cannot be read (``Operation.unreadable``) are among
    them: ``set_aside`` gives those back."""
    with db.write() as conn:
        asked = {'of_uuids': list(uuids), 'of_owner': owner}
        conn.execute(_TAKE, asked)
        rows = conn.execute(_TAKEN, asked).mappings().all()
    return [Operation.read(row) for row in rows]


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


@engine.retried
def set_aside(db: engine.Database, uuid: str, owner: str, pause: float) -> None:
    """Give back a row of this owner that cannot be read: nobody's, not to be taken for ``pause`` seconds. Changes
    nothing else in it, so that an operator can mend it."""
    with db.write() as conn:
        conn.execute(operations.update().where(operations.c.uuid == uuid, operations.c.owner == owner).values(
            owner=None, not_before=engine.db_now() + pause))


def lives(conn: sa.Connection, owner: str) -> bool:
    """Whether the owner's lease stands."""
    return conn.execute(sa.select(leases.c.owner).where(
        leases.c.owner == owner, leases.c.expires > engine.db_now())).first() is not None


def end_owned(conn: sa.Connection, uuid: str, owner: str, cancelled: bool, at: Place | None = None) -> bool:
    """Delete a row that must be ours, stand at ``at`` and, unless ``cancelled`` allows it, not be cancelled."""
    return conn.execute(_end(at is not None, cancelled), _owner(uuid, owner, at)).rowcount == 1


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


def own(conn: sa.Connection, uuid: str, owner: str) -> None:
    """Own a row whose twin in the api database is ours (a repeated hand-over), unless an owner with a lease has it."""
    living = _living()
    conn.execute(operations.update().where(
        operations.c.uuid == uuid, sa.literal(owner).in_(living),
        sa.or_(operations.c.owner.is_(None), operations.c.owner.not_in(living))).values(owner=owner))
