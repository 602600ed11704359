"""Read and write the key pairs of users (API database). The table holds public keys only."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import engine, failures
from kilonova.db.engine import Database
from kilonova.db.models.api import KeyPair
from kilonova.db.models.base import utcnow
from kilonova.db.rows import Row, many, one

key_pairs = KeyPair.__table__


def page(conn: Connection, user_id: str, limit: int | None = None, marker: str | None = None) -> list[Row]:
    """Return a user's key pairs whose names come after ``marker``, sorted by name. Runs one SQL statement."""
    query = sa.select(key_pairs).where(key_pairs.c.user_id == user_id).order_by(key_pairs.c.name)
    if marker is not None:
        query = query.where(key_pairs.c.name > marker)
    return many(conn.execute(query if limit is None else query.limit(limit)))


def get(conn: Connection, user_id: str, name: str) -> Row | None:
    """Return the user's key pair of this name, or None if the user has no such key pair."""
    return one(conn.execute(sa.select(key_pairs).where(key_pairs.c.user_id == user_id, key_pairs.c.name == name)))


def count(conn: Connection, user_id: str) -> int:
    """Return the number of key pairs that a user has."""
    return conn.execute(sa.select(sa.func.count()).where(key_pairs.c.user_id == user_id)).scalar_one()


def create(database: Database, values: Row) -> Row | None:
    """Insert a key pair and return its row, or None if the user already has a key pair of that name.

    If the database's answer to the commit is lost, the transaction is not repeated: the second attempt would find the
    row of the first attempt, and wrongly return None.
    """
    row = {**values, 'created_at': utcnow(), 'updated_at': None}
    try:
        with database.write() as conn:
            key = conn.execute(key_pairs.insert(), row).inserted_primary_key
        assert key is not None
        row['id'] = key[0]
    except sa.exc.IntegrityError as error:
        if failures.is_duplicate(error):
            return None
        raise
    return row


@engine.retried
def delete(database: Database, user_id: str, name: str) -> bool:
    """Delete a user's key pair. Return False if the user has no key pair of that name."""
    with database.write() as conn:
        return (
            conn.execute(key_pairs.delete().where(key_pairs.c.user_id == user_id, key_pairs.c.name == name)).rowcount
            == 1
        )
