r"""Servers by an address of a port: a user's regular expression as one that is found in the JSON text of an info cache.

    of_cache(r'^10\.2\.', 4)            # '"address": "(10[.]2[.][0-9a-f.:]*)", "type": "fixed", "version": 4'

A VIF's fixed address stands there as ``objects.vif`` writes it. An expression for it has what can stand in an address,
so that it never reaches beyond the quotes: hexadecimal digits, dots and colons, escaped or not, ``\d``, sets of these,
groups, alternatives and quantifiers; anchors at the ends of whole alternatives.
"""
from __future__ import annotations

import re

from kilonova.db import expressions
from kilonova.db.expressions import BadExpression

_TOKEN = re.compile(r'\\[.:d]|\[[0-9a-f.:-]+\]|\((?!\?)|[0-9a-f:.)|*+?{},^$]', re.IGNORECASE)
_ANY = '[0-9a-f.:]'
_OTHERWISE = {'.': _ANY, r'\.': '[.]', r'\:': ':', r'\d': '[0-9]'}


def of_cache(pattern: str, version: int) -> str:
    """BadExpression: it can't be told of addresses, or is too long."""
    found = '|'.join(_within_quotes(part) for part in _alternatives(pattern))
    expression = f'"address": "({found})", "type": "fixed", "version": {version}'
    expressions.compiled(expression)
    return expression


def _alternatives(pattern: str) -> list[list[str]]:
    """The tokens of each, as they are to stand."""
    parts: list[list[str]] = [[]]
    at, depth = 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise BadExpression(f'{pattern[at:at + 2]!r} is not understood in addresses')
        at, text = token.end(), token[0].lower()
        depth += {'(': 1, ')': -1}.get(text, 0)
        if text == '|' and not depth:
            parts.append([])
        else:
            parts[-1].append(_OTHERWISE.get(text, text))
    return parts


def _within_quotes(tokens: list[str]) -> str:
    first, last = tokens[:1] == ['^'], tokens[-1:] == ['$']
    inner = tokens[first:len(tokens) - last]
    if '^' in inner or '$' in inner:
        raise BadExpression('^ and $ stand at the ends of alternatives only')
    return ('' if first else f'{_ANY}*') + ''.join(inner) + ('' if last else f'{_ANY}*')
