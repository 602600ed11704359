"""Read and write the tokens of consoles (``console_auth_tokens``). Each token opens one console once, until it expires.

    token = console_tokens.add(cell, console, compute_host='gpu1', instance_uuid=uuid, lifetime=600)
    with cell.read() as conn:
        console_tokens.find(conn, token)        # {'host': '127.0.0.1', 'port': 5900, …}; None: unknown, expired, moved
    console_tokens.take(cell, token)            # True for the only caller that may open the console

A token is valid only while its server is on the host for which the token was made. So transactions that delete or move
a server need no statement for its tokens, and ``purge`` deletes them later. Times are by the database's clock.
"""

from __future__ import annotations

import hashlib
import uuid as uuids
from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.cell import ConsoleAuthToken, Instance
from kilonova.db.rows import Row, one

tokens = ConsoleAuthToken.__table__
instances = Instance.__table__

# Maximum number of tokens of a server. A further token replaces the oldest one.
MOST = 64

_HERE = sa.exists().where(
    instances.c.uuid == tokens.c.instance_uuid, instances.c.deleted == 0, instances.c.host == tokens.c.compute_host
)
_COLUMNS = [
    tokens.c[name]
    for name in (
        'console_type',
        'compute_host',
        'host',
        'port',
        'tls_port',
        'internal_access_path',
        'instance_uuid',
        'access_url_base',
    )
]


def digest(token: str) -> str:
    """Return the hash of a console token. Only the hash is stored, so readers of the database can't use the token."""
    return hashlib.sha256(token.encode()).hexdigest()


@engine.retried
def add(
    database: engine.Database, console: dict[str, Any], *, compute_host: str, instance_uuid: str, lifetime: int
) -> str:
    """Create a token for a console that is valid for ``lifetime`` seconds, and return the token (a uuid).

    ``console`` is a dict {console_type, host, port, tls_port, internal_access_path, access_url_base}.
    """
    token = str(uuids.uuid4())
    with database.write() as conn:
        old = list(
            conn.execute(
                sa.select(tokens.c.id)
                .where(tokens.c.instance_uuid == instance_uuid)
                .order_by(tokens.c.id.desc())
                .offset(MOST - 1)
                .limit(MOST)
            ).scalars()
        )
        if old:
            conn.execute(tokens.delete().where(tokens.c.id.in_(old)))
        conn.execute(
            tokens.insert(),
            {
                **console,
                'token_hash': digest(token),
                'compute_host': compute_host,
                'instance_uuid': instance_uuid,
                'expires': int(engine.now(conn)) + lifetime,
            },
        )
    return token


def find(conn: sa.Connection, token: str) -> Row | None:
    """Return the console that a token opens, with the ``seconds`` for which the token is still valid.

    Return None if the token does not exist or has expired, or if its server was moved or deleted.
    """
    return one(
        conn.execute(
            sa.select(*_COLUMNS, (tokens.c.expires - engine.db_now()).label('seconds')).where(
                tokens.c.token_hash == digest(token), tokens.c.expires > engine.db_now(), _HERE
            )
        )
    )


@engine.retried
def take(database: engine.Database, token: str) -> bool:
    """Use a token up by deleting it. Return False if the token was used before or is no longer valid."""
    with database.write() as conn:
        return (
            conn.execute(
                tokens.delete().where(tokens.c.token_hash == digest(token), tokens.c.expires > engine.db_now(), _HERE)
            ).rowcount
            == 1
        )


@engine.retried
def purge(database: engine.Database) -> int:
    """Delete all tokens that have expired, or whose server was deleted or moved. Return their number.

    Runs one SQL statement.
    """
    with database.write() as conn:
        return conn.execute(tokens.delete().where(sa.or_(tokens.c.expires <= engine.db_now(), ~_HERE))).rowcount
