"""Queries of migrations (rest-api.md §2.11)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

INDEX = Query.of(
    Prop('hidden', t.ANY_TEXT), Prop('host', t.ANY_TEXT), Prop('instance_uuid', t.ANY_TEXT),
    Prop('source_compute', t.ANY_TEXT), Prop('status', t.ANY_TEXT), Prop('migration_type', t.ANY_TEXT),
    Prop('limit', t.NUMBER_TEXT, since=59, single=True), Prop('marker', t.UUID, since=59, single=True),
    Prop('changes-since', t.DATE_TEXT, since=59, single=True),
    Prop('changes-before', t.DATE_TEXT, since=66, single=True),
    Prop('user_id', t.ANY_TEXT, since=80), Prop('project_id', t.ANY_TEXT, since=80), strict_since=59)
