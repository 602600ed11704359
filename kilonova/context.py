"""The request context: the user, the request id, and the cell in which objects read and write.

Example::

    ctxt = RequestContext(user_id='u', project_id='p', roles=['member'])
    RequestContext.from_dict(ctxt.to_dict())      # the part that each RPC message carries
"""

from __future__ import annotations

import datetime
from typing import Any

from oslo_context import context as oslo_context

# Service types that daemons need in the Keystone service catalog. RPC messages carry only their catalog entries.
CATALOG_TYPES = frozenset(
    ('image', 'block-storage', 'volumev3', 'key-manager', 'placement', 'network', 'accelerator', 'sharev2')
)


class RequestContext(oslo_context.RequestContext):
    """The context of one request.

    ``cell`` is the ``db.engine.Database`` of the cell in which objects read and write, or None. It is never sent to
    another process.
    """

    # These fields are set in the context of an API request. In a daemon's own context they are None and never read.
    user_id: str
    project_id: str
    is_admin: bool

    def __init__(
        self,
        *args: Any,
        remote_address: str | None = None,
        timestamp: str | datetime.datetime | None = None,
        read_deleted: str = 'no',
        service_catalog: list[Any] | None = None,
        quota_class: str | None = None,
        **kwargs: Any,
    ) -> None:
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
        """Return the values that are sent in messages and stored in operation rows and notifications.

        The token is left out, because only the API uses it, for its requests to other services.
        """
        values = super().to_dict()
        del values['auth_token']
        values.update(
            remote_address=self.remote_address,
            timestamp=self.timestamp.isoformat(),
            read_deleted=self.read_deleted,
            quota_class=self.quota_class,
            service_catalog=self.service_catalog,
            user_name=self.user_name,
            project_name=self.project_name,
        )
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], **kwargs: Any) -> RequestContext:
        """Build a context from the dict that ``to_dict`` returned.

        ``kwargs`` are further arguments of the constructor.
        """
        extra = {name: values.get(name) for name in ('remote_address', 'timestamp', 'service_catalog', 'quota_class')}
        return super().from_dict(values, read_deleted=values.get('read_deleted') or 'no', **extra, **kwargs)


def get_admin_context() -> RequestContext:
    """Return a new administrator's context for a daemon's own work, without user and project."""
    return RequestContext(is_admin=True, overwrite=False)
