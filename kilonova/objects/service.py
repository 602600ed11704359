"""Service: one daemon of the cloud and the time of its last heartbeat (table ``services``)."""

from __future__ import annotations

from typing import Any, Self

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.objects import fields, storage
from kilonova.objects.base import (
    KilonovaObject,
    ListBase,
    PersistentObject,
    register,
    remotable,
    remotable_classmethod,
)

NOT_WRITTEN = frozenset(
    ('id', 'compute_node', 'availability_zone', 'last_seen_up', 'created_at', 'updated_at', 'deleted_at', 'deleted')
)


@register
class Service(PersistentObject, KilonovaObject):
    """One daemon of the cloud.

    ``binary`` is Nova's name of the daemon (nova-compute …), and ``version`` is its service version number. Whenever
    ``report_count`` changes, the database sets ``last_seen_up`` to the time of its own clock.
    """

    VERSION = '1.22'
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'host': fields.StringField(nullable=True),
        'binary': fields.StringField(nullable=True),
        'topic': fields.StringField(nullable=True),
        'report_count': fields.IntegerField(),
        'disabled': fields.BooleanField(default=False),
        'disabled_reason': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'compute_node': fields.ObjectField('ComputeNode'),
        'last_seen_up': fields.DateTimeField(nullable=True),
        'forced_down': fields.BooleanField(default=False),
        'version': fields.IntegerField(),
    }

    def to_row(self, changed_only: bool = False) -> dict[str, Any]:
        """Return {column: value} of the fields that are set, or only of changed fields if ``changed_only`` is True."""
        return self.columns(NOT_WRITTEN, changed_only)

    @remotable_classmethod
    def get_by_args(cls, ctxt: RequestContext, host: str, binary: str) -> Self:
        """Return the service with this binary on a host.

        Raises ServiceNotFound if no such service exists.
        """
        with storage.database(ctxt).read() as conn:
            row = storage.queries('services').get(conn, host=host, binary=binary)
        if row is None:
            raise errors.ServiceNotFound(service_id=f'{binary} on {host}')
        return cls.from_row(ctxt, row)

    @remotable
    def create(self) -> None:
        """Insert the service's row. Afterwards the object has the row's id and uuid.

        Raises HostIsBeingRemoved while the removal of a host with this name is not complete.
        """
        with storage.database(self._context).write() as conn:
            storage.queries('host_removals').refuse(conn, self.host)
            row = storage.queries('services').create(conn, self.to_row())
        self.refresh_from(row)

    @remotable
    def save(self) -> None:
        """Write the changed columns.

        A changed ``report_count`` is a heartbeat: the database increments its own counter, and stores the time of its
        own clock. If the host itself changes ``disabled`` and its reason automatically, it does not replace values that
        an administrator has set.

        Raises ServiceNotFound if the row was deleted.
        """
        values, services = self.to_row(changed_only=True), storage.queries('services')
        beat = values.pop('report_count', None) is not None
        own = {name: values.pop(name) for name in ('disabled', 'disabled_reason') if name in values}
        with storage.database(self._context).write() as conn:
            there = services.update(conn, self.id, values) if values else True
            if own:
                services.switch(conn, self.id, own)
            if there and beat:
                there = services.report(conn, self.id)
        if not there:
            raise errors.ServiceNotFound(service_id=self.id)
        self.obj_reset_changes()


@register
class ServiceList(ListBase, KilonovaObject):
    """A list of services."""

    VERSION = '1.19'
    fields = {'objects': fields.ListOfObjectsField('Service')}
