"""ComputeNode: the capacity and usage of one hypervisor (table ``compute_nodes``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from kilonova import errors, texts
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
from kilonova.objects.pci_device_pool import PciDevicePoolList

# The allocation ratios of a node that has not reported any: the defaults of [DEFAULT]initial_*_allocation_ratio.
INITIAL_RATIOS = {'cpu_allocation_ratio': 4.0, 'ram_allocation_ratio': 1.0, 'disk_allocation_ratio': 1.0}
# {field: column} for columns that contain JSON texts.
JSON_COLUMNS = {'supported_hv_specs': 'supported_instances', 'pci_device_pools': 'pci_stats', 'stats': 'stats'}
NOT_WRITTEN = frozenset(('id', 'created_at', 'updated_at', 'deleted_at', 'deleted'))


def ratios(row: Mapping[str, Any]) -> dict[str, float]:
    """Return {column: ratio} with the allocation ratios of a node for vCPUs, memory and disk."""
    return {name: row.get(name) or initial for name, initial in INITIAL_RATIOS.items()}


def free_amounts(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return the free memory and the free disk space of a node in MiB, without overcommit.

    Disk images of servers may still grow. The space that they may need does not count as free
    (``disk_available_least``).
    """
    ram, disk, least = row.get('free_ram_mb'), row.get('free_disk_gb'), row.get('disk_available_least')
    if ram is None:
        ram = row['memory_mb'] - row['memory_mb_used']
    if disk is None:
        disk = row['local_gb'] - row['local_gb_used']
    return ram, (disk if least is None else min(least, disk)) * 1024


@register
class HVSpec(KilonovaObject):
    """One combination of architecture, hypervisor type and VM mode that a node can run."""

    VERSION = '1.2'
    fields = {
        'arch': fields.ArchitectureField(),
        'hv_type': fields.HVTypeField(),
        'vm_mode': fields.VMModeField(),
    }

    @classmethod
    def from_list(cls, triple: list[str] | tuple[str, str, str]) -> Self:
        """Return the object for the list [arch, hv_type, vm_mode], as the driver reports and the column stores it."""
        return cls.loaded(None, zip(('arch', 'hv_type', 'vm_mode'), triple, strict=True))

    def to_list(self) -> list[str]:
        """Return the list [arch, hv_type, vm_mode]."""
        return [self.arch, self.hv_type, self.vm_mode]


