"""What may be said about services (rest-api.md §2.8)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

_REASON = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'text'}
_BINARY = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_OF_HOST = (Prop('host', t.HOST, required=True), Prop('binary', _BINARY, required=True))

INDEX = Query.of(Prop('host', t.ANY_TEXT), Prop('binary', t.ANY_TEXT))
ENABLE = Obj(*_OF_HOST)
ANY_VERB = Obj(*_OF_HOST, Prop('disabled_reason', _REASON), Prop('forced_down', t.BOOLEAN, since=11))
DISABLE = Obj(*_OF_HOST)
DISABLE_LOG_REASON = Obj(*_OF_HOST, Prop('disabled_reason', _REASON, required=True))
FORCE_DOWN = Obj(*_OF_HOST, Prop('forced_down', t.BOOLEAN, required=True))
UPDATE = Obj(Prop('status', t.one_of('enabled', 'disabled')), Prop('disabled_reason', _REASON),
             Prop('forced_down', t.BOOLEAN))
