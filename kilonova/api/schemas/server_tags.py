"""Bodies of the tags of servers (rest-api.md §2.3)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services.server_tags import LIMIT

UPDATE_ALL = Obj(Prop('tags', {'type': 'array', 'items': t.TAG, 'maxItems': LIMIT}, required=True))
# The tag stands in the path.
UPDATE = Windows(Window(t.NULL))
WORD = Obj(Prop('tag', t.TAG))
