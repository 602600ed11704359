"""Statements that many tables share."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kilonova.db.models.cell import Service
from kilonova.db.rows import insert_missing, many, one, soft_delete

services = Service.__table__


def row(host, **values):
    return {'host': host, 'binary': 'b', 'topic': 't', **values}


def test_rows_that_are_there_stay(cell, statements):
    with cell.write() as connection:
        insert_missing(connection, services, [row('a', version=1)])
        insert_missing(connection, services, [row('a', version=2), row('b', version=2)])
        insert_missing(connection, services, [])
        assert len(statements) == 2
        found = many(connection.execute(sa.select(services.c.host, services.c.version)))
    assert found == [{'host': 'a', 'version': 1}, {'host': 'b', 'version': 2}]


def test_rows_of_one_insert_have_the_same_columns(cell):
    with cell.write() as connection, pytest.raises(ValueError, match='same columns'):
        insert_missing(connection, services, [row('a'), row('b', version=2)])


def test_shared_expressions(cell):
    with cell.write() as connection:
        insert_missing(connection, services, [row('a'), row('b')], disabled_reason=sa.literal('x') + 'y')
        reasons = connection.execute(sa.select(services.c.disabled_reason)).scalars().all()
    assert reasons == ['xy', 'xy']


def test_one_is_a_dict_or_none(cell):
    with cell.write() as connection:
        insert_missing(connection, services, [row('a')])
        query = sa.select(services.c.host)
        assert one(connection.execute(query)) == {'host': 'a'}
        assert one(connection.execute(query.where(services.c.host == 'z'))) is None


def test_soft_delete_marks_live_rows_once(cell):
    with cell.write() as connection:
        insert_missing(connection, services, [row('a'), row('b')])
        assert soft_delete(connection, services, services.c.host == 'b') == 1
        assert soft_delete(connection, services, services.c.host == 'b') == 0
        found = many(connection.execute(sa.select(services.c.host, services.c.deleted, services.c.updated_at)))
    assert found == [{'host': 'a', 'deleted': 0, 'updated_at': None}, {'host': 'b', 'deleted': 2, 'updated_at': None}]
