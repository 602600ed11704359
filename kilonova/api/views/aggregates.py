"""Bodies of aggregates (rest-api.md §2.6)."""
from __future__ import annotations

from kilonova.api.views.base import Field, Fields, column, micro

FIELDS = Fields(
    Field('id', column('id')),
    Field('name', column('name')),
    Field('availability_zone', lambda row, look: row['metadata'].get('availability_zone')),
    Field('hosts', column('hosts')),
    Field('metadata', column('metadata')),
    Field('created_at', lambda row, look: micro(row['created_at'])),
    Field('updated_at', lambda row, look: micro(row['updated_at'])),
    Field('deleted_at', lambda row, look: None),
    Field('deleted', lambda row, look: False),
    Field('uuid', column('uuid'), since=41),
)
