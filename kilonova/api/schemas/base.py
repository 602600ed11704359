"""Schemas whose rows carry since and until, and the check against them.

    BODY = Obj(Prop('server', Obj(Prop('name', NAME, required=True), Prop('description', TEXT, since=19))))
    BODY.check({'server': {'name': 'a', 'description': 'b'}}, version=2)     # Invalid: 'description' was unexpected

An older version is what is left when the rows outside their window are gone; nothing asks "is the version at least …".
"""
from __future__ import annotations

import binascii
import re
import unicodedata
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import netaddr
from jsonschema import FormatChecker
from jsonschema.protocols import Validator
from oslo_utils import timeutils, uuidutils

from kilonova.api.schemas import keywords
from kilonova.api.schemas.keywords import Json
from kilonova.api.versions import MAX, MIN
from kilonova.db import expressions
from kilonova.errors import Invalid

# From this version on a query parameter that a list doesn't know is refused …
STRICT_SINCE = 75
# … and from this one on by requests that know none at all, too.
STRICT_EVERYWHERE = 102
# Characters of a value, and of what is said about it, in a refusal.
MOST_SAID = 2048


class ValidationError(Invalid):
    msg_fmt = '%(detail)s'


class BadName(ValueError):
    """What a name must be is the whole refusal where it is called that."""


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


# --- formats ---------------------------------------------------------------------------------------------------------
FORMATS = FormatChecker(formats=())


@FORMATS.checks('uuid')
def _uuid(value: Json) -> bool:
    return not isinstance(value, str) or uuidutils.is_uuid_like(value)


@FORMATS.checks('base64', raises=ValueError)
def _base64(value: Json) -> bool:
    if isinstance(value, str):
        try:
            b64decode(re.sub(r'\s', '', value).encode('ascii'), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return False
    return True


@FORMATS.checks('date-time')
def _datetime(value: Json) -> bool:
    if not isinstance(value, str):
        return True
    try:
        # The databases hold naive UTC: a time that has none there is no time here.
        timeutils.normalize_time(timeutils.parse_isotime(value))
    except (ValueError, OverflowError):
        return False
    return True


@FORMATS.checks('regex', raises=ValueError)
def _regex(value: Json) -> bool:
    if isinstance(value, str):
        try:
            expressions.compiled(value)
        except expressions.BadExpression as error:
            raise ValueError(f"{value!r} is not a 'regex': {error}") from None
    return True


def _address(version: int) -> Any:
    def check(value: Json) -> bool:
        return not isinstance(value, str) or (netaddr.valid_ipv4(value, netaddr.core.INET_PTON) if version == 4
                                              else netaddr.valid_ipv6(value))
    return check


FORMATS.checks('ipv4')(_address(4))
FORMATS.checks('ipv6')(_address(6))


def _printable(value: str, also: str = '') -> bool:
    return all(char in also or unicodedata.category(char) not in ('Cc', 'Cf', 'Cs', 'Cn', 'Zl', 'Zp')
               for char in value)


@FORMATS.checks('name', raises=BadName)
def _name(value: Json) -> bool:
    if isinstance(value, str) and (value != value.strip() or not value.strip() or not _printable(value)):
        raise BadName("An invalid 'name' value was provided. The name must be: printable characters. "
                      'Can not start or end with whitespace.')
    return True


@FORMATS.checks('text')
def _text(value: Json) -> bool:
    return not isinstance(value, str) or _printable(value, '\t\n\r')


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
            cache[version] = keywords.VALIDATOR(self.at(version), format_checker=FORMATS)
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
            self._validators[version] = keywords.VALIDATOR(self.at(version), format_checker=FORMATS)
        _raise(self._validators[version], values, 'query parameters')


def _raise(validator: Validator, value: object, what: str) -> None:
    error = keywords.first_of(validator, value)
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
        key: item for key, item in value.items() if keywords.is_known(key, schema)}
    return {key: _relax(item, properties[key]) if key in properties else item for key, item in kept.items()}


def _is_name(schema: Any) -> bool:
    return schema.get('format') == 'name' or any(
        _is_name(part) for word in ('allOf', 'anyOf', 'oneOf') for part in schema.get(word, ()))
