"""Queries of usage reports (rest-api.md §2.10). Times have forms of their own, which the service reads."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

_PERIOD = (Prop('start', t.ANY_TEXT), Prop('end', t.ANY_TEXT))
_PAGE = (Prop('limit', t.NUMBER_TEXT, since=40), Prop('marker', t.ANY_TEXT, since=40))

INDEX = Query.of(*_PERIOD, Prop('detailed', t.ANY_TEXT), *_PAGE)
SHOW = Query.of(*_PERIOD, *_PAGE)
