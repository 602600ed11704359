"""Migration: one move of a server between hosts (table ``migrations``)."""

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

NOT_WRITTEN = frozenset(('id', 'created_at', 'updated_at', 'deleted_at', 'deleted'))


@register
class Migration(PersistentObject, KilonovaObject):
    """One move of a server.

    Sizes (``memory_*``, ``disk_*``) are in bytes. ``source_node`` and ``dest_node`` are hypervisor hostnames.
    """

    VERSION = '1.8'
    migration_type: str
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'source_compute': fields.StringField(nullable=True),
        'dest_compute': fields.StringField(nullable=True),
        'source_node': fields.StringField(nullable=True),
        'dest_node': fields.StringField(nullable=True),
        'dest_compute_id': fields.IntegerField(nullable=True),
        'dest_host': fields.StringField(nullable=True),
        'old_instance_type_id': fields.IntegerField(nullable=True),
        'new_instance_type_id': fields.IntegerField(nullable=True),
        'instance_uuid': fields.StringField(nullable=True),
        'status': fields.StringField(nullable=True),
        'migration_type': fields.MigrationTypeField(),
        'hidden': fields.BooleanField(default=False),
        'memory_total': fields.IntegerField(nullable=True),
        'memory_processed': fields.IntegerField(nullable=True),
        'memory_remaining': fields.IntegerField(nullable=True),
        'disk_total': fields.IntegerField(nullable=True),
        'disk_processed': fields.IntegerField(nullable=True),
        'disk_remaining': fields.IntegerField(nullable=True),
        'cross_cell_move': fields.BooleanField(default=False),
        'user_id': fields.StringField(nullable=True),
        'project_id': fields.StringField(nullable=True),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """Return the migration that a row of ``migrations`` describes.

        If the row has no type, the migration is a resize if its two flavors differ, otherwise a cold migration.
        """
        values = {**row, 'deleted': bool(row.get('deleted'))}
        if not values.get('migration_type'):
            resized = values.get('old_instance_type_id') != values.get('new_instance_type_id')
            values['migration_type'] = 'resize' if resized else 'migration'
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def to_row(self, changed_only: bool = False) -> dict[str, Any]:
        """Return {column: value} of the fields that are set, or only of changed fields if ``changed_only`` is True."""
        return self.columns(NOT_WRITTEN, changed_only)

    @remotable_classmethod
    def get_by_uuid(cls, ctxt: RequestContext, uuid: str) -> Self:
        """Return the migration with this uuid.

        Raises MigrationNotFound if no such migration exists.
        """
        with storage.database(ctxt).read() as conn:
            row = storage.queries('migrations').get(conn, uuid=uuid)
        if row is None:
            raise errors.MigrationNotFound(migration_id=uuid)
        return cls.from_row(ctxt, row)

    @remotable
    def save(self) -> None:
        """Write the changed columns.

        Raises MigrationNotFound if the row was deleted.
        """
        values = self.to_row(changed_only=True)
        if values:
            with storage.database(self._context).write() as conn:
                if not storage.queries('migrations').update(conn, self.uuid, values):
                    raise errors.MigrationNotFound(migration_id=self.uuid)
        self.obj_reset_changes()

    @property
    def is_live_migration(self) -> bool:
        """True if the migration is a live migration."""
        return self.migration_type == 'live-migration'


@register
class MigrationList(ListBase, KilonovaObject):
    """A list of migrations."""

    VERSION = '1.6'
    fields = {'objects': fields.ListOfObjectsField('Migration')}

    @remotable_classmethod
    def get_in_progress_by_host_and_node(cls, ctxt: RequestContext, host: str, node: str) -> Self:
        """Return the migrations from or to a node that have not ended."""
        with storage.database(ctxt).read() as conn:
            return cls.from_rows(ctxt, storage.queries('migrations').unended_on_host(conn, host, node))

    @remotable_classmethod
    def get_evacuated(cls, ctxt: RequestContext, host: str) -> Self:
        """Return the successful evacuations from ``host`` after which this host must still clean up.

        The host then deletes the guests and files of the evacuated servers.
        """
        with storage.database(ctxt).read() as conn:
            return cls.from_rows(
                ctxt,
                storage.queries('migrations').list_migrations(
                    conn, filters={'source_compute': host, 'migration_type': 'evacuation', 'status': 'done'}
                ),
            )
