"""Schemas whose rows carry since and until, and the check against them.

    BODY = Obj(Prop('server', Obj(Prop('name', NAME, required=True), Prop('description', TEXT, since=19))))
    BODY.check({'server': {'name': 'a', 'description': 'b'}}, version=2)     # Invalid: 'description' was unexpected

An older version is what is left when the rows outside their window are gone; nothing asks "is the version at least …".
"""
from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jsonschema
from jsonschema.protocols import Validator

from kilonova.api.schemas.types import FORMATS, BadName, Json
from kilonova.api.versions import MAX, MIN
from kilonova.errors import Invalid

# From this version on a query parameter that a list doesn't know is refused …
STRICT_SINCE = 75
# … and from this one on by requests that know none at all, too.
STRICT_EVERYWHERE = 102
# Characters of a value, and of what is said about it, in a refusal.
MOST_SAID = 2048


class ValidationError(Invalid):
    msg_fmt = '%(detail)s'


class Prop(NamedTuple):
    """One property, in the versions ``since`` … ``until`` of the API; ``single``: a query may have it once only."""

    name: str
    schema: Any
    required: bool = False
    since: int = MIN
    until: int = MAX
    single: bool = False

    def holds(self, version: int) -> bool:
        return self.since <= version <= self.until


class Window(NamedTuple):
    """One of several schemas of the same thing."""

    schema: Any
    since: int = MIN
    until: int = MAX


# --- keywords --------------------------------------------------------------------------------------------------------
# What a check costs is bounded by the schema and not by who sends the value. Bounds come first: a text that is longer
# than ``maxLength`` meets neither pattern nor format, the items of a list that has more than ``maxItems`` of them are
# not looked at. What is repeated in a list is found in one pass, and only the first errors of a value are compared.
# ``$`` in a pattern is the end of the text, as JSON Schema has it: in Python it also stands before a line feed there.

# Errors of one value that are compared for the one that is told.
MOST_ERRORS = 50

Errors = Iterator[jsonschema.ValidationError]


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


# --- schemas ---------------------------------------------------------------------------------------------------------
def at(schema: Any, version: int) -> Any:
    """The plain JSON schema of a version."""
    if isinstance(schema, (Obj, Windows)):
        return schema.at(version)
    if isinstance(schema, dict):
        return {key: at(value, version) for key, value in schema.items()}
    if isinstance(schema, list):
        return [at(value, version) for value in schema]
    return schema


class Schema:
    """A body's schema: ``at(version)`` is defined by subclasses."""

    def at(self, version: int) -> dict[str, Any]:
        raise TypeError('a Schema is an Obj or Windows')

    def check(self, body: Any, version: int, relaxed: bool = False) -> Any:
        """``body`` as handlers may take it. ``relaxed`` (2.0): unknown keys are dropped instead of
        refused, and so are spaces at the ends of names."""
        validator = self._validator(version)
        if relaxed:
            body = _relax(body, validator.schema)
        _raise(validator, body, 'field/attribute')
        return body

    def _validator(self, version: int) -> Any:
        cache = self.__dict__.setdefault('_cache', {})
        if version not in cache:
            cache[version] = VALIDATOR(self.at(version), format_checker=FORMATS)
        return cache[version]


class Obj(Schema):
    """A JSON object of ``Prop`` rows; keys that no row names are refused unless ``additional``."""

    def __init__(self, *props: Prop, additional: bool = False, **more: Any) -> None:
        self.props, self.additional, self.more = props, additional, more

    def at(self, version: int) -> dict[str, Any]:
        rows = [prop for prop in self.props if prop.holds(version)]
        schema = {'type': 'object', 'properties': {prop.name: at(prop.schema, version) for prop in rows},
                  'additionalProperties': self.additional, **self.more}
        required = [prop.name for prop in rows if prop.required]
        return {**schema, 'required': required} if required else schema


class Windows(Schema):
    """Different schemas in different versions; the windows must not overlap."""

    def __init__(self, *windows: Window) -> None:
        self.windows = windows

    def at(self, version: int) -> dict[str, Any]:
        return next(at(window.schema, version) for window in self.windows if window.since <= version <= window.until)


@dataclass(frozen=True)
class Query:
    """Query parameters; each row's schema holds for each value given. ``private``: keys like ``_x`` are let through."""

    props: tuple[Prop, ...] = ()
    strict_since: int = STRICT_EVERYWHERE
    private: bool = False
    _validators: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, *props: Prop, strict_since: int = STRICT_SINCE, private: bool = False) -> Query:
        return cls(props, strict_since, private)

    def at(self, version: int) -> dict[str, Any]:
        schema: dict[str, Any] = {
            'type': 'object', 'additionalProperties': version < self.strict_since,
            'properties': {prop.name: {'type': 'array', 'items': at(prop.schema, version),
                                       **({'maxItems': 1} if prop.single else {})}
                           for prop in self.props if prop.holds(version)}}
        return {**schema, 'patternProperties': {'^_': {}}} if self.private else schema

    def check(self, values: Mapping[str, list[str]], version: int) -> None:
        """Raises ValidationError."""
        if not values:
            return
        if version not in self._validators:
            self._validators[version] = VALIDATOR(self.at(version), format_checker=FORMATS)
        _raise(self._validators[version], values, 'query parameters')


def _raise(validator: Validator, value: object, what: str) -> None:
    error = first_of(validator, value)
    if error is None:
        return
    message = str(error.cause) if error.cause is not None and str(error.cause) else error.message
    # Absolute: within a choice of schemas the error's own path begins at the choice.
    names = [part for part in error.absolute_path if what == 'field/attribute' or isinstance(part, str)]
    if not names or (names[-1] == 'name' and isinstance(error.cause, BadName)):
        raise ValidationError(detail=_cut(message))
    raise ValidationError(
        detail=f'Invalid input for {what} {names[-1]}. Value: {_cut(str(error.instance))}. {_cut(message)}')


def _cut(text: str) -> str:
    """A refusal repeats what was sent, but not all of a large body; the reason stands at its end."""
    return text if len(text) <= MOST_SAID else f'{text[:MOST_SAID // 2]}...{text[-MOST_SAID // 2:]}'


def _relax(value: Any, schema: Any) -> Any:
    """``value`` without the keys that an object schema doesn't know, and without spaces around names."""
    if isinstance(value, str):
        return value.strip() if _is_name(schema) else value
    if isinstance(value, list) and isinstance(schema.get('items'), dict):
        return [_relax(item, schema['items']) for item in value]
    properties = schema.get('properties')
    if not isinstance(value, dict) or properties is None:
        return value
    kept = value if schema.get('additionalProperties', True) else {
        key: item for key, item in value.items() if is_known(key, schema)}
    return {key: _relax(item, properties[key]) if key in properties else item for key, item in kept.items()}


def _is_name(schema: Any) -> bool:
    return schema.get('format') == 'name' or any(
        _is_name(part) for word in ('allOf', 'anyOf', 'oneOf') for part in schema.get(word, ()))
