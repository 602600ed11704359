"""Queries of instance actions (rest-api.md §2.3)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

# Lists took no parameters at all before 2.58; those that were sent were passed over.
INDEX = Query.of(
    Prop('limit', t.NUMBER_TEXT, since=58, single=True), Prop('marker', t.ANY_TEXT, since=58, single=True),
    Prop('changes-since', t.DATE_TEXT, since=58, single=True),
    Prop('changes-before', t.DATE_TEXT, since=66, single=True), strict_since=58)
