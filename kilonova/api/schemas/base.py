"""Classes for JSON schemas whose properties have a range of microversions, and the check of bodies and queries.

    BODY = Obj(Prop('server', Obj(Prop('name', NAME, required=True), Prop('description', TEXT, since=19))))
    BODY.check({'server': {'name': 'a', 'description': 'b'}}, version=2)     # Invalid: 'description' was unexpected

The schema of a microversion has the properties whose range includes this microversion.
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

# The default of ``QuerySchema.of``, for routes that define query parameters.
# From microversion 2.75 on, a request with an unknown query parameter is refused. Before, the parameter is ignored.
STRICT_SINCE = 75
# The default for routes that define no query parameters: a request with any query parameter is refused from 2.102 on.
STRICT_EVERYWHERE = 102
# An error message contains the refused value and the reason. Each of the two is cut to this number of characters.
MOST_SAID = 2048


class ValidationError(Invalid):
    """Error 400: the body or query does not match its schema."""

    msg_fmt = '%(detail)s'


class Prop(NamedTuple):
    """The schema of one property of a request body, or of one parameter of a query string.

    The property exists in the microversions 2.``since`` to 2.``until``, both included. If ``single`` is true, a query
    may contain the parameter only once. If it is false, the parameter may be repeated.
    """

    name: str
    schema: Any
    required: bool = False
    since: int = MIN
    until: int = MAX
    single: bool = False

    def holds(self, version: int) -> bool:
        """Return whether the property exists in a microversion."""
        return self.since <= version <= self.until


class Window(NamedTuple):
    """One part of a ``Windows`` schema: the schema for the microversions ``since`` to ``until``."""

    schema: Any
    since: int = MIN
    until: int = MAX


# --- JSON schema keywords, checked in limited time -------------------------------------------------------------------

# The functions below replace checks of jsonschema that can take long.
# A value that exceeds ``maxLength``, ``maxItems`` or ``maxProperties`` is refused for this reason alone.
# The pattern, format, items and properties of a value that exceeds its limit are not checked.
# The keyword ``uniqueItems`` is checked with a set, so the time does not grow with the square of the number of items.
# ``$`` in a pattern matches only the end of the text. Python's ``re`` would also match it before a final line feed.

# The maximum number of schema errors that are searched for in one body or query. The most relevant one is reported.
MOST_ERRORS = 50

Errors = Iterator[jsonschema.ValidationError]


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern of a schema, for use with ``search``. A final ``$`` matches only the end of the text."""
    return re.compile(pattern[:-1] + r'\Z' if pattern.endswith('$') else pattern)


def first_of(validator: Validator, value: object) -> jsonschema.ValidationError | None:
    """Return the error to report for a value, or None if the value matches the schema of ``validator``.

    If there are several errors, ``jsonschema.exceptions.best_match`` chooses one of the first 50.
    """
    return jsonschema.exceptions.best_match(itertools.islice(validator.iter_errors(value), MOST_ERRORS))


_BOUNDS: dict[type, str] = {str: 'maxLength', list: 'maxItems', dict: 'maxProperties'}


