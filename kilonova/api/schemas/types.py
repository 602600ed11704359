"""Basic JSON schemas, such as names, numbers, booleans and ids, and the checks of their formats.

    Prop('host', t.HOST, required=True), Prop('count', t.integer(1))

Each text has a maximum length, and each list a maximum number of items, because the cost of checking formats and
patterns grows with the length. A test checks that all schemas have these limits.
"""

from __future__ import annotations

import binascii
import datetime
import re
import unicodedata
from base64 import b64decode
from typing import Any, TypeAlias

import netaddr
from jsonschema import FormatChecker
from oslo_utils import timeutils, uuidutils

from kilonova.db import expressions

# The type of a parsed JSON body.
Json: TypeAlias = 'bool | int | float | str | list[Json] | dict[str, Json] | None'
MAX_INT = 0x7FFFFFFF
MAX_FLOAT = 3.40282e38
# The maximum number of key-value pairs (such as metadata) in one request. A quota may allow fewer.
MAX_PAIRS = 1000

NULL = {'type': 'null'}
ANYTHING: dict[str, Any] = {}
NAME = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'name'}
TEXT = {'type': ['string', 'null'], 'minLength': 0, 'maxLength': 255, 'format': 'text'}
LONG_TEXT = {'type': ['string', 'null'], 'minLength': 0, 'maxLength': 65535, 'maxBytes': 65535, 'format': 'text'}
UUID = {'type': 'string', 'format': 'uuid', 'maxLength': 255}
HOST = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': r'^[a-zA-Z0-9\-._]*$'}
HOST_OR_NONE = {'anyOf': [NULL, HOST]}
HYPERVISOR_HOSTNAME = {'type': 'string', 'minLength': 1, 'maxLength': 255}
HOSTNAME = {'type': 'string', 'minLength': 2, 'maxLength': 63, 'pattern': r'^[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]$'}
FQDN = {'type': 'string', 'minLength': 2, 'maxLength': 255, 'pattern': r'^[a-zA-Z0-9][a-zA-Z0-9\-.]*[a-zA-Z0-9]$'}
ZONE = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'name'}
PASSWORD = {'type': 'string', 'maxLength': 65535}
TAG = {'type': 'string', 'minLength': 1, 'maxLength': 60, 'pattern': '^[^,/]*$'}
PROJECT_ID = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': '^[a-zA-Z0-9-]*$'}

_TRUE = [True, 'True', 'TRUE', 'true', '1', 'ON', 'On', 'on', 'YES', 'Yes', 'yes', 'y', 't']
_FALSE = [False, 'False', 'FALSE', 'false', '0', 'OFF', 'Off', 'off', 'NO', 'No', 'no', 'n', 'f']
BOOLEANS = [*_TRUE, *_FALSE]
BOOLEAN = {'type': ['boolean', 'string'], 'enum': BOOLEANS}

DISK_CONFIG = {'type': 'string', 'enum': ['AUTO', 'MANUAL']}
IPV4 = {'type': 'string', 'format': 'ipv4', 'maxLength': 64}
IPV6 = {'type': 'string', 'format': 'ipv6', 'maxLength': 64}
METADATA = {
    'type': 'object',
    'additionalProperties': False,
    'maxProperties': MAX_PAIRS,
    'patternProperties': {r'^[a-zA-Z0-9-_:. ]{1,255}$': {'type': 'string', 'maxLength': 255}},
}

# Schemas of query parameters, whose values always arrive as text.
ANY_TEXT = {'type': 'string', 'maxLength': 4096}
NUMBER_TEXT = {'type': 'string', 'pattern': '^[0-9]*$', 'minLength': 1, 'maxLength': 19}
DATE_TEXT = {'type': 'string', 'format': 'date-time', 'maxLength': 255}
REGEX_TEXT = {'type': 'string', 'maxLength': 255, 'format': 'regex'}


def integer(minimum: int = 0, maximum: int = MAX_INT) -> dict[str, Any]:
    """Return the schema of an integer, which clients may also write as text."""
    return {
        'type': ['integer', 'string'],
        'pattern': '^[0-9]+$',
        'minimum': minimum,
        'maximum': maximum,
        'minLength': 1,
        'maxLength': 20,
    }


def one_of(*values: str) -> dict[str, Any]:
    """Return the schema of a text that is one of these values."""
    return {'type': 'string', 'enum': list(values)}


def when(value: str) -> datetime.datetime:
    """Convert a time in a query from text to a datetime in UTC without tzinfo.

    The text can be parsed, because the schema of the query has checked it.
    """
    return timeutils.normalize_time(timeutils.parse_isotime(value))


# --- format checks ---------------------------------------------------------------------------------------------------
class BadName(ValueError):
    """Error of a format check: a name has a control character, or spaces at its start or end.

    As in Nova, the error message for a property with the key 'name' is only the text of this error. For any other key,
    the message begins with the key and the refused value.
    """


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
        # The databases store naive UTC, so a time that can't be converted to UTC is not valid.
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
        return not isinstance(value, str) or (
            netaddr.valid_ipv4(value, netaddr.core.INET_PTON) if version == 4 else netaddr.valid_ipv6(value)
        )

    return check


FORMATS.checks('ipv4')(_address(4))
FORMATS.checks('ipv6')(_address(6))


def _printable(value: str, also: str = '') -> bool:
    return all(char in also or unicodedata.category(char) not in ('Cc', 'Cf', 'Cs', 'Cn', 'Zl', 'Zp') for char in value)


@FORMATS.checks('name', raises=BadName)
def _name(value: Json) -> bool:
    if isinstance(value, str) and (value != value.strip() or not value.strip() or not _printable(value)):
        raise BadName(
            "An invalid 'name' value was provided. The name must be: printable characters. "
            'Can not start or end with whitespace.'
        )
    return True


@FORMATS.checks('text')
def _text(value: Json) -> bool:
    return not isinstance(value, str) or _printable(value, '\t\n\r')
