"""Bodies of key pairs (rest-api.md §2.5)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.base import ABSENT, Field, Fields, column, micro

LISTED, SHOWN, CREATED = 'listed', 'shown', 'created'
_SHOWN, _ONE = frozenset((SHOWN,)), frozenset((SHOWN, CREATED))

_FIELDS = Fields(
    Field('name', column('name')),
    Field('public_key', column('public_key')),
    Field('fingerprint', column('fingerprint')),
    Field('type', column('type'), since=2),
    Field('user_id', column('user_id'), kinds=_ONE),
    Field('private_key', lambda row, private_key: private_key or ABSENT, kinds=frozenset((CREATED,))),
    Field('id', column('id'), kinds=_SHOWN),
    Field('created_at', lambda row, look: micro(row['created_at']), kinds=_SHOWN),
    Field('updated_at', lambda row, look: micro(row['updated_at']), kinds=_SHOWN),
    Field('deleted', lambda row, look: False, kinds=_SHOWN),
    Field('deleted_at', lambda row, look: None, kinds=_SHOWN),
)


def keypair(row: Mapping[str, Any], version: int, kind: str, private_key: str | None = None) -> dict[str, Any]:
    """One key pair, as it is listed, shown, or answered to its create."""
    return {'keypair': _FIELDS.render(row, private_key, version, kind)}
