"""What may be said about server groups (rest-api.md §2.9)."""
from __future__ import annotations

from typing import Any

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Query

HARD, SOFT = ('anti-affinity', 'affinity'), ('soft-anti-affinity', 'soft-affinity')


def _policies(*names: str) -> dict[str, Any]:
    return {'type': 'array', 'items': t.one_of(*names), 'minItems': 1, 'maxItems': 1, 'uniqueItems': True}


_RULES = Obj(Prop('max_server_per_host', t.integer(minimum=1)))

INDEX = Query.of(Prop('all_projects', t.ANY_TEXT), Prop('limit', t.NUMBER_TEXT), Prop('offset', t.NUMBER_TEXT))
CREATE = Obj(Prop('server_group', Obj(
    Prop('name', t.NAME, required=True),
    Prop('policies', _policies(*HARD), required=True, until=14),
    Prop('policies', _policies(*HARD, *SOFT), required=True, since=15, until=63),
    Prop('policy', t.one_of(*HARD, *SOFT), required=True, since=64),
    Prop('rules', _RULES, since=64)), required=True))
