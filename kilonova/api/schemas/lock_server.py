"""Bodies of lock and unlock (rest-api.md §2.2)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows

LOCK = Obj(Prop('lock', Windows(
    Window(t.ANYTHING, until=72),
    Window({'oneOf': [t.NULL, Obj(Prop('locked_reason', {
        'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'text'}))]}, since=73)), required=True))
UNLOCK = Obj(Prop('unlock', t.ANYTHING, required=True))
