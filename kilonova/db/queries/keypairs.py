"""Key pairs of users (API database). Only public keys are ever here."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kilonova.db import engine, failures
from kilonova.db.models.api import KeyPair
from kilonova.db.models.base import utcnow
from kilonova.db.rows import Row, many, one

key_pairs = KeyPair.__table__


def page(conn: Any, user_id: str, limit: int | None = None, marker: str | None = None) -> list[Row]:
    """A user's key pairs behind the name ``marker``, by name. One statement."""
    query = sa.select(key_pairs).where(key_pairs.c.user_id == user_id).order_by(key_pairs.c.name)
    if marker is not None:
        query = query.where(key_pairs.c.name > marker)
    return many(conn.execute(query if limit is None else query.limit(limit)))


def get(conn: Any, user_id: str, name: str) -> Row | None:
    """One key pair, or None."""
    return one(conn.execute(sa.select(key_pairs).where(key_pairs.c.user_id == user_id, key_pairs.c.name == name)))


def count(conn: Any, user_id: str) -> int:
    """How many a user has."""
    return conn.execute(sa.select(sa.func.count()).where(key_pairs.c.user_id == user_id)).scalar_one()


def create(database: Any, values: Row) -> Row | None:
    """Insert a key pair; its row, or None where the user has one of that name. It is not repeated: a lost answer would
    make the second try find its own row."""
    row = {**values, 'created_at': utcnow(), 'updated_at': None}
    try:
        with database.write() as conn:
            row['id'] = conn.execute(key_pairs.insert(), row).inserted_primary_key[0]
    except sa.exc.IntegrityError as error:
        if failures.is_duplicate(error):
            return None
        raise
    return row


@engine.retried
def delete(database: Any, user_id: str, name: str) -> bool:
    """False when there was none."""
    with database.write() as conn:
        return conn.execute(key_pairs.delete().where(
            key_pairs.c.user_id == user_id, key_pairs.c.name == name)).rowcount == 1
