"""Devices and requests for the tests of kilonova.pci and of the ledger."""

from __future__ import annotations

from typing import Any

from oslo_utils import uuidutils

from kilonova.compute.tracker import Tracker
from kilonova.objects import ComputeNode, InstancePCIRequest
from kilonova.pci.device import VF
from kilonova.pci.devices import DeviceOwner, NodeDevices
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.spec import DeviceSpecs

NODE = 1
GPU = {'vendor_id': '10de', 'product_id': '13f1'}


def found(
    address: str,
    *,
    dev_type: str = 'type-PCI',
    parent: str | None = None,
    numa: int | None = 0,
    vendor_id: str = '10de',
    product_id: str = '13f1',
    **more: Any,
) -> dict[str, Any]:
    """A device as the driver finds it."""
    return {
        'dev_id': 'pci_' + address.replace(':', '_').replace('.', '_'),
        'address': address,
        'vendor_id': vendor_id,
        'product_id': product_id,
        'numa_node': numa,
        'label': f'label_{vendor_id}_{product_id}',
        'dev_type': dev_type,
        'parent_addr': parent,
        **more,
    }


def functions(parent: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """``count`` virtual functions of the device at ``parent``."""
    return [
        found(f'{parent[:-4]}{10 + index // 8:02d}.{index % 8}', dev_type=VF, parent=parent, **more)
        for index in range(count)
    ]


def request(
    count: int = 1, numa_policy: str = 'legacy', alias_name: str | None = 'gpu', **spec: Any
) -> InstancePCIRequest:
    """A request of a flavor for ``count`` of our GPUs, or of what ``spec`` says."""
    return InstancePCIRequest(
        count=count,
        spec=[spec or dict(GPU)],
        alias_name=alias_name,
        is_new=False,
        request_id=uuidutils.generate_uuid(),
        requester_id=None,
        numa_policy=numa_policy,
    )


def saved(devices: NodeDevices) -> NodeDevices:
    """What rows lacked was written; new rows get ids."""
    top = max([device.id for device in devices.all() if 'id' in device], default=0)
    changes = devices.unwritten()
    return devices.written(changes, {device.address: top + 1 + index for index, device in enumerate(changes.created)})


def host(devices: list[dict[str, Any]], specs: str = '{"vendor_id": "10de"}') -> NodeDevices:
    """A host that has these devices, all with rows."""
    return saved(NodeDevices((PciFunctions(DeviceSpecs.parse([specs])),), NODE).looked(devices))


def claimed(devices: NodeDevices, uuid: str, *requests: InstancePCIRequest) -> NodeDevices:
    """A server has what it asks for."""
    chosen = devices.pools.copy().consume_requests(requests)
    return devices.given(
        {device.address: DeviceOwner('claimed', uuid, request_id) for device, request_id in chosen}, uuid
    )[0]


def ledger(devices: list[dict[str, Any]], specs: str = '{"vendor_id": "10de"}') -> Tracker:
    """An empty ledger of such a host, which has room for everything else."""
    made = Tracker()
    made.node = ComputeNode(id=NODE, memory_mb=1 << 30, local_gb=1 << 30, hypervisor_hostname='host1')
    made.load(host(devices, specs))
    return made


def statuses(devices: NodeDevices) -> dict[str, str]:
    """{address: status}."""
    return {device.address: device.status for device in devices.all()}
