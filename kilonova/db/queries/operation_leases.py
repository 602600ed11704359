"""Let conductor processes own operation rows, so that only one process works on an operation at a time.

    operation_leases.begin_lease(db, owner, host, seconds)
    rows = operation_leases.take(db, uuids, owner)        # free rows, and rows of owners whose lease has expired
    operation_leases.decide(conn, uuid, owner, {'position': 2}, at=(1, 1))

Each conductor process is an owner with a lease, which it renews while it runs. Each UPDATE of an operation row checks
the owner and its lease. If the UPDATE changes no row, another process owns the row or the lease has expired, so the
process must stop its work on the operation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models import cell as cell_models
from kilonova.db.queries.operations import WAIT, OperationRow, operations

leases = cell_models.Lease.__table__
# How far an operation has come: (position of its step, number of its attempt).
Place = tuple[int, int]


def _living() -> Any:
    return sa.select(leases.c.owner).where(leases.c.expires > engine.db_now())


# Every conductor sends these statements every few seconds, so they are built only once.
_ME, _AGE = sa.bindparam('me', type_=sa.String), sa.bindparam('age', type_=sa.Double)
_MOST = sa.bindparam('most', type_=sa.Integer)
_RENEW = (
    leases.update()
    .where(leases.c.owner == sa.bindparam('renewed'), leases.c.expires > engine.db_now())
    .values(expires=engine.db_now() + sa.bindparam('seconds', type_=sa.Double))
)
_LIVING = sa.select(leases.c.owner, leases.c.host).where(leases.c.expires > engine.db_now())
_FREE = (
    sa.select(
        operations.c.id,
        operations.c.uuid,
        operations.c.kind,
        operations.c.instance_uuid,
        operations.c.host,
        operations.c.cancelled,
        operations.c.failed,
        operations.c.owner,
    )
    .where(
        operations.c.id > sa.bindparam('after'),
        operations.c.slot != WAIT,
        operations.c.not_before <= engine.db_now(),
        engine.db_age(operations.c.created_at) >= _AGE,
        sa.or_(operations.c.owner.is_(None), operations.c.owner == _ME, operations.c.owner.not_in(_living())),
    )
    .order_by(operations.c.id)
    .limit(_MOST)
)
_STOPPED = (
    sa.select(operations.c.id, operations.c.uuid, operations.c.slot)
    .where(
        operations.c.id > sa.bindparam('after'),
        sa.or_(
            sa.and_(operations.c.slot == WAIT, engine.db_age(operations.c.created_at) >= _AGE),
            sa.and_(operations.c.owner == _ME, operations.c.cancelled == sa.true(), operations.c.failed == sa.false()),
        ),
    )
    .order_by(operations.c.id)
    .limit(_MOST)
)

# These statements run for every step, so they are built only once.
# Parameter names begin with 'of_', because SQLAlchemy refuses a parameter of an UPDATE named like a column.
_OF, _OWNER = sa.bindparam('of_uuid', type_=sa.String), sa.bindparam('of_owner', type_=sa.String)
_UUIDS = sa.bindparam('of_uuids', type_=sa.String, expanding=True)
_TAKE = (
    operations.update()
    .where(
        operations.c.uuid.in_(_UUIDS),
        operations.c.slot != WAIT,
        sa.or_(operations.c.owner.is_(None), operations.c.owner == _OWNER, operations.c.owner.not_in(_living())),
        operations.c.not_before <= engine.db_now(),
        _OWNER.in_(_living()),
    )
    .values(owner=_OWNER)
)
_TAKEN = (
    sa.select(operations)
    .where(operations.c.uuid.in_(_UUIDS), operations.c.owner == _OWNER, operations.c.slot != WAIT)
    .order_by(operations.c.id)
)
_BEGIN_LEASE = leases.insert().values(
    owner=_OWNER,
    host=sa.bindparam('of_host', type_=sa.String),
    expires=engine.db_now() + sa.bindparam('seconds', type_=sa.Double),
)
_LONG_OVER = leases.delete().where(leases.c.expires < engine.db_now() - 3600)


@functools.cache
def _owned(placed: bool, cancelled: bool) -> tuple[Any, ...]:
    """Return SQL conditions: the operation row has the owner given as parameter, and the owner's lease is valid.

    If ``placed`` is True, the row must also have the position and attempt given as parameters. If ``cancelled`` is
    False, the row must not be cancelled. ``_owner`` returns the values of the parameters.
    """
    conditions = [
        operations.c.uuid == _OF,
        operations.c.owner == _OWNER,
        sa.exists().where(leases.c.owner == _OWNER, leases.c.expires > engine.db_now()),
    ]
    if placed:
        conditions += [
            operations.c.position == sa.bindparam('of_position'),
            operations.c.attempt == sa.bindparam('of_attempt'),
        ]
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
        sa.or_(operations.c.cancelled == sa.false(), operations.c.failed == sa.true()),
    )


def _owner(uuid: str, owner: str, at: Place | None = None) -> dict[str, Any]:
    """Return {name: value} of the parameters in the SQL conditions that ``_owned`` returns.

    ``uuid`` is the uuid of the operation, and ``owner`` the conductor process that must own it. ``at`` is the position
    and attempt that the row must have, or None if they don't matter.
    """
    place = {} if at is None else {'of_position': at[0], 'of_attempt': at[1]}
    return {'of_uuid': uuid, 'of_owner': owner, **place}


@engine.retried
def take(db: engine.Database, uuids: Sequence[str], owner: str) -> list[OperationRow]:
    """Take ownership of these operation rows by compare-and-swap, and return the rows that were taken.

    Rows of another owner with a valid lease are left out. If the lease of ``owner`` has expired, no rows are taken.
    Rows that cannot be read (``OperationRow.unreadable``) are included: the caller must release them by ``set_aside``.
    """
    with db.write() as conn:
        asked = {'of_uuids': list(uuids), 'of_owner': owner}
        conn.execute(_TAKE, asked)
        rows = conn.execute(_TAKEN, asked).mappings().all()
    return [OperationRow.read(row) for row in rows]


def stands(conn: sa.Connection, uuid: str, owner: str, at: Place) -> bool:
    """Return whether a conductor process (the ``owner``) may continue an operation.

    The owner's lease must be valid, and the row must have this owner, position and attempt. If the operation was
    cancelled, only its undo may continue.
    """
    return conn.execute(_stands(), _owner(uuid, owner, at)).first() is not None


def free(conn: sa.Connection, owner: str, limit: int, age: float = -60.0, after: int = 0) -> list[OperationRow]:
    """Return operation rows that an owner may take now, oldest first, without their JSON columns.

    These are rows without an owner, rows of owners whose lease has expired, and rows of this owner itself (the caller
    knows on which rows it works already). ``age`` is the minimum age of a row in seconds. Younger rows are skipped,
    because the message that tells a conductor about the row may still be on its way. The default of -60 skips no row:
    a row has a negative age if the database's clock was set back after the row was created. Only rows with ids greater
    than ``after`` are returned.
    """
    rows = conn.execute(_FREE, {'me': owner, 'after': after, 'age': age, 'most': limit}).mappings().all()
    return [OperationRow.read(row) for row in rows]


def stopped(
    conn: sa.Connection, owner: str, limit: int, age: float = -60.0, after: int = 0
) -> tuple[list[str], list[str], int]:
    """Find cancelled operations that may still run on a host because the host did not receive the cancel.

    The result is a tuple of three values:

    - the uuids of operations, such as deletes, that wait until a cancelled operation ends, oldest first
    - the uuids of this owner's cancelled operations whose undo has not begun, oldest first
    - the value of ``after`` for the next call, or 0 if no rows are left

    An operation waits only for a cancelled operation of its server, so it shows that there is one. At most ``limit``
    rows with ids greater than ``after`` are read. Waiting operations that are younger than ``age`` seconds are left
    out; with the negative default none is left out.
    """
    rows = conn.execute(_STOPPED, {'me': owner, 'age': age, 'most': limit, 'after': after}).all()
    return (
        [row.uuid for row in rows if row.slot == WAIT],
        [row.uuid for row in rows if row.slot != WAIT],
        rows[-1].id if len(rows) == limit else 0,
    )


def decide(
    conn: sa.Connection,
    uuid: str,
    owner: str,
    values: dict[str, Any],
    *,
    at: Place | None = None,
    cancelled: bool = False,
) -> bool:
    """Update an operation row if it has this owner, whose lease is valid. Return False if no row was changed.

    If ``at`` is given, the row must also have this position and attempt. If ``cancelled`` is False, the row must not be
    cancelled.
    """
    encoded = {
        name: json.dumps(value) if name in ('args', 'outputs', 'error') and value is not None else value
        for name, value in values.items()
    }
    return conn.execute(_decide(at is not None, cancelled).values(**encoded), _owner(uuid, owner, at)).rowcount == 1


def give_back(conn: sa.Connection, uuid: str, owner: str, at: Place, pause: float, outputs: dict[str, Any]) -> bool:
    """Release an operation row of this owner, so that any conductor may take it after ``pause`` seconds.

    The row must be at this position and attempt. If the operation was cancelled and its undo has not begun, the row may
    be taken at once, because another operation waits for the undo. Return False if the owner has lost the row.
    """
    stopped_now = sa.and_(operations.c.cancelled == sa.true(), operations.c.failed == sa.false())
    return (
        conn.execute(
            _decide(placed=True, cancelled=True).values(
                owner=None,
                outputs=json.dumps(outputs),
                not_before=engine.db_now() + sa.case((stopped_now, 0.0), else_=pause),
            ),
            _owner(uuid, owner, at),
        ).rowcount
        == 1
    )


@engine.retried
def set_aside(db: engine.Database, uuid: str, owner: str, pause: float) -> None:
    """Release an operation row of this owner that cannot be read. No conductor takes it for ``pause`` seconds.

    Nothing else in the row is changed, so that an operator can repair it.
    """
    with db.write() as conn:
        conn.execute(
            operations.update()
            .where(operations.c.uuid == uuid, operations.c.owner == owner)
            .values(owner=None, not_before=engine.db_now() + pause)
        )


def lives(conn: sa.Connection, owner: str) -> bool:
    """Return whether the owner's lease is valid."""
    return (
        conn.execute(
            sa.select(leases.c.owner).where(leases.c.owner == owner, leases.c.expires > engine.db_now())
        ).first()
        is not None
    )


