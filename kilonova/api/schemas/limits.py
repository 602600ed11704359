"""Queries of limits and quotas (rest-api.md §2.10)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

SHOW = Query.of(Prop('tenant_id', t.ANY_TEXT), Prop('reserved', t.ANY_TEXT))
QUOTA_SET = Query.of(Prop('user_id', t.ANY_TEXT))
