"""Read operation rows for operators, without data that only the conductor needs (tokens, sealed secrets).

    for row in shown(connection, server='5c…'):
        row['kind'], row['conductor']      # 'resize', 'ctl1'
        row['waits']                       # 0.0: seconds until a conductor may take the row

Each call runs one SQL statement.
"""

from __future__ import annotations

import sqlalchemy as sa

from kilonova import texts
from kilonova.db.clock import db_now
from kilonova.db.models import cell as models
from kilonova.db.rows import Row

operations = models.Operation.__table__
leases = models.Lease.__table__

_PLAIN = (
    'uuid',
    'kind',
    'instance_uuid',
    'slot',
    'position',
    'attempt',
    'owner',
    'host',
    'request_id',
    'failed',
    'undoing',
    'cancelled',
    'error',
    'created_at',
)


def shown(connection: sa.Connection, server: str | None = None, uuid: str | None = None) -> list[Row]:
    """Return operation rows, oldest first: all rows, the rows of one ``server``, or the row with this ``uuid``.

    In addition to plain columns, each row has:

        conductor  the host of the conductor that owns the row; None without an owner or if its lease has expired
        waits      seconds until a conductor may take the row
        args       only the names of the arguments
        outputs    the results of the operation's steps
        stored     kind, args, context and outputs as stored in the database; not for printing: it contains secrets
    """
    query = (
        sa.select(
            *(operations.c[name] for name in _PLAIN),
            operations.c.args,
            operations.c.outputs,
            operations.c.context,
            (operations.c.not_before - db_now()).label('waits'),
            leases.c.host.label('conductor'),
        )
        .join_from(
            operations, leases, sa.and_(leases.c.owner == operations.c.owner, leases.c.expires > db_now()), isouter=True
        )
        .order_by(operations.c.id)
    )
    if server is not None:
        query = query.where(operations.c.instance_uuid == server)
    if uuid is not None:
        query = query.where(operations.c.uuid == uuid)
    return [_shown(row) for row in connection.execute(query).mappings()]


def _shown(row: sa.RowMapping) -> Row:
    read, _ = texts.split(row, ('args', 'outputs'))
    stored = {name: row[name] for name in ('kind', 'args', 'context', 'outputs')}
    return {
        **{name: row[name] for name in (*_PLAIN, 'conductor')},
        'waits': max(float(row['waits']), 0.0),
        'args': sorted(read['args']),
        'outputs': read['outputs'],
        'stored': stored,
    }
