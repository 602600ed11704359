"""Queries of limits (rest-api.md §2.10)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

# Nothing is reserved any more: the flag is taken and changes nothing.
SHOW = Query.of(Prop('tenant_id', t.ANY_TEXT), Prop('reserved', t.ANY_TEXT))
