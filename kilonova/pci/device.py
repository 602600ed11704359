"""Types and statuses of PCI devices, the form of discovered devices, and functions for one device's row."""

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
# The type of a mediated device (vGPU), which is a part of a PCI function and has a UUID as its address.
MDEV = 'mdev'
# Device types of virtual functions. They can't be used while a server holds their physical function.
CHILD_TYPES = frozenset((VF, VDPA))

# A dict from the name of a kind of device, which the API's reports and filters use, to the device type.
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

# GROUP and GROUP_HEAD are keys in ``extra_info`` of a device that belongs to a group.
# The value of GROUP is the group's name. The value of GROUP_HEAD is the address of the group's first device.
GROUP, GROUP_HEAD = 'group', 'group_head'

# Names of reasons why a device is not offered to servers. A device's ``extra_info`` has a text for each of its reasons.
# Reason why a device is not offered: an operator disabled it.
DISABLED = 'disabled'
# Reason why a device is not offered: the host or [pci]device_spec no longer has it, but a server still holds it.
MISSING = 'missing'
# Reason why a device is not offered: [devices]health_check failed for it. An operator must enable it again.
UNHEALTHY = 'unhealthy'
# Reason why a device is not offered: a server released it, and [devices]clean_command has not yet succeeded for it.
DIRTY = 'dirty'
# Reason why a device is not offered: a guest could not be started with it. A later successful check offers it again.
FAILED = 'failed'
BARS = (DISABLED, UNHEALTHY, MISSING, DIRTY, FAILED)
# FAILED_TIMES and FAILED_UNTIL are keys in ``extra_info`` of a device with which a guest could not be started.
# FAILED_TIMES is the number of failed starts and failed checks. FAILED_UNTIL is the Unix time of the next check.
FAILED_TIMES, FAILED_UNTIL = 'failed_times', 'failed_until'
FAILED_KEYS = (FAILED, FAILED_TIMES, FAILED_UNTIL)
# Kilonova adds the number of a provider's unavailable devices to ``reserved`` of the provider in Placement.
# RESERVED_BEFORE is a key in a device's ``extra_info``: the provider's ``reserved`` before Kilonova increased it.
# When all devices of a provider are available again, Kilonova sets the provider's ``reserved`` to RESERVED_BEFORE.
RESERVED_BEFORE = 'reserved_before'
# PORT_PROVIDERS is a key in ``extra_info`` of a network device, and in the properties of the device's pool.
# The value of PORT_PROVIDERS is comma-separated uuids of Placement providers of QoS minimum bandwidth and packet rate.
# Neutron's agent reports these QoS providers for the network interface of the device's physical function.
PORT_PROVIDERS = 'port_rp_uuids'
# Keys of ``extra_info`` that Kilonova itself sets. Each new discovery of the device replaces all other keys.
KEPT = ('rp_uuid', PORT_PROVIDERS, RESERVED_BEFORE, DISABLED, UNHEALTHY, DIRTY, *FAILED_KEYS)
# Maximum number of characters of a reason why a device is not offered.
MOST_REASON = 255

_EXTRA_TAGS = ('managed', 'live_migratable', 'trusted')
# Property of a discovered virtual function: 'true' if its card is in switchdev mode, otherwise the property is absent.
# A function in switchdev mode has a representor: the host's network interface for its port on the card's switch.
SWITCHDEV: Literal['switchdev'] = 'switchdev'
# Property of a discovered virtual function of an NVIDIA card: the number of its vGPU type, or 0 if it has none yet.
VGPU_TYPE: Literal['vgpu_type'] = 'vgpu_type'
_EXTRA_KEYS: tuple[Literal['parent_ifname', 'mac_address', 'switchdev', 'vgpu_type'], ...] = (
    'parent_ifname',
    'mac_address',
    SWITCHDEV,
    VGPU_TYPE,
)

# The properties that all devices of one pool have in common, as {name: value}, for example {'vendor_id': '10de', …}.
# The spec of a PCI request is compared with these properties to find the pools that match the request.
PoolKeys = dict[str, str | int | None]


class SupportedMdevType(TypedDict):
    """A type of mediated devices that a PCI function supports.

    ``available`` is the number of devices of the type that can still be created. ``api`` is the interface of the
    devices; guests can only use vfio-pci.
    """

    available: int
    api: str


class DiscoveredDevice(TypedDict, total=False):
    """A device as the driver discovers it on the host.

    Only PCI functions have ``mdev_types``: the types of mediated devices that the function supports, by name. Only
    mediated devices have ``mdev_type``, the name of their type. The ``address`` of a mediated device is a UUID, and its
    ``parent_addr`` is the address of its PCI function.
    """

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
    mdev_types: dict[str, SupportedMdevType]
    mdev_type: str
    iommu_group: int


class DeviceColumns(TypedDict):
    """The columns of a device's row in pci_devices that discovery sets. All values of ``extra_info`` are strings."""

    vendor_id: str
    product_id: str
    dev_type: str
    dev_id: str | None
    label: str
    numa_node: int | None
    parent_addr: str | None
    extra_info: dict[str, str]