def _is_long(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a text, list or dict exceeds the maxLength, maxItems or maxProperties of its schema.

    Such a value is refused by this keyword. The slower keywords, such as pattern, then do not check the value.
    """
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
    """Return whether a schema has a property of this name, or a pattern that matches the name."""
    return name in schema.get('properties', ()) or any(
        compiled(pattern).search(name) for pattern in schema.get('patternProperties', ())
    )


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
            f'{listed} {"does" if len(extras) == 1 else "do"} not match any of the regexes: {patterns}'
        )
    else:
        yield jsonschema.ValidationError(
            f'Additional properties are not allowed ({listed} {"was" if len(extras) == 1 else "were"} unexpected)'
        )


def _limit(compare: Callable[[float, float], bool], word: str) -> Callable[..., Errors]:
    """Return a function that checks the JSON schema keyword minimum or maximum, also for a number in a text ('5').

    The function ``compare`` gets a number and the limit, and returns whether the number is allowed. ``word`` is a part
    of the error message, for example 'less than the minimum' in "5 is less than the minimum of 10".
    """

    def check(validator: Validator, limit: float, value: Json, schema: dict[str, Any]) -> Errors:
        try:
            number = float(value) if isinstance(value, str) else value
        except ValueError:
            return
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not compare(number, limit):
            yield jsonschema.ValidationError(f'{value!r} is {word} of {limit!r}')

    return check


def _largest(validator: Validator, bound: int, value: Json, schema: dict[str, Any]) -> Errors:
    """Check the keyword ``largest``: the absolute value of a number is at most ``bound``.

    Unlike the keyword ``maximum``, it does not apply to numbers that are written as text.
    """
    if isinstance(value, (int, float)) and abs(value) > bound:
        yield jsonschema.ValidationError(f'{value!r} is greater than the maximum of {bound!r}')


def _bytes(validator: Validator, limit: int, value: Json, schema: dict[str, Any]) -> Errors:
    """Check the keyword ``maxBytes``: a text has at most ``limit`` bytes.

    The keyword is for long text columns, whose size MySQL limits in bytes and not in characters.
    """
    if isinstance(value, str) and len(value.encode()) > limit:
        yield jsonschema.ValidationError(f'{value[:64]!r}... is too long')


_THEIRS = jsonschema.Draft4Validator.VALIDATORS
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft4Validator,
    {
        'pattern': _bounds_first(_pattern),
        'format': _bounds_first(_THEIRS['format']),
        'items': _bounds_first(_THEIRS['items']),
        'uniqueItems': _bounds_first(_unique),
        'properties': _bounds_first(_THEIRS['properties']),
        'patternProperties': _bounds_first(_by_pattern),
        'additionalProperties': _bounds_first(_additional),
        'maxBytes': _bounds_first(_bytes),
        'largest': _largest,
        'minimum': _bounds_first(_limit(lambda number, limit: number >= limit, 'less than the minimum')),
        'maximum': _bounds_first(_limit(lambda number, limit: number <= limit, 'greater than the maximum')),
    },
)


# --- schemas of bodies and queries -----------------------------------------------------------------------------------
def at(schema: Any, version: int) -> Any:
    """Return the plain JSON schema of ``schema`` for microversion 2.``version``.

    ``schema`` may contain objects of the classes ``Obj`` and ``Windows``, which describe a schema for several
    microversions. Each of them is replaced by the JSON schema that applies in this microversion.
    """
    if isinstance(schema, (Obj, Windows)):
        return schema.at(version)
    if isinstance(schema, dict):
        return {key: at(value, version) for key, value in schema.items()}
    if isinstance(schema, list):
        return [at(value, version) for value in schema]
    return schema


class Schema:
    """The base class of the schemas of request bodies."""

    def at(self, version: int) -> dict[str, Any]:
        """Return the plain JSON schema of a microversion. Subclasses implement it."""
        raise TypeError('Schema is an abstract class: use Obj or Windows')

    def check(self, body: Any, version: int, relaxed: bool = False) -> Any:
        """Check a request body against the schema of microversion 2.``version``, and return the body.

        ``relaxed`` is true for a request to the 2.0 API. Then unknown keys are not refused, but left out of the
        returned body, and spaces at the start and end of names (format 'name') are removed.
        Raises ValidationError if the body does not match the schema.
        """
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
    """The schema of a JSON object with the properties ``props``.

    Other keys are refused, unless ``additional`` is true.
    """

    def __init__(self, *props: Prop, additional: bool = False, **more: Any) -> None:
        self.props, self.additional, self.more = props, additional, more

    def at(self, version: int) -> dict[str, Any]:
        """Return the plain JSON schema of the object in a microversion."""
        rows = [prop for prop in self.props if prop.holds(version)]
        schema = {
            'type': 'object',
            'properties': {prop.name: at(prop.schema, version) for prop in rows},
            'additionalProperties': self.additional,
            **self.more,
        }
        required = [prop.name for prop in rows if prop.required]
        return {**schema, 'required': required} if required else schema


class Windows(Schema):
    """A schema that differs between ranges of microversions. The ranges must not overlap."""

    def __init__(self, *windows: Window) -> None:
        self.windows = windows

    def at(self, version: int) -> dict[str, Any]:
        """Return the plain JSON schema of the only ``Window`` whose microversions include ``version``."""
        return next(at(window.schema, version) for window in self.windows if window.since <= version <= window.until)


@dataclass(frozen=True)
class QuerySchema:
    """The schema of a query string. A parameter may occur several times, and its schema applies to each of the values.

    If ``private`` is true, parameters whose name begins with an underscore are accepted. Unknown parameters are refused
    from microversion ``strict_since`` on, and ignored before.
    """

    props: tuple[Prop, ...] = ()
    strict_since: int = STRICT_EVERYWHERE
    private: bool = False
    _validators: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, *props: Prop, strict_since: int = STRICT_SINCE, private: bool = False) -> QuerySchema:
        """Return the schema of a query with these properties.

        Unknown parameters are refused from microversion 2.75 on, unless ``strict_since`` says otherwise. ``private``
        says whether parameters whose name begins with an underscore are accepted.
        """
        return cls(props, strict_since, private)

    def at(self, version: int) -> dict[str, Any]:
        """Return the plain JSON schema of the query in a microversion."""
        schema: dict[str, Any] = {
            'type': 'object',
            'additionalProperties': version < self.strict_since,
            'properties': {
                prop.name: {
                    'type': 'array',
                    'items': at(prop.schema, version),
                    **({'maxItems': 1} if prop.single else {}),
                }
                for prop in self.props
                if prop.holds(version)
            },
        }
        return {**schema, 'patternProperties': {'^_': {}}} if self.private else schema

    def check(self, values: Mapping[str, list[str]], version: int) -> None:
        """Raise ValidationError if the query does not match the schema.

        ``values`` is a dict from parameter to the list of its values.
        """
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
    # ``absolute_path`` is the path from the root of the body or query to the refused value, such as ['server', 'name'].
    # For an error inside anyOf or oneOf, ``path`` would begin only at the value that has the anyOf or oneOf.
    names = [part for part in error.absolute_path if what == 'field/attribute' or isinstance(part, str)]
    if not names or (names[-1] == 'name' and isinstance(error.cause, BadName)):
        raise ValidationError(detail=_cut(message))
    raise ValidationError(
        detail=f'Invalid input for {what} {names[-1]}. Value: {_cut(str(error.instance))}. {_cut(message)}'
    )


def _cut(text: str) -> str:
    """Return the text, or only its start and end if it has more than ``MOST_SAID`` characters.

    The text is a value from the request or an error message, and both can be large. A message tells its reason at the
    end.
    """
    return text if len(text) <= MOST_SAID else f'{text[: MOST_SAID // 2]}...{text[-MOST_SAID // 2 :]}'


def _relax(value: Any, schema: Any) -> Any:
    """Return a copy of ``value`` for the 2.0 API, which accepts more than its JSON schema ``schema`` allows.

    Keys that the schema does not know are left out. Spaces at the start and end of names (format 'name') are removed.
    """
    if isinstance(value, str):
        return value.strip() if _is_name(schema) else value
    if isinstance(value, list) and isinstance(schema.get('items'), dict):
        return [_relax(item, schema['items']) for item in value]
    properties = schema.get('properties')
    if not isinstance(value, dict) or properties is None:
        return value
    kept = (
        value
        if schema.get('additionalProperties', True)
        else {key: item for key, item in value.items() if is_known(key, schema)}
    )
    return {key: _relax(item, properties[key]) if key in properties else item for key, item in kept.items()}


def _is_name(schema: Any) -> bool:
    return schema.get('format') == 'name' or any(
        _is_name(part) for word in ('allOf', 'anyOf', 'oneOf') for part in schema.get(word, ())
    )