@register
class ComputeNode(PersistentObject, KilonovaObject):
    """The capacity and usage of one hypervisor.

    Memory is in MiB, disk in GiB. ``host`` is the name of the compute service, and ``hypervisor_hostname`` is the name
    of the node.
    """

    VERSION = '1.19'
    supported_hv_specs: Any
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'service_id': fields.IntegerField(nullable=True),
        'host': fields.StringField(nullable=True),
        'vcpus': fields.IntegerField(),
        'memory_mb': fields.IntegerField(),
        'local_gb': fields.IntegerField(),
        'vcpus_used': fields.IntegerField(),
        'memory_mb_used': fields.IntegerField(),
        'local_gb_used': fields.IntegerField(),
        'hypervisor_type': fields.StringField(),
        'hypervisor_version': fields.IntegerField(),
        'hypervisor_hostname': fields.StringField(nullable=True),
        'free_ram_mb': fields.IntegerField(nullable=True),
        'free_disk_gb': fields.IntegerField(nullable=True),
        'current_workload': fields.IntegerField(nullable=True),
        'running_vms': fields.IntegerField(nullable=True),
        'cpu_info': fields.StringField(nullable=True),
        'disk_available_least': fields.IntegerField(nullable=True),
        'metrics': fields.StringField(nullable=True),
        'stats': fields.DictOfNullableStringsField(nullable=True),
        'host_ip': fields.IPAddressField(nullable=True),
        'numa_topology': fields.StringField(nullable=True),
        'supported_hv_specs': fields.ListOfObjectsField('HVSpec'),
        'pci_device_pools': fields.ObjectField('PciDevicePoolList', nullable=True),
        'cpu_allocation_ratio': fields.FloatField(),
        'ram_allocation_ratio': fields.FloatField(),
        'disk_allocation_ratio': fields.FloatField(),
        'mapped': fields.IntegerField(),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """Return the node that a row of ``compute_nodes`` describes.

        A JSON text that cannot be read is treated as empty. If it raised an error, the compute service could not start,
        and so could not replace the text by a correct one.
        """
        where = f'of node {row.get("hypervisor_hostname")}'
        values = {**row, 'deleted': bool(row.get('deleted')), 'mapped': row.get('mapped') or 0}
        for name in INITIAL_RATIOS:
            if values.get(name) is None:
                # The row lacks this allocation ratio. Leave the field unset, so that the compute service writes it.
                values.pop(name, None)
        values['supported_hv_specs'] = texts.read(
            f'supported_instances {where}',
            row.get('supported_instances'),
            lambda text: [HVSpec.from_list(triple) for triple in json.loads(text)],
            [],
        )
        values['pci_device_pools'] = texts.read(
            f'pci_stats {where}', row.get('pci_stats'), lambda text: PciDevicePoolList.from_column(text, ctxt), None
        )
        # ``stats`` has the number of the host's last usage report. The host gives each report a higher number.
        # If ``stats`` cannot be read, take the number from the column ``usage_serial``.
        last = {'usage_serial': str(row['usage_serial'])} if row.get('stats') and row.get('usage_serial') else {}
        values['stats'] = texts.read(f'stats {where}', row.get('stats'), texts.mapping, last)
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def to_row(self, changed_only: bool = False) -> dict[str, Any]:
        """Return {column: value} of the fields that are set, or only of changed fields if ``changed_only`` is True."""
        data = self.primitive_data()
        names = (self.obj_what_changed() if changed_only else set(data)) - NOT_WRITTEN
        row = {name: data[name] for name in data if name in names and name not in JSON_COLUMNS}
        if 'supported_hv_specs' in names:
            row['supported_instances'] = json.dumps([spec.to_list() for spec in self.supported_hv_specs])
        if 'pci_device_pools' in names:
            pools = self.pci_device_pools
            row['pci_stats'] = None if pools is None else pools.to_json()
        if 'stats' in names:
            row['stats'] = json.dumps(data['stats'] or {})
        return row

    @remotable_classmethod
    def get_by_host_and_nodename(cls, ctxt: RequestContext, host: str, nodename: str) -> Self:
        """Return the node of a host that has this hypervisor hostname.

        Raises ComputeHostNotFound if no such node exists.
        """
        return cls._get(ctxt, nodename, host=host, hypervisor_hostname=nodename)

    @remotable_classmethod
    def get_by_uuid(cls, ctxt: RequestContext, uuid: str) -> Self:
        """Return the node with this uuid, even if the name of its host has changed.

        Raises ComputeHostNotFound if no such node exists.
        """
        return cls._get(ctxt, uuid, uuid=uuid)

    @classmethod
    def _get(cls, ctxt: RequestContext, wanted: str, **criteria: str) -> Self:
        with storage.database(ctxt).read() as conn:
            row = storage.queries('compute_nodes').get(conn, **criteria)
        if row is None:
            raise errors.ComputeHostNotFound(host=wanted)
        return cls.from_row(ctxt, row)

    @remotable
    def create(self) -> None:
        """Insert the node's row, or restore the deleted row with the same uuid.

        If the row already exists and is not deleted, the object gets the values of the row. The row may belong to
        another host, so the caller must check ``host`` afterwards. Raises HostIsBeingRemoved while the removal of a
        host with this name is not complete.
        """
        with storage.database(self._context).write() as conn:
            storage.queries('host_removals').refuse(conn, self.host)
            row = storage.queries('compute_nodes').get_or_create(conn, {'cpu_info': '', **self.to_row()})
        self.refresh_from(row)

    @remotable
    def save(self) -> None:
        """Write the changed columns.

        Raises ComputeHostNotFound if the row was deleted.
        """
        values = self.to_row(changed_only=True)
        if values:
            with storage.database(self._context).write() as conn:
                if not storage.queries('compute_nodes').update(conn, self.id, values):
                    raise errors.ComputeHostNotFound(host=self.hypervisor_hostname)
        self.obj_reset_changes()

    def update_from_virt_driver(self, resources: dict[str, Any]) -> None:
        """Set the fields from ``resources``, the result of the driver's ``get_available_resource``.

        Only fields whose value differs are marked as changed.
        """
        names = (
            'vcpus',
            'memory_mb',
            'local_gb',
            'cpu_info',
            'vcpus_used',
            'memory_mb_used',
            'local_gb_used',
            'numa_topology',
            'hypervisor_type',
            'hypervisor_version',
            'hypervisor_hostname',
            'disk_available_least',
            'host_ip',
        )
        for name in names:
            if name in resources and (name not in self or self._differs(name, resources[name])):
                setattr(self, name, resources[name])
        if resources.get('supported_instances') is not None:
            specs = [HVSpec.from_list(triple) for triple in resources['supported_instances']]
            before: Any = self.supported_hv_specs if 'supported_hv_specs' in self else ()
            if [spec.to_list() for spec in specs] != [spec.to_list() for spec in before]:
                self.supported_hv_specs = specs

    def _differs(self, name: str, value: object) -> bool:
        return bool(getattr(self, name) != self.fields[name].coerce(self, name, value))


@register
class ComputeNodeList(ListBase, KilonovaObject):
    """A list of compute nodes."""

    VERSION = '1.17'
    fields = {'objects': fields.ListOfObjectsField('ComputeNode')}

    @remotable_classmethod
    def get_all_by_host(cls, ctxt: RequestContext, host: str) -> Self:
        """Return the nodes of a host. The list is empty if the host has no node."""
        with storage.database(ctxt).read() as conn:
            return cls.from_rows(ctxt, storage.queries('compute_nodes').by_host(conn, host))
