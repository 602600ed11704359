"""Comparisons that extra specs can ask for: ``>= 4``, ``<in> kvm``, ``<or> a <or> b`` and so on.

    match('16', '>= 8')          # True
"""
from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any


def _is_member(value: str, wanted: str) -> bool:
    return wanted in value


# Numbers; ``=`` is the field's "at least".
_NUMBERS: dict[str, Callable[[Any, Any], bool]] = {
    '=': operator.ge, '==': operator.eq, '!=': operator.ne, '>=': operator.ge, '<=': operator.le}
_TEXTS: dict[str, Callable[[Any, Any], bool]] = {
    's==': operator.eq, 's!=': operator.ne, 's<': operator.lt, 's<=': operator.le, 's>': operator.gt,
    's>=': operator.ge}


def match(value: object, wanted: str) -> bool:
    """Whether a host's value (anything with a text) is what the extra spec asks for; without operator: equal texts."""
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
    """Whether a list, or a text that is one as Python writes it, has all words; of another text each is a part."""
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
