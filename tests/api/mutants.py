"""Bad bodies and queries, made from schemas.

    for mutant in of_body(good, schema): mutant.body, mutant.about     # what is wrong, and the words that must be named

Whether a mutant is bad is the schema's to say: those that it takes are left out.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from kilonova.api.schemas import base as schemas

# Longer than what has no bound of its own may be.
LONG = 70000
# How many of the bad texts a property is tried with.
TEXTS = 6
_OF_TYPE: dict[str, Any] = {
    'string': 'text',
    'integer': 7,
    'number': 1.5,
    'boolean': True,
    'null': None,
    'array': [{'x': 1}],
    'object': {'x': {'y': 1}},
}
_BAD_TEXT = (
    '',
    ' ',
    ' x',
    'x ',
    '\x07',
    'a\nb',
    '!',
    '/',
    ',',
    ':',
    '.',
    '-',
    'é',
    '💩',
    '$(x)',
    "';--",
    '%s',
    '../..',
    '*',
    'no-such-word',
    'not-a-uuid',
    '300.1.1.1',
    '::g',
    '=',
    'yesterday',
    '-1',
    '1.5',
    '0x10',
    'NaN',
    '99999999999999999999',
    '१',
)


class Mutant(NamedTuple):
    """``what`` for messages of failed tests; ``named``: one of these stands in the answer."""

    what: str
    body: Any
    named: tuple[str, ...]


class Place(NamedTuple):
    """A property: where it is in the body, and its schema; ``chosen``: that is one of several for what it is part of,
    so that only the whole body can be judged."""

    path: tuple[Any, ...]
    schema: dict[str, Any]
    chosen: bool = False


def validator(schema: dict[str, Any]) -> Any:
    """What the API itself judges bodies with."""
    return schemas.VALIDATOR(schema, format_checker=schemas.FORMATS)


def shapes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema, or those that it chooses from."""
    return [schema] + [each for word in ('oneOf', 'anyOf', 'allOf') for each in schema.get(word, ())]


def places(schema: dict[str, Any], path: tuple[Any, ...] = (), chosen: bool = False) -> Iterator[Place]:
    """Every property of a body."""
    for shape in shapes(schema):
        inside = chosen or shape is not schema
        for name, inner in shape.get('properties', {}).items():
            yield Place((*path, name), inner, inside)
            yield from places(inner, (*path, name), inside)
        if isinstance(shape.get('items'), dict):
            yield Place((*path, 0), shape['items'], inside)
            yield from places(shape['items'], (*path, 0), inside)


def values(schema: dict[str, Any]) -> Iterator[Any]:
    """What a property may not be: some of these it takes all the same."""
    yield from _OF_TYPE.values()
    yield from ([], {}, [None], [[]], 2**70, -(2**70), 1e308)
    for shape in shapes(schema):
        kinds = shape.get('type', ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if 'string' in kinds or 'enum' in shape:
            yield from _BAD_TEXT
            yield from ('x' * (shape.get('maxLength', LONG) + 1), 'x' * max(shape.get('minLength', 0) - 1, 0))
        if 'integer' in kinds or 'number' in kinds:
            for limit, step in (('minimum', -1), ('maximum', 1)):
                if limit in shape:
                    yield from (shape[limit] + step, str(shape[limit] + step))
        if 'array' in kinds:
            item = _good(shape.get('items', {}))
            yield from ([item] * (shape.get('maxItems', 0) + 1), [item, item])


def _good(schema: dict[str, Any]) -> Any:
    """A value that a schema takes; None if none of the guesses is."""
    guesses = [
        'x1',
        '0fffffff-ffff-4fff-8fff-ffffffffffff',
        '192.0.2.1',
        '2001:db8::1',
        'YQ==',
        1,
        True,
        {},
        [],
        '2026-11-21T10:00:00Z',
        *schema.get('enum', ()),
    ]
    return next((guess for guess in guesses if validator(schema).is_valid(guess)), None)


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``body`` with another value at ``path``; what lies on the way is made."""
    made = copy.deepcopy(body)
    holder = made
    for step, following in itertools.pairwise(path):
        fresh: Any = [] if isinstance(following, int) else {}
        if isinstance(holder, list):
            if not holder:
                holder.append(fresh)
            if not isinstance(holder[step], type(fresh)):
                holder[step] = fresh
        elif not isinstance(holder.get(step), type(fresh)):
            holder[step] = fresh
        holder = holder[step]
    if isinstance(holder, list):
        holder[:1] = [value]
    else:
        holder[path[-1]] = value
    return made


def _text(value: Any) -> str:
    return repr(value)[:60]


def _keys(value: Any) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield f'attribute {name}.'
        yield from _keys(item)


def of_place(good: Any, schema: dict[str, Any], place: Place, short: bool = False) -> Iterator[Mutant]:
    """A body with each thing that its property may not be; ``short``: only other types."""
    judge, seen, texts = validator(schema if place.chosen else place.schema), set(), 0
    name = [str(step) for step in place.path if isinstance(step, str)]
    for value in _OF_TYPE.values() if short else values(place.schema):
        key = json.dumps(value)
        is_text = isinstance(value, str) and value in _BAD_TEXT
        if key in seen or (is_text and texts == TEXTS):
            continue
        seen.add(key)
        body = put(good, place.path, value)
        if not judge.is_valid(body if place.chosen else value):
            texts += is_text
            named = (*name[-2:], _text(value)[:20], *_keys(value))
            yield Mutant(f'{"/".join(map(str, place.path))} = {_text(value)}', body, named)
    if short:
        return
    for text in ('a\x00b', '\ud800'):
        if any('string' in shape.get('type', ()) for shape in shapes(place.schema)):
            yield Mutant(f'{name[-1]} = {text!r}', put(good, place.path, text), ('Malformed request body',))


def of_objects(good: Any, schema: dict[str, Any]) -> Iterator[Mutant]:
    """Bodies with a stranger in each object, and without each property that must be there."""
    judge = validator(schema)
    for path in _objects(good):
        body = put(good, (*path, 'nosuch'), 'x')
        if not judge.is_valid(body):
            yield Mutant(f'{path} + nosuch', body, ("'nosuch'", str(path[-1]) if path else ''))
        for name in _at(good, path):
            body = copy.deepcopy(good)
            del _at(body, path)[name]
            if not judge.is_valid(body):
                yield Mutant(f'{path} without {name}', body, (f"'{name}' is a required property", 'non-empty'))


def _objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield path
    for name, item in items:
        yield from _objects(item, (*path, name))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value
