"""Build query strings that are short enough for servers and proxies. Longer queries are sent in parts.

    for part in repeated('id', port_ids):                        # id=a&id=b…, in as many requests as necessary
        get(f'/ports?{encode(part)}')
    ask([('member_of', 'in:a,b…')], get, merge)                  # one long list, in as many requests as necessary

Each client that puts a list into a URL uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlencode

# Maximum characters of a query string. Servers and proxies accept request lines of at least 4 KiB.
LIMIT = 3000
# Prefixes of a parameter's value, as in member_of=in:a,b.
# 'in:' matches objects with any of the listed values, and '!in:' matches objects with none of them.
_ANY, _NONE = 'in:', '!in:'
# Beginnings of parameter names such as 'required_GPU'.
# The value of such a parameter is a list, and objects must match all its values.
_ALL = ('required', 'root_required')

Pairs = Sequence[tuple[str, str]]
T = TypeVar('T')


def encode(pairs: Pairs) -> str:
    """Return the query string of these pairs.

    Commas, colons and exclamation marks are not escaped, because RFC 3986 allows them in a query, and each would take
    three characters if it were escaped.
    """
    return urlencode(pairs, safe=',:!')


def repeated(key: str, values: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of pairs with this key, one pair for each different value.

    The values are divided into several lists if one query would be longer than LIMIT.

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
    """Yield query strings such as ``key=a,b`` that together contain all values.

    Each string has at most LIMIT characters, unless it has a single value that is too long.

    >>> list(listed('name', ['a', 'b']))
    ['name=a,b']
    """
    for portion in repeated(key, values):
        yield encode([(key, ','.join(value for _, value in portion))])


def ask(pairs: Pairs, get: Callable[[str], T], merge: Callable[[T, T, bool], T]) -> T:
    """Send a query, which may be longer than LIMIT, and return the response.

    ``get(query)`` sends one request. If the query is too long, its longest list of values is divided into two halves,
    and one query is sent with each half. ``merge(one, other, either)`` combines the two responses. ``either`` is True
    for a list 'in:…', of which one value must match: the result has the objects of both responses. It is False for
    other lists, of which all values count: the result has the objects that are in both responses. If no list of the
    query can be divided, the query is sent unchanged.
    """
    found = _halves(pairs) if len(encode(pairs)) > LIMIT else None
    if found is None:
        return get(encode(pairs))
    one, other, either = found
    if not either:
        # The result has only the objects that are in both responses.
        # Remove the parameter ``limit`` from both queries.
        # With a limit, one response could lack an object that matches both queries, and the result would lack it, too.
        one, other = ([pair for pair in half if pair[0] != 'limit'] for half in (one, other))
    return merge(ask(one, get, merge), ask(other, get, merge), either)


def _halves(pairs: Pairs) -> tuple[Pairs, Pairs, bool] | None:
    """Divide the longest list of a query into halves. Return two queries, each with one half, and a bool.

    The bool is True if the list means "any of the values" ('in:'): the original query matches the objects that match at
    least one of the two queries. It is False if an object must match both. Return None if no list has two values.
    """
    lists = [
        number
        for number, (key, value) in enumerate(pairs)
        if ',' in value and (value.startswith((_ANY, _NONE)) or key.startswith(_ALL))
    ]
    if not lists:
        return None
    longest = max(lists, key=lambda number: len(pairs[number][1]))
    key, value = pairs[longest]
    prefix = next((prefix for prefix in (_ANY, _NONE) if value.startswith(prefix)), '')
    values = value.removeprefix(prefix).split(',')
    middle = len(values) // 2
    one, other = (
        [*pairs[:longest], (key, prefix + ','.join(half)), *pairs[longest + 1 :]]
        for half in (values[:middle], values[middle:])
    )
    return one, other, prefix == _ANY
