"""MigrationContext: what a server has at both sides of a move (``instance_extra.migration_context``)."""
from __future__ import annotations

from typing import Any

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, PersistentObject, register

# The fields of an instance that a move changes; the context has each as old_ and new_.
MOVED = ('numa_topology', 'pci_devices', 'pci_requests', 'resources')


@register
class MigrationContext(PersistentObject, KilonovaObject):
    VERSION = '1.2'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'migration_id': fields.IntegerField(),
        'new_numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'old_numa_topology': fields.ObjectField('InstanceNUMATopology', nullable=True),
        'new_pci_devices': fields.ObjectField('PciDeviceList', nullable=True),
        'old_pci_devices': fields.ObjectField('PciDeviceList', nullable=True),
        'new_pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'old_pci_requests': fields.ObjectField('InstancePCIRequests', nullable=True),
        'new_resources': fields.ObjectField('ResourceList', nullable=True),
        'old_resources': fields.ObjectField('ResourceList', nullable=True),
    }

    def side(self, prefix: str) -> dict[str, Any]:
        """{instance field: value} of one side, ``old_`` or ``new_``, as far as the context carries it."""
        return {name: getattr(self, prefix + name) for name in MOVED if prefix + name in self}

    def pci_mapping(self, revert: bool = False) -> dict[str, Any]:
        """{address at the side one comes from: PciDevice at the side one goes to}, paired by request id."""
        come, go = ('new_', 'old_') if revert else ('old_', 'new_')
        targets: dict[str | None, list[Any]] = {}
        for device in getattr(self, f'{go}pci_devices') or ():
            targets.setdefault(device.request_id, []).append(device)
        mapping = {}
        for device in getattr(self, f'{come}pci_devices') or ():
            if targets.get(device.request_id):
                mapping[device.address] = targets[device.request_id].pop(0)
        return mapping
