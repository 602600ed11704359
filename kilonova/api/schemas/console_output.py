"""The body of os-getConsoleOutput (rest-api.md §2.2)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop

# -1 means all of it.
_LENGTH = {'type': ['integer', 'string', 'null'], 'pattern': '^-?[0-9]+$', 'minimum': -1, 'maximum': t.MAX_INT,
           'maxLength': 20}
GET = Obj(Prop('os-getConsoleOutput', Obj(Prop('length', _LENGTH)), required=True))
