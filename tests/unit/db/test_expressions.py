"""Users' regular expressions: what is understood, and that none takes long."""

from __future__ import annotations

import datetime
import time

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from kilonova.db import expressions
from kilonova.db.queries import patterns, servers

SLOW, TEXT = '^(a+)+$', 'a' * 200 + '!'


@pytest.mark.parametrize(
    'pattern',
    [
        r'(a)\1',
        '(?=a)',
        '(?<!a)',
        '[',
        '(?P<n',
        'a{2000}',
        '(((a{1,30}){1,30}){1,30})',
        'x' * 256,
        '\ud800',
        r'(\pL{500}){2}',
    ],
)
def test_what_is_not_understood(pattern):
    """A regular expression that would need a backtracking engine, or is too large, is refused with a reason."""
    with pytest.raises(expressions.BadExpression) as caught:
        expressions.compiled(pattern)
    assert str(caught.value)


@pytest.mark.parametrize(
    ('pattern', 'found'), [('^a', True), ('é$', False), ('(?i)A{3}', True), ('[[:alpha:]]+!', True)]
)
def test_what_is_found(pattern, found):
    assert expressions.find(pattern, TEXT) is found
    assert expressions.find(pattern, None) is None


@pytest.mark.parametrize('pattern', [SLOW, '(a|aa)+$', '(.*a){25}b', '(a*)*b', '(a?){120}a{120}$'])
def test_time_grows_with_the_text_alone(pattern):
    """The time of a search grows with the length of the text only, whatever the regular expression is."""
    begun = time.process_time()
    for _ in range(20):
        assert expressions.find(pattern, TEXT) is False
    assert time.process_time() - begun < 0.5


def test_sqlite_and_servers_that_are_still_scheduled_use_the_same(cell):
    """SQLite and the filter of servers without a host search with kilonova.db.expressions, not with the module re."""
    with cell.read() as conn:
        assert conn.execute(sa.select(sa.literal(TEXT).regexp_match(SLOW))).scalar() == 0
        assert conn.execute(sa.select(sa.literal('aaa').regexp_match(SLOW))).scalar() == 1
        assert conn.execute(sa.select(sa.null().regexp_match(SLOW))).scalar() is None
    filters, row = servers.Filters(regex={'display_name': SLOW}), {'created_at': datetime.datetime(2026, 1, 1)}
    assert not filters.matches({**row, 'display_name': TEXT})
    assert filters.matches({**row, 'display_name': 'aaa'})


@pytest.mark.parametrize(('code', 'state'), [(1969, None), (3024, None), ('', '57014')])
def test_a_database_that_ends_it_is_told_to_its_user(code, state):
    """A search that the database ends because it takes too long is answered with 400 and the pattern.

    MariaDB, MySQL and PostgreSQL use their own backtracking engines within the time of a statement.
    """
    original = Exception(code, 'it took too long')
    original.pgcode = state
    error = exc.DBAPIError('SELECT 1', {}, original)
    with pytest.raises(patterns.SlowPattern) as caught, patterns.from_user(SLOW):
        raise error
    assert (caught.value.code, SLOW in str(caught.value)) == (400, True)
    with pytest.raises(exc.DBAPIError), patterns.from_user():
        raise error