def columns(found: DiscoveredDevice, tags: Mapping[str, str | None]) -> DeviceColumns:
    """Return the columns for the row of a discovered device. ``tags`` are those of the device_spec that matches it."""
    extra: dict[str, str] = {name: str(found[name]) for name in _EXTRA_KEYS if found.get(name)}
    if found.get('capabilities'):
        extra['capabilities'] = json.dumps(found['capabilities'], sort_keys=True)
    extra.update({name: str(tags[name]) for name in _EXTRA_TAGS if tags.get(name) is not None})
    vendor_id, product_id = found['vendor_id'].lower(), found['product_id'].lower()
    return {
        'vendor_id': vendor_id,
        'product_id': product_id,
        'dev_type': found['dev_type'],
        'dev_id': found.get('dev_id'),
        'label': found.get('label') or f'label_{vendor_id}_{product_id}',
        'numa_node': found.get('numa_node'),
        'parent_addr': found.get('parent_addr'),
        'extra_info': extra,
    }


def describe(device: PciDevice) -> DiscoveredDevice:
    """Return a stored device in the form of a discovered one, so that it can be matched with device_specs."""
    capabilities = device.extra_info.get('capabilities')
    return {
        'address': device.address,
        'vendor_id': device.vendor_id,
        'product_id': device.product_id,
        'dev_type': device.dev_type,
        'numa_node': device.numa_node,
        'parent_addr': device.parent_addr,
        'capabilities': json.loads(capabilities) if capabilities else {},
    }


def unavailable_reasons(device: PciDevice) -> dict[str, str]:
    """Return the reasons why the device is not offered, as a dict from the reason's key (in ``BARS``) to its text.

    A server that already holds the device keeps it.
    """
    return {name: device.extra_info[name] for name in BARS if name in device.extra_info}


def is_unavailable(device: PciDevice) -> bool:
    """Return True if the device is disabled, unhealthy, dirty or failed (a reason in ``BARS`` except MISSING).

    A device that is only MISSING does not count: its host no longer has it, so it can't be offered anyway.
    """
    return not unavailable_reasons(device).keys() <= {MISSING}


def checked_reason(text: str) -> str:
    """Return an operator's reason for disabling a device, without spaces around it.

    Raises Invalid if the text is empty, too long, or not one printable line.
    """
    if not text.strip() or len(text) > MOST_REASON or not text.isprintable():
        raise errors.Invalid(
            f'Invalid reason {text[:MOST_REASON]!r}: it must be one line of 1 to {MOST_REASON} printable characters.'
        )
    return text.strip()


def is_child(device: PciDevice) -> bool:
    """Return whether the device is a virtual function (or vDPA) of a physical function."""
    return device.dev_type in CHILD_TYPES


def unit(device: PciDevice) -> str:
    """Return the address of the first device (the head) of the device's group, or the device's own address.

    All devices of a group have the same result, because a group counts as one device.
    """
    found: str = device.extra_info.get(GROUP_HEAD, device.address)
    return found


def units(devices: Iterable[PciDevice]) -> int:
    """Return the number of devices, as requests and Placement count them: a group of devices counts as one."""
    return len({unit(device) for device in devices})


def pool_address(device: PciDevice) -> str:
    """Return the address that identifies the device's pool and its resource provider.

    For a device in a group it is the address of the group's first device. For a virtual function it is the address of
    its physical function. For any other device it is the device's own address.
    """
    if GROUP_HEAD in device.extra_info:
        return unit(device)
    found: str = device.parent_addr if is_child(device) and device.parent_addr else device.address
    return found


def pool_keys(device: PciDevice, tags: Mapping[str, str | None]) -> PoolKeys | None:
    """Return the properties of the device's pool, or None if the device is not counted in any pool.

    The properties are the tags of the device's spec, and its vendor id, product id, type, NUMA node and pool address.
    A group counts as one device: its first device has a pool with empty vendor and product id, so that requests for
    single devices don't match. The other devices of the group give None.
    """
    if GROUP in tags or GROUP_HEAD in device.extra_info:
        if tags.get(GROUP) != device.extra_info.get(GROUP) or unit(device) != device.address:
            return None
        return {
            'vendor_id': '',
            'product_id': '',
            'numa_node': device.numa_node,
            'dev_type': device.dev_type,
            **tags,
            'address': device.address,
        }
    keys: PoolKeys = {
        'vendor_id': device.vendor_id,
        'product_id': device.product_id,
        'numa_node': device.numa_node,
        'dev_type': device.dev_type,
        **tags,
        'address': pool_address(device),
    }
    keys.update(
        {
            name: device.extra_info[name]
            for name in ('parent_ifname', SWITCHDEV, VGPU_TYPE, PORT_PROVIDERS)
            if name in device.extra_info
        }
    )
    if device.dev_type != STANDARD:
        keys.setdefault('remote_managed', 'false')
    return keys
