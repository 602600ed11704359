"""Comparison operators in extra specs: ``>= 4``, ``<in> kvm``, ``<or> a <or> b`` and others.

    match('16', '>= 8')          # True

Filters compare values of hosts and aggregates with extra specs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any


def _is_member(value: str, wanted: str) -> bool:
    return wanted in value


# Operators that compare numbers in extra specs. As in Nova, ``=`` means "greater than or equal to".
_NUMBERS: dict[str, Callable[[Any, Any], bool]] = {
    '=': operator.ge,
    '==': operator.eq,
    '!=': operator.ne,
    '>=': operator.ge,
    '<=': operator.le,
}
_TEXTS: dict[str, Callable[[Any, Any], bool]] = {
    's==': operator.eq,
    's!=': operator.ne,
    's<': operator.lt,
    's<=': operator.le,
    's>': operator.gt,
    's>=': operator.ge,
}


def match(value: object, wanted: str) -> bool:
    """Return whether a host's value meets an extra spec. Without an operator, the texts must be equal."""
    text, words = str(value), wanted.split()
    if not words:
        return text == wanted
    first, rest = words[0], words[1:]
    if first in _TEXTS:
        return bool(rest) and _TEXTS[first](text, rest[0])
    if first in _NUMBERS:
        return bool(rest) and _compare(_NUMBERS[first], text, rest[0])
    if first == '<in>':
        return bool(rest) and _is_member(text, ' '.join(rest))
    if first == '<all-in>':
        return _has_all(value, rest)
    if first == '<or>':
        return any(text == word for word in rest if word != '<or>')
    return text == wanted


def _has_all(value: object, words: list[str]) -> bool:
    """Return whether a list contains all words.

    A text that is a Python list literal counts as a list. Any other text must contain each word as a substring.
    """
    if isinstance(value, str) and value.startswith('['):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return all(_is_member(str(value), word) for word in words)
    if isinstance(value, (list, tuple, set, frozenset)):
        return {str(one) for one in value}.issuperset(words)
    return all(_is_member(str(value), word) for word in words)


def _compare(compare: Callable[[Any, Any], bool], value: str, wanted: str) -> bool:
    try:
        return compare(float(value), float(wanted))
    except ValueError:
        return False
