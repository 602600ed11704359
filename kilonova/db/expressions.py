r"""Regular expressions of users, which are compiled and searched with RE2.

    find('^a+$', 'aaa')                 # True; the time depends linearly on the text, for any expression
    compiled('(a)\\1')                  # raises BadExpression: invalid escape sequence: \1

RE2's syntax (https://github.com/google/re2/wiki/Syntax) has no back references and no look-arounds, which can't be
searched in linear time. On SQLite, ``find`` implements REGEXP. MySQL, MariaDB and PostgreSQL have their own engines for
regular expressions, and receive only expressions that RE2 accepts. On these databases, [database]statement_timeout
limits the time of the whole statement.
"""

from __future__ import annotations

import functools
from typing import Any

import re2

# MOST is the maximum number of characters of an expression.
# _MEMORY is the maximum number of bytes of the compiled expression and of its search.
MOST = 255
_MEMORY = 1 << 18


class BadExpression(ValueError):
    """The text is not a regular expression that RE2 accepts."""


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Return the compiled form of an expression. Raises BadExpression if it is malformed, too long or too complex."""
    if len(pattern) > MOST:
        raise BadExpression(f'the expression has more than {MOST} characters')
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise BadExpression(reason.decode(errors='replace') if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise BadExpression('the expression is not valid Unicode text') from None


def find(pattern: str, text: object) -> bool | None:
    """Return whether the expression matches anywhere in the text.

    Return None if the text is None, like SQL for NULL.
    """
    return None if text is None else compiled(pattern).search(str(text)) is not None
