"""What may be said about key pairs (rest-api.md §2.5)."""
from __future__ import annotations

import string
from typing import Any

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import FORMATS, Obj, Prop, Query

_PLAIN = frozenset(string.ascii_letters + string.digits + ' _-')
_WITH_ADDRESS = _PLAIN | frozenset('@.')


def _safe(characters: frozenset[str]) -> Any:
    def check(value: Any) -> bool:
        if isinstance(value, str) and not characters.issuperset(value):
            raise ValueError('Keypair data is invalid: Keypair name contains unsafe characters')
        return True
    return check


FORMATS.checks('keypair_name', raises=ValueError)(_safe(_PLAIN))
FORMATS.checks('keypair_name_292', raises=ValueError)(_safe(_WITH_ADDRESS))

_NAME = {'allOf': [t.NAME, {'type': 'string', 'format': 'keypair_name', 'maxLength': 255}]}
_NAME_292 = {'allOf': [t.NAME, {'type': 'string', 'format': 'keypair_name_292', 'maxLength': 255}]}
# The column's size, which MySQL counts in bytes.
_KEY = {'type': 'string', 'maxLength': 65535, 'maxBytes': 65535}
_USER = {'type': 'string', 'minLength': 1, 'maxLength': 255}

CREATE = Obj(Prop('keypair', Obj(
    Prop('name', _NAME, required=True, until=91), Prop('name', _NAME_292, required=True, since=92),
    Prop('public_key', _KEY, until=91), Prop('public_key', _KEY, required=True, since=92),
    Prop('type', t.one_of('ssh', 'x509'), since=2), Prop('user_id', _USER, since=10)), required=True))

_OF_USER = Prop('user_id', t.ANY_TEXT, since=10)
INDEX = Query.of(_OF_USER, Prop('limit', t.NUMBER_TEXT, since=35), Prop('marker', t.ANY_TEXT, since=35))
ONE = Query.of(_OF_USER)
