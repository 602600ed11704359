"""Queries of hypervisors (rest-api.md §2.7)."""
from __future__ import annotations

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query

_PATTERN = {'type': 'string', 'minLength': 1, 'maxLength': 255}
INDEX = Query.of(
    Prop('limit', t.NUMBER_TEXT, since=33), Prop('marker', t.ANY_TEXT, since=33),
    Prop('hypervisor_hostname_pattern', _PATTERN, since=53), Prop('with_servers', t.BOOLEAN, since=53))
SHOW = Query.of(Prop('with_servers', t.BOOLEAN, since=53))
NONE = Query.of()
