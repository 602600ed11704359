"""The request context: who asks, under which request id, and in which cell the objects work.

    ctxt = RequestContext(user_id='u', project_id='p', roles=['member'])
    RequestContext.from_dict(ctxt.to_dict())      # what travels with each RPC message
"""
from __future__ import annotations

import datetime
from typing import Any

from oslo_context import context as oslo_context

# The catalog entries that other daemons need : the rest stays out of the messages.
CATALOG_TYPES = frozenset(('image', 'block-storage', 'volumev3', 'key-manager', 'placement', 'network',
                           'accelerator', 'sharev2'))


class RequestContext(oslo_context.RequestContext):
    """One request. ``cell`` is a ``db.engine.Database`` or None; it never travels."""

    # Who asks the API always has them; a daemon's own context has neither user nor project, and nothing asks it for
    # them.
    user_id: str
    project_id: str
    is_admin: bool

    def __init__(self, *args: Any, remote_address: str | None = None, timestamp: str | datetime.datetime | None = None,
                 read_deleted: str = 'no', service_catalog: list[Any] | None = None, quota_class: str | None = None,
                 **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remote_address = remote_address
        if isinstance(timestamp, str):
            timestamp = datetime.datetime.fromisoformat(timestamp.rstrip('Z'))
        self.timestamp = timestamp or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        self.read_deleted = read_deleted
        self.quota_class = quota_class
        self.service_catalog = [entry for entry in service_catalog or [] if entry.get('type') in CATALOG_TYPES]
        self.is_admin = bool(self.is_admin or 'admin' in [role.lower() for role in self.roles])
        self.cell: Any = None
        self.indirection: Any = None

    def to_dict(self) -> dict[str, Any]:
        """What travels, and what operation rows and notifications keep: all but the token, which the API alone uses
        (towards other services)."""
        values = super().to_dict()
        del values['auth_token']
        values.update(remote_address=self.remote_address, timestamp=self.timestamp.isoformat(),
                      read_deleted=self.read_deleted, quota_class=self.quota_class,
                      service_catalog=self.service_catalog, user_name=self.user_name,
                      project_name=self.project_name)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], **kwargs: Any) -> RequestContext:
        extra = {name: values.get(name) for name in
                 ('remote_address', 'timestamp', 'service_catalog', 'quota_class')}
        return super().from_dict(values, read_deleted=values.get('read_deleted') or 'no', **extra, **kwargs)


def get_admin_context() -> RequestContext:
    """The daemons' own context."""
    return RequestContext(is_admin=True, overwrite=False)
