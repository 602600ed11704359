"""Regular expressions that users write: what is understood, and how long it may take.

    find('^a+$', 'aaa')                 # True; in time that grows with the text alone, whatever the expression
    compiled('(a)\\\\1')                # BadExpression: invalid escape sequence: \\1

They are RE2's (https://github.com/google/re2/wiki/Syntax): no back references and no look-arounds, which nothing finds
in linear time. SQLite's REGEXP is this one. MySQL, MariaDB and PostgreSQL have engines of their own and get what RE2
understands; there the time of the whole statement is bounded ([database]statement_timeout).
"""
from __future__ import annotations

import functools
from typing import Any

import re2

# Characters of an expression; bytes that a compiled one may take, the states that it visits included.
MOST = 255
_MEMORY = 1 << 18


class BadExpression(ValueError):
    """The text says what is not understood."""


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """An expression to search with. BadExpression: it is none, or one that would cost too much."""
    if len(pattern) > MOST:
        raise BadExpression(f'it has more than {MOST} characters')
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise BadExpression(reason.decode(errors='replace') if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise BadExpression('it is no text') from None


def find(pattern: str, text: object) -> bool | None:
    """Whether the expression is found somewhere; None for NULL, as SQL has it."""
    return None if text is None else compiled(pattern).search(str(text)) is not None
