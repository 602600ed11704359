"""Time by the database's clock."""

from __future__ import annotations

import datetime as dt
import time

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.base import utcnow
from kilonova.db.models.cell import Lease, Service

services = Service.__table__
leases = Lease.__table__


def test_now_is_epoch_seconds(cell):
    before = time.time()
    with cell.read() as connection:
        moment = engine.now(connection)
    assert isinstance(moment, float)
    # SQLite's clock has milliseconds.
    assert before - 0.01 <= moment <= time.time() + 0.01


def test_leases_are_written_and_compared_by_it(cell):
    with cell.write() as connection:
        connection.execute(sa.insert(leases).values(owner='a', expires=engine.db_now() + 30))
        connection.execute(sa.insert(leases).values(owner='b', expires=engine.db_now() - 1))
    with cell.read() as connection:
        living = connection.execute(sa.select(leases.c.owner).where(leases.c.expires > engine.db_now())).scalars()
        assert list(living) == ['a']


def test_utcnow_reads_back_as_naive_utc(cell):
    with cell.write() as connection:
        connection.execute(sa.insert(services).values(host='a', binary='b', last_seen_up=engine.db_utcnow()))
    with cell.read() as connection:
        moment = connection.execute(sa.select(services.c.last_seen_up)).scalar_one()
        # What SQL wrote and what Python wrote must compare as times, not just as texts.
        later = connection.execute(
            sa.select(services.c.id).where(
                services.c.last_seen_up < utcnow() + dt.timedelta(seconds=5),
                services.c.last_seen_up > utcnow() - dt.timedelta(seconds=5),
            )
        ).all()
    assert abs((moment - utcnow()).total_seconds()) < 5
    assert len(later) == 1


def test_age_in_seconds_and_null(cell):
    old = utcnow() - dt.timedelta(minutes=2)
    with cell.write() as connection:
        connection.execute(
            sa.insert(services),
            [{'host': 'a', 'binary': 'x', 'last_seen_up': old}, {'host': 'b', 'binary': 'x', 'last_seen_up': None}],
        )
    with cell.read() as connection:
        ages = dict(connection.execute(sa.select(services.c.host, engine.db_age(services.c.last_seen_up))).all())
    assert 120 <= ages['a'] < 130
    assert ages['b'] is None


def test_its_expressions_are_compiled_once(cell):
    """Heartbeats, leases and the taking of rows run all the time."""
    compiled = []
    with cell.write() as connection:
        for seconds in (30, 60):
            result = connection.execute(
                sa.update(leases).where(leases.c.expires < engine.db_now()).values(expires=engine.db_now() + seconds)
            )
            compiled.append(result.context.compiled)
            result = connection.execute(
                sa.update(services).where(services.c.id == 0).values(last_seen_up=engine.db_utcnow())
            )
            compiled.append(result.context.compiled)
    assert compiled[0] is compiled[2] and compiled[1] is compiled[3]


def test_each_dialect_has_each_expression():
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    expected = {
        mysql.dialect(): ('UNIX_TIMESTAMP', 'UTC_TIMESTAMP', 'TIMESTAMPDIFF'),
        postgresql.dialect(): ('statement_timestamp', "timezone('utc'", 'EXTRACT(EPOCH FROM (timezone'),
        sqlite.dialect(): ('julianday', 'strftime', 'julianday(services.last_seen_up)'),
    }
    for dialect, texts in expected.items():
        for element, text in zip(
            (engine.db_now(), engine.db_utcnow(), engine.db_age(services.c.last_seen_up)), texts, strict=True
        ):
            assert text in str(element.compile(dialect=dialect))
