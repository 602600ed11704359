r"""Translate a user's regular expression for addresses into an expression that searches the JSON text of info caches.

    of_cache(r'^10\.2\.', 4)            # '"address": "(10[.]2[.][0-9a-f.:]*)", "type": "fixed", "version": 4'

The API uses the result to find servers by the fixed address of a port. ``objects.vif`` writes the addresses of an
interface into the cache. A user's expression may contain hexadecimal digits, dots and colons (escaped or not), ``\d``,
character sets of these, groups, alternatives and quantifiers. Other characters are refused, because the expression
could match text outside of the quotes. The anchors ^ and $ are allowed only at the begin and at the end of a whole
alternative.
"""

from __future__ import annotations

import re

from kilonova.db import expressions
from kilonova.db.expressions import BadExpression

_TOKEN = re.compile(r'\\[.:d]|\[[0-9a-f.:-]+\]|\((?!\?)|[0-9a-f:.)|*+?{},^$]', re.IGNORECASE)
_ANY = '[0-9a-f.:]'
_OTHERWISE = {'.': _ANY, r'\.': '[.]', r'\:': ':', r'\d': '[0-9]'}


def of_cache(pattern: str, version: int) -> str:
    """Return a regular expression that finds matching fixed addresses in the text of an info cache.

    An address matches if the user's ``pattern`` matches it. ``version`` is the IP version of the addresses, 4 or 6.
    Raises BadExpression if the pattern contains anything that can't occur in an address, or is too long.
    """
    found = '|'.join(_within_quotes(part) for part in _alternatives(pattern))
    expression = f'"address": "({found})", "type": "fixed", "version": {version}'
    expressions.compiled(expression)
    return expression


def _alternatives(pattern: str) -> list[list[str]]:
    """Split a pattern at each '|' that is not in parentheses, and return the parts as lists of tokens.

    Each token is already replaced by a token that matches only characters of addresses: '.' by '[0-9a-f.:]', for
    example, so that it can't match the quotes around an address in the info cache.
    """
    parts: list[list[str]] = [[]]
    at, depth = 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise BadExpression(f'{pattern[at : at + 2]!r} is not supported in address patterns')
        at, text = token.end(), token[0].lower()
        depth += {'(': 1, ')': -1}.get(text, 0)
        if text == '|' and not depth:
            parts.append([])
        else:
            parts[-1].append(_OTHERWISE.get(text, text))
    return parts


def _within_quotes(tokens: list[str]) -> str:
    first, last = tokens[:1] == ['^'], tokens[-1:] == ['$']
    inner = tokens[first : len(tokens) - last]
    if '^' in inner or '$' in inner:
        raise BadExpression('^ must be at the start or after a | outside parentheses, $ at the end or before such a |')
    return ('' if first else f'{_ANY}*') + ''.join(inner) + ('' if last else f'{_ANY}*')
