"""Instance: one server (tables ``instances`` and ``instance_extra``, and the metadata tables).

    instance = Instance.from_row(ctxt, row, extra, system_metadata={...})
    rows = instance.to_rows()           # the values that a create inserts
    rows = instance.to_rows(changed_only=True)

Objects never load a missing field implicitly: reading a field that is not set raises ``UnsetField``.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.objects import fields, instance_columns, storage
from kilonova.objects.base import (
    KilonovaObject,
    ListBase,
    PersistentObject,
    naive,
    register,
    remotable,
    remotable_classmethod,
)
from kilonova.objects.flavor import Flavor
from kilonova.objects.instance_columns import ENVELOPES, FLAVOR_FIELDS
from kilonova.objects.instance_extra import MigrationContext
from kilonova.objects.instance_tables import BlockDeviceMappingList, InstanceInfoCache
from kilonova.objects.pci_device import PciDeviceList
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume

if TYPE_CHECKING:
    from kilonova.db.engine import Connection

# Fields that are not columns of the table ``instances``. Most are stored in other tables, such as instance_extra.
ELSEWHERE = frozenset(
    (
        'services',
        'metadata',
        'system_metadata',
        'info_cache',
        'security_groups',
        'fault',
        'pci_devices',
        'pci_requests',
        'tags',
        'ec2_ids',
        'block_devices',
        *FLAVOR_FIELDS,
        *ENVELOPES,
    )
)
# A device with one of these statuses belongs to a server.
HELD = ('claimed', 'allocated')
# Columns that ``save`` does not write. Only transitions (states.TRANSITIONS) write vm_state and task_state.
NOT_WRITTEN = frozenset(('id', 'created_at', 'updated_at', 'deleted_at', 'deleted', 'vm_state', 'task_state'))


class InstanceValues(NamedTuple):
    """The column values of a server, for a create or a save.

    ``values`` are columns of ``instances``, and ``extra`` columns of ``instance_extra``. ``system_metadata`` and
    ``metadata`` are None if they are unchanged.
    """

    values: dict[str, Any]
    extra: dict[str, str | None]
    system_metadata: dict[str, str | None] | None
    metadata: dict[str, str] | None


@register
class Instance(PersistentObject, KilonovaObject):
    """A server.

    Memory is in MiB, disks are in GiB. ``host`` is the name of the compute service, and ``node`` is the hypervisor
    hostname.
    """

    VERSION = '2.9'
    fields = {
        'id': fields.IntegerField(),
        'user_id': fields.StringField(nullable=True),
        'project_id': fields.StringField(nullable=True),
        'image_ref': fields.StringField(nullable=True),
        'kernel_id': fields.StringField(nullable=True),
        'ramdisk_id': fields.StringField(nullable=True),
        'hostname': fields.StringField(nullable=True),
        'launch_index': fields.IntegerField(nullable=True),
        'key_name': fields.StringField(nullable=True),
        'key_data': fields.StringField(nullable=True),
        'power_state': fields.IntegerField(nullable=True),
        'vm_state': fields.StringField(nullable=True),
        'task_state': fields.StringField(nullable=True),
        'services': fields.ObjectField('ServiceList'),
        'memory_mb': fields.IntegerField(nullable=True),
        'vcpus': fields.IntegerField(nullable=True),
        'root_gb': fields.IntegerField(nullable=True),
        'ephemeral_gb': fields.IntegerField(nullable=True),
        'ephemeral_key_uuid': fields.UUIDField(nullable=True),
        'host': fields.StringField(nullable=True),
        'node': fields.StringField(nullable=True),
        'compute_id': fields.IntegerField(nullable=True),
        'instance_type_id': fields.IntegerField(nullable=True),
        'user_data': fields.StringField(nullable=True),
        'reservation_id': fields.StringField(nullable=True),
        'launched_at': fields.DateTimeField(nullable=True),
        'terminated_at': fields.DateTimeField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'display_name': fields.StringField(nullable=True),
        'display_description': fields.StringField(nullable=True),
        'launched_on': fields.StringField(nullable=True),
        'locked': fields.BooleanField(default=False),
        'locked_by': fields.StringField(nullable=True),
        'os_type': fields.StringField(nullable=True),
        'architecture': fields.StringField(nullable=True),
        'vm_mode': fields.StringField(nullable=True),
        'uuid': fields.UUIDField(),
        'root_device_name': fields.StringField(nullable=True),
        'default_ephemeral_device': fields.StringField(nullable=True),
        'default_swap_device': fields.StringField(nullable=True),
        'config_drive': fields.StringField(nullable=True),
        'access_ip_v4': fields.IPV4AddressField(nullable=True),
        'access_ip_v6': fields.IPV6AddressField(nullable=True),
        'auto_disk_config': fields.BooleanField(default=False),
        'progress': fields.IntegerField(nullable=True),
        'shutdown_terminate': fields.BooleanField(default=False),
        'disable_terminate': fields.BooleanField(default=False),
        'cell_name': fields.StringField(nullable=True),
        'metadata': fields.DictOfStringsField(),
        'system_metadata': fields.DictOfNullableStringsField(),
        'info_cache': fields.ObjectField('InstanceInfoCache', nullable=True),
        'security_groups': fields.ObjectField('SecurityGroupList'),
        'fault': fields.ObjectField('InstanceFault', nullable=True),
        'cleaned': fields.BooleanField(default=False),
        'pci_devices': fields.ObjectField('PciDeviceList', nullable=True),
        'numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'device_metadata': fields.ObjectField('InstanceDeviceMetadata', nullable=True),
        'tags': fields.ObjectField('TagList'),
        'flavor': fields.ObjectField('Flavor'),
        'old_flavor': fields.ObjectField('Flavor', nullable=True),
        'new_flavor': fields.ObjectField('Flavor', nullable=True),
        'vcpu_model': fields.ObjectField('VirtCPUModel', nullable=True),
        'ec2_ids': fields.ObjectField('EC2Ids'),
        'migration_context': fields.ObjectField('MigrationContext', nullable=True),
        'keypairs': fields.ObjectField('KeyPairList'),
        'trusted_certs': fields.ObjectField('TrustedCerts', nullable=True),
        'hidden': fields.BooleanField(default=False),
        'resources': fields.ObjectField('ResourceList', nullable=True),
        'block_devices': fields.ObjectField('BlockDeviceMappingList', nullable=True),
    }

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        """Remove the field ``block_devices`` from the primitive for versions before 2.9, which do not have it."""
        super().obj_make_compatible(primitive, target_version)
        if tuple(map(int, target_version.split('.')))[:2] < (2, 9):
            primitive.pop('block_devices', None)

    # -- conversion from and to database rows --------------------------------------------------------------------------
    @classmethod
    def from_row(
        cls,
        ctxt: RequestContext | None,
        row: dict[str, Any],
        extra: dict[str, Any] | None = None,
        *,
        flavor: Flavor | None = None,
        metadata: dict[str, str] | None = None,
        system_metadata: Mapping[str, str | None] | None = None,
        pci_devices: list[dict[str, Any]] | None = None,
        lenient: bool = False,
    ) -> Self:
        """Return the server that a row of ``instances`` describes, with the given columns of ``instance_extra``.

        Args:
            ctxt: the context of the object.
            row: the columns of ``instances``.
            extra: the JSON texts of the columns of ``instance_extra`` that were read. Fields of other columns stay
                unset. It may also have the text of the info cache (key ``network_info``) and the rows of the volumes
                (key ``volumes``).
            flavor: the server's flavor, if ``extra`` has no column with the flavor.
            metadata: the server's metadata.
            system_metadata: the server's system metadata.
            pci_devices: the rows of the devices that the server owns. During a move the server owns devices on source
                and destination, so only the devices of the server's current PCI requests become part of the object.
            lenient: if True, a text that cannot be read is logged, and its fields are left out. A flavor that cannot be
                read is replaced by one with the sizes of the row. This is enough to show, count or remove the server,
                but not to start it.

        Raises:
            ServerUnreadable: a text cannot be read, and ``lenient`` is False.
        """
        values = {**row, 'deleted': bool(row.get('deleted')), 'cleaned': bool(row.get('cleaned'))}
        self = cls.loaded(
            ctxt, ((name, values[name]) for name in cls.fields if name in values and name not in ELSEWHERE)
        )
        if flavor is not None:
            self.load((('flavor', flavor), ('old_flavor', None), ('new_flavor', None)))
        if extra:
            self.load(instance_columns.read(ctxt, self.uuid, extra, lenient=lenient).items())
            if lenient and extra.get('flavor') and 'flavor' not in self:
                sizes = ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb')
                own = {name: getattr(self, name) for name in sizes if name in self}
                of_row = Flavor(ctxt, id=self.instance_type_id, flavorid='', name='', swap=0, extra_specs={}, **own)
                self.load((('flavor', of_row),))
        given = {'metadata': metadata, 'system_metadata': system_metadata}
        self.load((name, value) for name, value in given.items() if value is not None)
        if pci_devices is not None:
            self.load((('pci_devices', self._own_devices(pci_devices)),))
        return self

    def _own_devices(self, rows: list[dict[str, Any]]) -> PciDeviceList:
        if 'pci_requests' in self and self.pci_requests is not None:
            wanted = {request.request_id for request in self.pci_requests.requests} | {None}
            rows = [row for row in rows if row.get('request_id') in wanted]
        return PciDeviceList.from_rows(self._context, rows)

    def to_rows(self, changed_only: bool = False) -> InstanceValues:
        """Return the column values of the fields that are set, or only of changed fields if ``changed_only`` is True.

        Datetimes are in naive UTC. If ``changed_only`` is False, the values include ``created_at``, because a new row
        must have the time of the user's request, and not the later time of the insert.
        """
        names = self.obj_what_changed() if changed_only else {name for name in self.fields if name in self}
        never = NOT_WRITTEN if changed_only else NOT_WRITTEN - {'created_at'}
        values = {}
        for name in names - ELSEWHERE - never:
            value = getattr(self, name)
            if isinstance(value, datetime.datetime):
                value = naive(value)
            elif name.startswith('access_ip') and value is not None:
                value = str(value)
            elif name == 'cleaned':
                value = int(value)
            values[name] = value
        return InstanceValues(
            values,
            self.extra_values(names),
            dict(self.system_metadata) if 'system_metadata' in names else None,
            dict(self.metadata) if 'metadata' in names else None,
        )

    def extra_values(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return {column of ``instance_extra``: JSON text} for these fields. Names without a column are left out."""
        names = set(names)
        extra: dict[str, str | None] = {}
        if names.intersection(FLAVOR_FIELDS):
            flavors = {key: getattr(self, name) if name in self else None for name, key in FLAVOR_FIELDS.items()}
            extra['flavor'] = json.dumps(
                {key: None if flavor is None else flavor.stored_primitive() for key, flavor in flavors.items()}
            )
        if 'pci_requests' in names:
            requests = self.pci_requests
            extra['pci_requests'] = None if requests is None else requests.to_column()
        for name in ENVELOPES:
            if name in names:
                value = getattr(self, name)
                extra[name] = None if value is None else value.to_json()
        return extra

    # -- methods that need the database: a compute service sends these calls to a conductor ----------------------------
    @remotable_classmethod
    def get_by_uuid(cls, ctxt: RequestContext, uuid: str) -> Instance:
        """Return a server that is not deleted, with its extra columns, metadata, system metadata and devices.

        Raises InstanceNotFound if the server does not exist, and ServerUnreadable if one of its texts cannot be read.
        """
        with storage.database(ctxt).read() as conn:
            row = storage.queries('instances').get(conn, uuid)
            if row is None:
                raise errors.InstanceNotFound(instance_id=uuid)
            system_metadata = {uuid: storage.queries('instances').get_system_metadata(conn, uuid)}
            return _assemble(ctxt, conn, [row], system_metadata, lenient=False)[0]

    @remotable
    def save(self, expected_task_state: Any = None, expected_vm_state: Any = None) -> None:
        """Write the changed columns except vm_state and task_state, if the server has the expected states.

        An expected state is one state, a list of states, or None for any state; None in a list means no task. Check and
        write are one transaction. Entries of ``system_metadata`` are written, and entries with the value None are
        deleted. ``metadata`` and devices are not written. Steps of an operation use ``objects.Save`` instead.

        Raises Conflict if the server has another state or is deleted.
        """
        rows = self.to_rows(changed_only=True)
        expect = {
            name: _states(value)
            for name, value in (('task_state', expected_task_state), ('vm_state', expected_vm_state))
            if value is not None
        }
        claims = storage.queries('claims')
        claims.save(
            storage.database(self._context),
            claims.SaveWrite(
                instance_uuid=self.uuid,
                values=rows.values,
                extra=rows.extra,
                expect=expect,
                system_metadata=rows.system_metadata,
            ),
        )
        self.obj_reset_changes()

    # -- the server's network interfaces -------------------------------------------------------------------------------
    @property
    def vifs(self) -> list[Vif]:
        """The server's interfaces in the order of the guest's devices.

        The list is empty if the info cache was not read.
        """
        cache: InstanceInfoCache | None = self.info_cache if 'info_cache' in self else None
        return [Vif.read(stored) for stored in cache.network_info or ()] if cache is not None else []

    # -- the server's volumes ------------------------------------------------------------------------------------------
    @property
    def is_from_volume(self) -> bool:
        """True if the root disk is a volume. The server itself has no image in this case."""
        return 'image_ref' in self and not self.image_ref

    @property
    def local_root_gb(self) -> int:
        """The size in GiB of the root disk that the host creates.

        The size is 0 if the root disk is a volume, or if the image determines the size.
        """
        return 0 if self.is_from_volume else self.flavor.root_gb

    @property
    def volumes(self) -> list[AttachedVolume]:
        """The server's volumes in the order of the guest's disks. The list is empty if the volumes' rows were not read.

        A volume without an attachment id is not attached to the server yet.
        """
        rows: BlockDeviceMappingList | None = self.block_devices if 'block_devices' in self else None
        return [AttachedVolume.read(row.to_row()) for row in rows or ()]

    # -- changes of the flavor in a move -------------------------------------------------------------------------------
    def set_flavor(self, flavor: Flavor) -> None:
        """Set the flavor, and copy the flavor's sizes to the server."""
        self.flavor = flavor
        self.instance_type_id = flavor.id
        for name in ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb'):
            setattr(self, name, getattr(flavor, name))

    def flavor_columns(self) -> dict[str, Any]:
        """Return {column of ``instances``: value} for the columns whose values come from the flavor."""
        return {
            name: getattr(self.flavor, 'id' if name == 'instance_type_id' else name)
            for name in ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb', 'instance_type_id')
        }

    def go_back(self, context: MigrationContext | None) -> dict[str, str | None]:
        """Set flavor, PCI requests and NUMA topology to the values that the server had before its present move.

        A move is a resize, migration or evacuation. ``context`` is the server's migration context, which has the old
        PCI requests and NUMA topology. If it is None, only the flavor is set. The old flavor is ``old_flavor`` if the
        move's destination host has already written the new flavor to the server. Otherwise ``flavor`` is still the old
        one. Return the changed columns as {column of ``instance_extra``: JSON text}.
        """
        self.set_flavor((self.old_flavor if 'old_flavor' in self else None) or self.flavor)
        self.old_flavor: Flavor | None = None
        self.new_flavor: Flavor | None = None
        names = {'flavor'}
        if context is not None:
            self.pci_requests = context.old_pci_requests
            self.numa_topology = context.old_numa_topology
            names |= {'pci_requests', 'numa_topology'}
        return self.extra_values(names)


