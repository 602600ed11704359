"""What database errors mean, and who is called again."""

from __future__ import annotations

import itertools
import sqlite3

import psycopg2
import pymysql
import pytest
from sqlalchemy import exc

from kilonova import errors
from kilonova.db import engine, failures


def mysql(code, kind=pymysql.err.OperationalError):
    return exc.OperationalError('SELECT 1', {}, kind(code, 'text'))


def postgresql(code, wrapper=exc.OperationalError):
    class Coded(psycopg2.OperationalError):
        pgcode = code

    return wrapper('SELECT 1', {}, Coded('text'))


def sqlite(text, wrapper=exc.OperationalError):
    return wrapper('SELECT 1', {}, sqlite3.OperationalError(text))


LOST = exc.OperationalError('SELECT 1', {}, pymysql.err.OperationalError(2013, 'lost'), connection_invalidated=True)


def unanswered(original):
    """What becomes of a driver's error that it raises as its socket timed out."""
    try:
        try:
            raise TimeoutError('timed out')
        except TimeoutError as error:
            if isinstance(original, psycopg2.Error):
                raise original from error
            raise original  # noqa: B904 - as PyMySQL does
    except (psycopg2.Error, pymysql.Error) as error:
        return exc.OperationalError('SELECT 1', {}, error, connection_invalidated=True)


@pytest.mark.parametrize(
    ('error', 'retriable', 'unreachable'),
    [
        (mysql(1213), True, False),
        (mysql(1205), True, True),
        (mysql(1969), False, True),
        (mysql(3024), False, True),
        (mysql(1020), True, False),
        (mysql(2003), False, True),
        (mysql(1040), False, True),
        (mysql(1064), False, False),
        (LOST, True, True),
        (unanswered(pymysql.err.OperationalError(2013, 'lost (timed out)')), False, True),
        (unanswered(pymysql.err.OperationalError(2006, 'gone away (timed out)')), False, True),
        (unanswered(pymysql.err.OperationalError(1213, 'deadlock, long after some time-out')), True, True),
        (unanswered(psycopg2.OperationalError('no answer within 11 s')), False, True),
        (postgresql('40P01'), True, False),
        (postgresql('55P03'), True, True),
        (postgresql('57014', exc.DBAPIError), False, True),
        (postgresql('40001'), True, False),
        (postgresql('57P03'), False, True),
        (postgresql('53300'), False, True),
        (postgresql('42601'), False, False),
        (exc.OperationalError('SELECT 1', {}, psycopg2.OperationalError('connection refused')), False, True),
        (sqlite('database is locked'), False, True),
        (sqlite('unable to open database file'), False, True),
        (sqlite('interrupted'), False, True),
        (sqlite('no such table: services'), False, False),
        (exc.TimeoutError('pool is used up'), False, True),
        (errors.Conflict(), False, False),
        (ValueError('x'), False, False),
    ],
)
def test_meaning(error, retriable, unreachable):
    assert (failures.is_retriable(error), failures.is_unreachable(error)) == (retriable, unreachable)


@pytest.mark.parametrize(
    ('original', 'duplicate'),
    [
        (pymysql.err.IntegrityError(1062, 'Duplicate entry'), True),
        (pymysql.err.IntegrityError(1452, 'foreign key'), False),
        (sqlite3.IntegrityError('UNIQUE constraint failed: services.uuid'), True),
        (sqlite3.IntegrityError('FOREIGN KEY constraint failed'), False),
    ],
)
def test_duplicates_are_told_from_other_integrity_errors(original, duplicate):
    assert failures.is_duplicate(exc.IntegrityError('INSERT', {}, original)) is duplicate
    assert not failures.is_duplicate(original)


@pytest.fixture
def quick(monkeypatch):
    """No waiting; the pauses that were asked for."""
    slept = []
    monkeypatch.setattr(failures.time, 'sleep', slept.append)
    return slept


def failing(times, error):
    calls = itertools.count(1)

    @engine.retried
    def function(value):
        if next(calls) <= times:
            raise error
        return value

    return function


def test_a_deadlock_is_tried_again(quick):
    assert failing(3, mysql(1213))('result') == 'result'
    assert len(quick) == 3


def test_retries_end(quick):
    with pytest.raises(exc.OperationalError):
        failing(100, LOST)('result')
    assert len(quick) == engine.PoolOptions.max_retries


def test_the_option_bounds_retries(quick):
    engine.install(engine.Databases(None, None, main_options=engine.PoolOptions(max_retries=2)))
    try:
        with pytest.raises(exc.OperationalError):
            failing(100, mysql(1205))('result')
    finally:
        engine.install(None)
    assert len(quick) == 2


def test_nothing_is_tried_again_once_the_time_of_a_statement_is_over(quick, monkeypatch):
    """A statement is not tried again after its time is over, even if each wait for a lock was short enough."""
    clock = itertools.count(0, 4)
    monkeypatch.setattr(failures.time, 'monotonic', lambda: next(clock))
    with pytest.raises(exc.OperationalError):
        failing(100, mysql(1205))('result')
    assert engine.PoolOptions.statement_timeout == 10
    assert len(quick) == 2


@pytest.mark.parametrize(
    'error',
    [
        mysql(1064),
        mysql(2003),
        sqlite('database is locked'),
        errors.Conflict(),
        unanswered(pymysql.err.OperationalError(2013, 'lost (timed out)')),
    ],
)
def test_other_errors_are_not_tried_again(error, quick):
    with pytest.raises(type(error)):
        failing(1, error)('result')
    assert quick == []


def test_pauses_grow_up_to_a_second_and_a_half():
    waits = [failures.pause(number) for number in range(2000)]
    assert waits[0] <= 0.015
    assert waits[11] >= 0.5 and all(wait <= 1.5 for wait in waits)


def test_retries_may_have_no_end(quick):
    engine.install(engine.Databases(None, None, main_options=engine.PoolOptions(max_retries=-1, statement_timeout=0)))
    try:
        assert failing(2000, mysql(1205))('result') == 'result'
    finally:
        engine.install(None)