def end_owned(conn: sa.Connection, uuid: str, owner: str, cancelled: bool, at: Place | None = None) -> bool:
    """Delete an operation row if it has this owner, whose lease is valid. Return False if no row was deleted.

    If ``at`` is given, the row must also have this position and attempt. If ``cancelled`` is False, the row must not be
    cancelled.
    """
    return conn.execute(_end(at is not None, cancelled), _owner(uuid, owner, at)).rowcount == 1


@engine.retried
def begin_lease(db: engine.Database, owner: str, host: str, seconds: float) -> None:
    """Insert the lease of a new owner. Also delete leases that expired more than an hour ago.

    The lease is valid for ``seconds`` seconds by the database's clock.
    """
    with db.write() as conn:
        if engine.repeated() and conn.execute(sa.select(leases.c.owner).where(leases.c.owner == owner)).first():
            return
        conn.execute(_BEGIN_LEASE, {'of_owner': owner, 'of_host': host, 'seconds': seconds})
        conn.execute(_LONG_OVER)


@engine.retried
def renew_lease(db: engine.Database, owner: str, seconds: float) -> bool:
    """Extend a lease by ``seconds`` from now. Return False if the lease has expired or does not exist.

    An expired lease is never renewed. Runs one SQL statement.
    """
    with db.write() as conn:
        return conn.execute(_RENEW, {'renewed': owner, 'seconds': seconds}).rowcount == 1


def living(conn: sa.Connection) -> list[tuple[str, str]]:
    """Return the valid leases as (owner, description of the owner's process)."""
    return [(row.owner, row.host) for row in conn.execute(_LIVING)]


@engine.retried
def drop_lease(db: engine.Database, owner: str) -> None:
    """Release all operation rows of an owner and delete its lease, because its conductor process ends."""
    with db.write() as conn:
        conn.execute(operations.update().where(operations.c.owner == owner).values(owner=None))
        conn.execute(leases.delete().where(leases.c.owner == owner))


def own(conn: sa.Connection, uuid: str, owner: str) -> None:
    """Make ``owner`` the owner of an operation row in a cell, if the row has no owner with a valid lease.

    The operation of a new server is first in the API database. The conductor that owns it copies it to the server's
    cell. If the conductor repeats this step, the cell already has the row, and this call makes the conductor its owner.
    """
    living = _living()
    conn.execute(
        operations.update()
        .where(
            operations.c.uuid == uuid,
            sa.literal(owner).in_(living),
            sa.or_(operations.c.owner.is_(None), operations.c.owner.not_in(living)),
        )
        .values(owner=owner)
    )
