"""``from_user``, which turns database errors about a user's regular expression into errors for the user (HTTP 400)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from kilonova.errors import Invalid

# Error codes of an invalid expression: ER_REGEXP_ERROR of MariaDB, and the errors of the ICU library in MySQL 8.
_MYSQL = frozenset((1139, *range(3684, 3702)))
_POSTGRESQL = '2201B'
# Error codes of a statement that the database server ended because it took too long.
_SLOW_MYSQL, _SLOW_POSTGRESQL = frozenset((1969, 3024)), '57014'


class InvalidPattern(Invalid):
    """The database rejects the regular expression of a user as malformed (HTTP 400)."""

    msg_fmt = 'The database does not accept the regular expression of a filter: %(reason)s'


class SlowPattern(Invalid):
    """A statement with a user's regular expression took the database too long (HTTP 400)."""

    msg_fmt = 'The database takes too long to evaluate the filter %(pattern)s'


@contextmanager
def from_user(*used: str) -> Iterator[None]:
    """While the block runs a statement, replace the driver's errors about a user's regular expression.

    Raises InvalidPattern if the database rejects an expression, and SlowPattern if the database ended the statement
    because it took too long. Other errors pass unchanged. ``used`` are the user's expressions in the statement. If
    there are none, SlowPattern is not raised. The API has already checked the expressions with RE2, but PostgreSQL and
    MySQL have other syntaxes. In addition, MySQL and MariaDB try all ways to match, which can take very long.
    """
    try:
        yield
    except exc.DBAPIError as error:
        original = error.orig
        code = original.args[0] if original is not None and original.args else None
        state = getattr(original, 'pgcode', None)
        if code in _MYSQL or state == _POSTGRESQL:
            raise InvalidPattern(reason=str(original)) from error
        if used and (code in _SLOW_MYSQL or state == _SLOW_POSTGRESQL):
            raise SlowPattern(pattern=', '.join(used)) from error
        raise
