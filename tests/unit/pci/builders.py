"""Devices and requests for the tests of kilonova.pci."""

from __future__ import annotations

from typing import Any

from oslo_utils import uuidutils

from kilonova.objects import InstancePCIRequest
from kilonova.pci.device import VF
from kilonova.pci.spec import DeviceSpecs
from kilonova.pci.tracker import PciLedger

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


def save(ledger: PciLedger, changes: Any) -> None:
    """What the database would answer: new rows get ids."""
    top = max([device.id for device in ledger.devices() if 'id' in device], default=0)
    ledger.saved(changes, {device.address: top + 1 + index for index, device in enumerate(changes.created)})


def ledger(devices: list[dict[str, Any]], specs: str = '{"vendor_id": "10de"}') -> PciLedger:
    """A ledger that knows the devices, all saved."""
    made = PciLedger(DeviceSpecs.parse([specs]), NODE)
    save(made, made.sync(devices))
    return made


def statuses(ledger: PciLedger) -> dict[str, str]:
    """{address: status}."""
    return {device.address: device.status for device in ledger.devices()}
