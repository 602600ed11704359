"""Bodies of the metadata of servers (rest-api.md §2.3)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop

CREATE = Obj(Prop('metadata', t.METADATA, required=True))
UPDATE_ALL = CREATE
UPDATE = Obj(Prop('meta', {**t.METADATA, 'minProperties': 1, 'maxProperties': 1}, required=True))
