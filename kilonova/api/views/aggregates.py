"""Bodies of aggregates (rest-api.md §2.6)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.base import Field, Fields, column, micro

# A new aggregate is answered without what it can't have yet.
WHOLE, CREATED = 'whole', 'created'
_WHOLE = frozenset((WHOLE,))

FIELDS = Fields(
    Field('id', column('id')),
    Field('name', column('name')),
    Field('availability_zone', lambda row, look: row['metadata'].get('availability_zone')),
    Field('hosts', column('hosts'), kinds=_WHOLE),
    Field('metadata', column('metadata'), kinds=_WHOLE),
    Field('created_at', lambda row, look: micro(row['created_at'])),
    Field('updated_at', lambda row, look: micro(row['updated_at'])),
    Field('deleted_at', lambda row, look: None),
    Field('deleted', lambda row, look: False),
    Field('uuid', column('uuid'), since=41),
)


def aggregate(row: Mapping[str, Any], version: int, kind: str = WHOLE) -> dict[str, Any]:
    """One aggregate, or the answer to its create."""
    return FIELDS.render(row, None, version, kind)
