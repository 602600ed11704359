"""Bodies of actions and their events (rest-api.md §2.3)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.views.base import ABSENT, Field, Fields, column, micro
from kilonova.api.views.servers import host_id

Row = Mapping[str, Any]

ACTION = Fields(
    Field('action', column('action')),
    Field('instance_uuid', column('instance_uuid')),
    Field('request_id', column('request_id')),
    Field('user_id', column('user_id')),
    Field('project_id', column('project_id')),
    Field('start_time', lambda row, look: micro(row['start_time'])),
    Field('message', column('message')),
    Field('updated_at', lambda row, look: micro(row['updated_at'] or row['created_at']), since=58),
)


@dataclass(frozen=True)
class Look:
    """``inside``: whether the caller sees tracebacks and hosts; ``details``: whether details."""

    project_id: str
    inside: bool
    details: bool


EVENT = Fields(
    Field('event', column('event')),
    Field('start_time', lambda row, look: micro(row['start_time'])),
    Field('finish_time', lambda row, look: micro(row['finish_time'])),
    Field('result', column('result')),
    Field('traceback', lambda row, look: row['traceback'] if look.inside else ABSENT),
    Field('hostId', lambda row, look: host_id(look.project_id, row['host']), since=62),
    Field('host', lambda row, look: row['host'] if look.inside else ABSENT, since=62),
    Field('details', lambda row, look: row['details'] if look.details else ABSENT, since=84),
)
