"""One PCI device as discovered and as a stored object, and the words for its type and status."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal, Required, TypedDict

from kilonova import errors
from kilonova.objects import PciDevice

STANDARD = 'type-PCI'
PF = 'type-PF'
VF = 'type-VF'
VDPA = 'vdpa'
# A mediated device (vGPU): a part of a PCI function, by its UUID.
MDEV = 'mdev'
# Types that live below a physical function and share its fate.
CHILD_TYPES = frozenset((VF, VDPA))

# The types by the words of reports and filters.
KINDS = {'pci': STANDARD, 'pf': PF, 'vf': VF, 'vdpa': VDPA, 'mdev': MDEV}
KIND_OF = {dev_type: kind for kind, dev_type in KINDS.items()}

AVAILABLE = 'available'
CLAIMED = 'claimed'
ALLOCATED = 'allocated'
REMOVED = 'removed'
UNCLAIMABLE = 'unclaimable'
UNAVAILABLE = 'unavailable'
OWNED = frozenset((CLAIMED, ALLOCATED))
STATUSES = (AVAILABLE, CLAIMED, ALLOCATED, REMOVED, UNCLAIMABLE, UNAVAILABLE)

# In ``extra_info`` of a device that is in a group: the group's name, and the address of its head (see ``groups``).
GROUP, GROUP_HEAD = 'group', 'group_head'

# Why a device is not given out: keys of its ``extra_info``, whose values are texts for operators.
DISABLED = 'disabled'
# The host has it no more, or its configuration names it no more, while a server holds it.
MISSING = 'missing'
# [devices]health_check failed; until an operator enables it.
UNHEALTHY = 'unhealthy'
# A server had it, and [devices]clean_command didn't end well since.
DIRTY = 'dirty'
# A guest could not be started with it; until a look finds it well.
FAILED = 'failed'
BARS = (DISABLED, UNHEALTHY, MISSING, DIRTY, FAILED)
# In ``extra_info`` of a device that failed: how often, and until when it is not looked at (seconds since 1970).
FAILED_TIMES, FAILED_UNTIL = 'failed_times', 'failed_until'
FAILED_KEYS = (FAILED, FAILED_TIMES, FAILED_UNTIL)
# In ``extra_info`` of a barred device: the ``reserved`` of its provider in Placement without the barred ones.
RESERVED_BEFORE = 'reserved_before'
# In ``extra_info`` and in the keys of a network device's pool: the resource providers of what its physical function
# guarantees to ports; comma text.
PORT_PROVIDERS = 'port_rp_uuids'
# What a device keeps of its ``extra_info`` whatever is found of it.
KEPT = ('rp_uuid', PORT_PROVIDERS, RESERVED_BEFORE, DISABLED, UNHEALTHY, DIRTY, *FAILED_KEYS)
# Characters of such a text.
MOST_REASON = 255

_EXTRA_TAGS = ('managed', 'live_migratable', 'trusted')
# What is found of a virtual function, 'true': it has a representor, which is to be a port of a switch.
SWITCHDEV: Literal['switchdev'] = 'switchdev'
# What is found of a virtual function of an NVIDIA card: the number of its vGPU type, 0: it has none yet.
VGPU_TYPE: Literal['vgpu_type'] = 'vgpu_type'
_EXTRA_KEYS: tuple[Literal['parent_ifname', 'mac_address', 'switchdev', 'vgpu_type'], ...] = (
    'parent_ifname', 'mac_address', SWITCHDEV, VGPU_TYPE)

# What requests may ask of a device, by name.
PoolKeys = dict[str, str | int | None]


class MdevType(TypedDict):
    """A type of mediated devices that a function supports: how many more it has room for, and the interface they have
    (vfio-pci: guests can be given them)."""

    available: int
    api: str


class Found(TypedDict, total=False):
    """A device as the driver finds it. ``mdev_types``: of a PCI function; ``mdev_type``: of a mediated device, whose
    ``address`` is its UUID and ``parent_addr`` the function."""

    address: Required[str]
    vendor_id: Required[str]
    product_id: Required[str]
    dev_type: Required[str]
    dev_id: str
    label: str
    numa_node: int | None
    parent_addr: str | None
    parent_ifname: str | None
    mac_address: str | None
    switchdev: str
    vgpu_type: int
    capabilities: dict[str, object]
    mdev_types: dict[str, MdevType]
    mdev_type: str
    iommu_group: int


class Columns(TypedDict):
    """What discovery says of a device, as its row has it; all values of ``extra_info`` are strings."""

    vendor_id: str
    product_id: str
    dev_type: str
    dev_id: str | None
    label: str
    numa_node: int | None
    parent_addr: str | None
    extra_info: dict[str, str]


def columns(found: Found, tags: Mapping[str, str | None]) -> Columns:
    """A discovered device as its row is to say it; ``tags`` are those of its spec."""
    extra: dict[str, str] = {name: str(found[name]) for name in _EXTRA_KEYS if found.get(name)}
    if found.get('capabilities'):
        extra['capabilities'] = json.dumps(found['capabilities'], sort_keys=True)
    extra.update({name: str(tags[name]) for name in _EXTRA_TAGS if tags.get(name) is not None})
    vendor_id, product_id = found['vendor_id'].lower(), found['product_id'].lower()
    return {'vendor_id': vendor_id, 'product_id': product_id, 'dev_type': found['dev_type'],
            'dev_id': found.get('dev_id'), 'label': found.get('label') or f'label_{vendor_id}_{product_id}',
            'numa_node': found.get('numa_node'), 'parent_addr': found.get('parent_addr'), 'extra_info': extra}


def describe(device: PciDevice) -> Found:
    """A stored device in the form of a discovered one, for matching it against the specs."""
    capabilities = device.extra_info.get('capabilities')
    return {'address': device.address, 'vendor_id': device.vendor_id, 'product_id': device.product_id,
            'dev_type': device.dev_type, 'numa_node': device.numa_node, 'parent_addr': device.parent_addr,
            'capabilities': json.loads(capabilities) if capabilities else {}}


def bars(device: PciDevice) -> dict[str, str]:
    """Why the device is not given out (any more), {one of ``BARS``: text}; who holds it keeps it."""
    return {name: device.extra_info[name] for name in BARS if name in device.extra_info}


def is_barred(device: PciDevice) -> bool:
    """Whether there is a reason not to give out a device that is there."""
    return not bars(device).keys() <= {MISSING}


def checked_reason(text: str) -> str:
    """Why an operator disables a device; errors.Invalid."""
    if not text.strip() or len(text) > MOST_REASON or not text.isprintable():
        raise errors.Invalid(f'The reason {text[:MOST_REASON]!r} is not accepted: one line of 1 to {MOST_REASON} '
                             'printable characters is.')
    return text.strip()


def is_child(device: PciDevice) -> bool:
    """Whether the device is a virtual function (or vDPA) of a physical one."""
    return device.dev_type in CHILD_TYPES


def unit(device: PciDevice) -> str:
    """The address that stands for what is counted: the head's of the device's group, or its own."""
    found: str = device.extra_info.get(GROUP_HEAD, device.address)
    return found


def units(devices: Iterable[PciDevice]) -> int:
    """How many devices these are for requests and for Placement: a group is one."""
    return len({unit(device) for device in devices})


def pool_address(device: PciDevice) -> str:
    """The address that names the device's pool and provider: its group's head's, its physical function's, or its own.
    """
    if GROUP_HEAD in device.extra_info:
        return unit(device)
    found: str = device.parent_addr if is_child(device) and device.parent_addr else device.address
    return found


def pool_keys(device: PciDevice, tags: Mapping[str, str | None]) -> PoolKeys | None:
    """What tells a device from others: all tags of its spec, type, NUMA node, and the address of its pool. Of a group
    the head has them, without the ids of a device: requests for single devices don't get it. None: it isn't counted."""
    if GROUP in tags or GROUP_HEAD in device.extra_info:
        if tags.get(GROUP) != device.extra_info.get(GROUP) or unit(device) != device.address:
            return None
        return {'vendor_id': '', 'product_id': '', 'numa_node': device.numa_node, 'dev_type': device.dev_type, **tags,
                'address': device.address}
    keys: PoolKeys = {'vendor_id': device.vendor_id, 'product_id': device.product_id, 'numa_node': device.numa_node,
                      'dev_type': device.dev_type, **tags, 'address': pool_address(device)}
    keys.update({name: device.extra_info[name] for name in ('parent_ifname', SWITCHDEV, VGPU_TYPE, PORT_PROVIDERS)
                 if name in device.extra_info})
    if device.dev_type != STANDARD:
        keys.setdefault('remote_managed', 'false')
    return keys
