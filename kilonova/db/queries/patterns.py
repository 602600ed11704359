"""Regular expressions that come from users: what a database says about a malformed one, or one that takes too long."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from kilonova.errors import Invalid

# MariaDB's ER_REGEXP_ERROR, and the range in which MySQL 8 keeps those of ICU.
_MYSQL = frozenset((1139, *range(3684, 3702)))
_POSTGRESQL = '2201B'
# The server ended a statement that took too long.
_SLOW_MYSQL, _SLOW_POSTGRESQL = frozenset((1969, 3024)), '57014'


class InvalidPattern(Invalid):
    msg_fmt = 'A filter is no regular expression that the database understands: %(reason)s'


class SlowPattern(Invalid):
    msg_fmt = 'A filter takes the database too long: %(pattern)s'


@contextmanager
def from_user(*used: str) -> Iterator[None]:
    """Around a statement with ``regexp_match``: InvalidPattern or SlowPattern (400) instead of the driver's error.

    ``used``: the expressions, if there are any. RE2's syntax is checked before; PostgreSQL and MySQL have others, and
    those of MySQL and MariaDB try all ways to match.
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