@register
class InstanceList(ListBase, KilonovaObject):
    """A list of servers."""

    VERSION = '2.7'
    fields = {'objects': fields.ListOfObjectsField('Instance')}

    @remotable_classmethod
    def get_by_host(cls, ctxt: RequestContext, host: str) -> Self:
        """Return the servers of a host that are not deleted, with the same fields as ``Instance.get_by_uuid``.

        If a text in a column of a server cannot be read, the error is logged and the fields of the column are left out,
        so that the result has all servers. Runs four SQL statements.
        """
        with storage.database(ctxt).read() as conn:
            queries = storage.queries('instances')
            rows = queries.by_host(conn, host)
            system_metadata = queries.get_system_metadata_of(conn, [row['uuid'] for row in rows])
            return cls.of(ctxt, _assemble(ctxt, conn, rows, system_metadata))

    @remotable_classmethod
    def get_deleted(cls, ctxt: RequestContext, uuids: list[str], seconds: float) -> Self:
        """Return the servers in ``uuids`` that were deleted at least ``seconds`` ago and have no operation.

        As long as a deleted server has an operation, the operation may still have to free resources. A host may remove
        the guests and files of the returned servers. Servers that this cell does not know are not returned.
        """
        with storage.database(ctxt).read() as conn:
            rows = storage.queries('instances').deleted_among(conn, uuids, seconds)
            return cls.of(ctxt, _assemble(ctxt, conn, rows, {}))

    @remotable_classmethod
    def get_uuids_with_operations(cls, ctxt: RequestContext, host: str) -> list[str]:
        """Return the uuids of servers that have an operation and are on this host or are being moved from or to it.

        A host that restarts does not change these servers, because conductors continue the operations.
        """
        with storage.database(ctxt).read() as conn:
            uuids = {row['uuid'] for row in storage.queries('instances').by_host(conn, host)}
            uuids.update(row['instance_uuid'] for row in storage.queries('migrations').unended_on_host(conn, host))
            return sorted(storage.queries('operations').busy_instances(conn, sorted(uuids), host))


def _assemble(
    ctxt: RequestContext,
    conn: Connection,
    rows: list[dict[str, Any]],
    system_metadata: dict[str, dict[str, str | None]],
    lenient: bool = True,
) -> list[Instance]:
    """Return an Instance for each of these database rows, and read the metadata and devices of the servers.

    Each row has the columns of the table ``instances`` and columns of ``instance_extra``. ``system_metadata`` is a dict
    from server uuid to the server's system metadata. If ``lenient`` is True, texts that can't be parsed are logged and
    left out. Otherwise ServerUnreadable is raised for the first of them.
    """
    uuids = [row['uuid'] for row in rows]
    if not uuids:
        return []
    facts = storage.queries('servers').facts(conn, uuids, with_tags=False)
    devices = storage.queries('pci_devices').by_instances(conn, uuids, HELD)
    instances = []
    for row in rows:
        values, extra = storage.queries('instances').split(row)
        uuid = row['uuid']
        instances.append(
            Instance.from_row(
                ctxt,
                values,
                extra,
                metadata=facts[uuid]['metadata'],
                system_metadata=system_metadata.get(uuid, {}),
                pci_devices=devices[uuid],
                lenient=lenient,
            )
        )
    return instances


def _states(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
