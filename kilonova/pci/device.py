"""One PCI device as discovered, as a stored object, and the words for its type and status.

    device = build(discovered, tags=spec.tags, compute_node_id=1)      # a new objects.PciDevice, available
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kilonova.objects import PciDevice

STANDARD = 'type-PCI'
PF = 'type-PF'
VF = 'type-VF'
VDPA = 'vdpa'
# Types that live below a physical function and share its fate.
CHILD_TYPES = frozenset((VF, VDPA))

AVAILABLE = 'available'
CLAIMED = 'claimed'
ALLOCATED = 'allocated'
REMOVED = 'removed'
UNCLAIMABLE = 'unclaimable'
UNAVAILABLE = 'unavailable'
OWNED = frozenset((CLAIMED, ALLOCATED))

# Columns of a device that come from discovery (pci.md §4, §5).
_FIELDS = ('vendor_id', 'product_id', 'dev_type', 'dev_id', 'label', 'numa_node', 'parent_addr')
_EXTRA_TAGS = ('managed', 'live_migratable')
_EXTRA_KEYS = ('parent_ifname', 'mac_address')


def values(discovered: Mapping[str, Any], tags: Mapping[str, str | None]) -> dict[str, Any]:
    """The stored fields of a discovered device: the columns, and ``extra_info`` (all its values are
    strings)."""
    fields: dict[str, Any] = {name: discovered.get(name) for name in _FIELDS}
    fields.update({name: discovered[name].lower() for name in ('vendor_id', 'product_id')})
    fields['label'] = fields['label'] or f'label_{fields["vendor_id"]}_{fields["product_id"]}'
    extra = {name: str(discovered[name]) for name in _EXTRA_KEYS if discovered.get(name)}
    if discovered.get('capabilities'):
        extra['capabilities'] = json.dumps(discovered['capabilities'], sort_keys=True)
    extra.update({name: str(tags[name]) for name in _EXTRA_TAGS if tags.get(name) is not None})
    fields['extra_info'] = extra
    return fields


def build(discovered: Mapping[str, Any], tags: Mapping[str, str | None], compute_node_id: int | None,
          uuid: str) -> PciDevice:
    """A new device, free, without an id (its row gives it one)."""
    return PciDevice(uuid=uuid, compute_node_id=compute_node_id, address=discovered['address'],
                     status=AVAILABLE, instance_uuid=None, request_id=None, **values(discovered, tags))


def describe(device: PciDevice) -> dict[str, Any]:
    """A stored device in the form of a discovered one, for matching it against the specs."""
    capabilities = device.extra_info.get('capabilities')
    return {'address': device.address, 'vendor_id': device.vendor_id, 'product_id': device.product_id,
            'dev_type': device.dev_type, 'numa_node': device.numa_node, 'parent_addr': device.parent_addr,
            'capabilities': json.loads(capabilities) if capabilities else {}}


def is_child(device: PciDevice) -> bool:
    """Whether the device is a virtual function (or vDPA) of a physical one."""
    return device.dev_type in CHILD_TYPES


def pool_address(device: PciDevice) -> str:
    """The address that names the device's pool and provider: its physical function's, or its own."""
    return device.parent_addr if is_child(device) and device.parent_addr else device.address
