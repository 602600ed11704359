"""Regular expressions that come from users: what a database says about a malformed one."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from kilonova.errors import Invalid

# MariaDB's ER_REGEXP_ERROR, and the range in which MySQL 8 keeps those of ICU.
_MYSQL = frozenset((1139, *range(3684, 3702)))
_POSTGRESQL = '2201B'


class InvalidPattern(Invalid):
    msg_fmt = 'A filter is no regular expression that the database understands: %(reason)s'


@contextmanager
def from_user() -> Iterator[None]:
    """Around a statement with ``regexp_match``: InvalidPattern (400) instead of the driver's error.

    Python's own syntax is checked before; PostgreSQL and MySQL have others.
    """
    try:
        yield
    except exc.DBAPIError as error:
        original = error.orig
        code = original.args[0] if original is not None and original.args else None
        if code in _MYSQL or getattr(original, 'pgcode', None) == _POSTGRESQL:
            raise InvalidPattern(reason=str(original)) from error
        raise
