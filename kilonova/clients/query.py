"""Query strings of requests to other services, none longer than servers and proxies take.

    for part in repeated('id', port_ids):                        # id=a&id=b…, as many requests as it takes
        get(f'/ports?{encode(part)}')
    ask([('member_of', 'in:a,b…')], get, merge)                  # one list of many values, as many requests as it takes

Every client that puts a list into a URL builds it here.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlencode

# Characters of a query string: servers and proxies take request lines of 4 KiB at least.
LIMIT = 3000
# A list of one of these prefixes matches what has any of its values, or none of them.
_ANY, _NONE = 'in:', '!in:'
# Keys whose values are lists of which all must hold: 'required', 'required_GPU', 'root_required'.
_ALL = ('required', 'root_required')

Pairs = Sequence[tuple[str, str]]
T = TypeVar('T')


def encode(pairs: Pairs) -> str:
    """Return the query string of these pairs.

    Commas, colons and exclamation marks stay as they are: each would take three characters otherwise, and RFC 3986
    allows them in a query.
    """
    return urlencode(pairs, safe=',:!')


def repeated(key: str, values: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield pairs with this key, one for each different value, in portions that are no longer than LIMIT.

    >>> list(repeated('id', ['a', 'b', 'a']))
    [[('id', 'a'), ('id', 'b')]]
    """
    portion: list[tuple[str, str]] = []
    length = 0
    for value in dict.fromkeys(values):
        size = len(encode([(key, value)])) + 1
        if portion and length + size > LIMIT:
            yield portion
            portion, length = [], 0
        portion.append((key, value))
        length += size
    if portion:
        yield portion


def listed(key: str, values: Iterable[str]) -> Iterator[str]:
    """Yield query strings of one list of values each, ``key=a,b``, none longer than LIMIT unless one value is.

    >>> list(listed('name', ['a', 'b']))
    ['name=a,b']
    """
    for portion in repeated(key, values):
        yield encode([(key, ','.join(value for _, value in portion))])


def ask(pairs: Pairs, get: Callable[[str], T], merge: Callable[[T, T, bool], T]) -> T:
    """Return the answer to this query, which may be longer than LIMIT.

    ``get(query)`` sends one request. Where the query is too long, its longest list is cut into two halves, which are
    asked for one after the other. ``merge(one, other, either)`` makes one answer of two: of what is in either, or
    (``either`` False) of what is in both. A query that has no list to cut is sent as it is.
    """
    found = _halves(pairs) if len(encode(pairs)) > LIMIT else None
    if found is None:
        return get(encode(pairs))
    one, other, either = found
    if not either:
        # What is in both answers may be anywhere in each of them.
        one, other = ([pair for pair in half if pair[0] != 'limit'] for half in (one, other))
    return merge(ask(one, get, merge), ask(other, get, merge), either)


def _halves(pairs: Pairs) -> tuple[Pairs, Pairs, bool] | None:
    """Return the query with one half of its longest list, with the other half, and whether either may match.

    Return None if no list of the query has two values.
    """
    lists = [number for number, (key, value) in enumerate(pairs)
             if ',' in value and (value.startswith((_ANY, _NONE)) or key.startswith(_ALL))]
    if not lists:
        return None
    longest = max(lists, key=lambda number: len(pairs[number][1]))
    key, value = pairs[longest]
    prefix = next((prefix for prefix in (_ANY, _NONE) if value.startswith(prefix)), '')
    values = value.removeprefix(prefix).split(',')
    middle = len(values) // 2
    one, other = ([*pairs[:longest], (key, prefix + ','.join(half)), *pairs[longest + 1:]]
                  for half in (values[:middle], values[middle:]))
    return one, other, prefix == _ANY
