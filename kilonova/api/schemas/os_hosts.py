"""What may be said about hosts (rest-api.md §2.7, §3)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

_SWITCH = t.one_of('enable', 'disable', 'Enable', 'Disable', 'ENABLE', 'DISABLE')

INDEX = Query.of(Prop('zone', t.ANY_TEXT))
UPDATE = Obj(Prop('status', _SWITCH), Prop('maintenance_mode', _SWITCH), minProperties=1)
