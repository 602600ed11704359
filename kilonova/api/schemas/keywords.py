"""JSON Schema's keywords, so that what a check costs is bounded by the schema and not by who sends the value.

    validator = VALIDATOR(schema, format_checker=FORMATS)
    error = first_of(validator, body)           # None: the body is valid

Bounds come first: a text that is longer than ``maxLength`` meets neither pattern nor format, the items of a list that
has more than ``maxItems`` of them are not looked at. What is repeated in a list is found in one pass, and only the
first errors of a value are compared. ``$`` in a pattern is the end of the text, as JSON Schema has it: in Python it
also stands before a line feed there.
"""
from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jsonschema
from jsonschema.protocols import Validator

# Errors of one value that are compared for the one that is told.
MOST_ERRORS = 50

Errors = Iterator[jsonschema.ValidationError]
# What a request's body is made of.
Json: TypeAlias = 'bool | int | float | str | list[Json] | dict[str, Json] | None'


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern of a schema, to be searched."""
    return re.compile(pattern[:-1] + r'\Z' if pattern.endswith('$') else pattern)


def first_of(validator: Validator, value: object) -> jsonschema.ValidationError | None:
    """The error that says most about a value."""
    return jsonschema.exceptions.best_match(itertools.islice(validator.iter_errors(value), MOST_ERRORS))


_BOUNDS: dict[type, str] = {str: 'maxLength', list: 'maxItems', dict: 'maxProperties'}


def _is_long(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a bound refuses the value already."""
    bound = _BOUNDS.get(type(value))
    return bound is not None and bound in schema and len(value) > schema[bound]


def _bounds_first(keyword: Callable[..., Any]) -> Callable[..., Errors]:
    def check(validator: Validator, argument: Any, value: Json, schema: dict[str, Any]) -> Errors:
        if not _is_long(value, schema):
            yield from keyword(validator, argument, value, schema) or ()
    return check


def _pattern(validator: Validator, pattern: str, value: Json, schema: dict[str, Any]) -> Errors:
    if isinstance(value, str) and not compiled(pattern).search(value):
        yield jsonschema.ValidationError(f'{value!r} does not match {pattern!r}')


def _unique(validator: Validator, wanted: bool, value: Json, schema: dict[str, Any]) -> Errors:
    if not wanted or not isinstance(value, list):
        return
    if len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield jsonschema.ValidationError(f'{value!r} has non-unique elements')


def is_known(name: str, schema: dict[str, Any]) -> bool:
    """Whether a schema names a property, or has a pattern for its name."""
    return name in schema.get('properties', ()) or any(
        compiled(pattern).search(name) for pattern in schema.get('patternProperties', ()))


def _by_pattern(validator: Validator, patterns: dict[str, Any], value: Json, schema: dict[str, Any]) -> Errors:
    if not isinstance(value, dict):
        return
    for pattern, of_pattern in patterns.items():
        for name, item in value.items():
            if compiled(pattern).search(name):
                yield from validator.descend(item, of_pattern, path=name, schema_path=pattern)


def _additional(validator: Validator, allowed: bool, value: Json, schema: dict[str, Any]) -> Errors:
    if allowed or not isinstance(value, dict):
        return
    extras = sorted(name for name in value if not is_known(name, schema))
    if not extras:
        return
    listed = ', '.join(map(repr, extras))
    if 'patternProperties' in schema:
        patterns = ', '.join(map(repr, sorted(schema['patternProperties'])))
        yield jsonschema.ValidationError(
            f'{listed} {"does" if len(extras) == 1 else "do"} not match any of the regexes: {patterns}')
    else:
        yield jsonschema.ValidationError(f'Additional properties are not allowed ({listed} '
                                         f'{"was" if len(extras) == 1 else "were"} unexpected)')


def _limit(compare: Callable[[float, float], bool], word: str) -> Callable[..., Errors]:
    """minimum and maximum also hold for numbers that are written as text."""
    def check(validator: Validator, limit: float, value: Json, schema: dict[str, Any]) -> Errors:
        try:
            number = float(value) if isinstance(value, str) else value
        except ValueError:
            return
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not compare(number, limit):
            yield jsonschema.ValidationError(f'{value!r} is {word} of {limit!r}')
    return check


def _largest(validator: Validator, bound: int, value: Json, schema: dict[str, Any]) -> Errors:
    """A bound for numbers alone, where a text may be anything."""
    if isinstance(value, (int, float)) and abs(value) > bound:
        yield jsonschema.ValidationError(f'{value!r} is greater than the maximum of {bound!r}')


def _bytes(validator: Validator, limit: int, value: Json, schema: dict[str, Any]) -> Errors:
    """MySQL's columns of long text are bounded in bytes."""
    if isinstance(value, str) and len(value.encode()) > limit:
        yield jsonschema.ValidationError(f'{value[:64]!r}... is too long')


_THEIRS = jsonschema.Draft4Validator.VALIDATORS
VALIDATOR = jsonschema.validators.extend(jsonschema.Draft4Validator, {
    'pattern': _bounds_first(_pattern), 'format': _bounds_first(_THEIRS['format']),
    'items': _bounds_first(_THEIRS['items']), 'uniqueItems': _bounds_first(_unique),
    'properties': _bounds_first(_THEIRS['properties']), 'patternProperties': _bounds_first(_by_pattern),
    'additionalProperties': _bounds_first(_additional), 'maxBytes': _bounds_first(_bytes),
    'largest': _largest,
    'minimum': _bounds_first(_limit(lambda number, limit: number >= limit, 'less than the minimum')),
    'maximum': _bounds_first(_limit(lambda number, limit: number <= limit, 'greater than the maximum'))})
