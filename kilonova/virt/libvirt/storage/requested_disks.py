"""Disks that the user of a server requested, where they differ from the disks that the flavor and the image define.

    asked = read(block_devices, flavor)           # {'disk.eph0': RequestedDisk(size=2, file_system='ext4'), …}

The requested disks are stored in a file next to the server's disks (``InstanceDirectory.asked``) and deleted together
with the disks. Code that defines the guest later therefore needs only the server's directory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kilonova.objects import BlockDeviceMapping, Flavor

DISK, SWAP, CONFIG, EPHEMERAL = 'disk', 'disk.swap', 'disk.config', 'disk.eph'
# The file systems that a user may request. mkfs gets the name as an argument.
FILE_SYSTEMS = frozenset(('ext2', 'ext3', 'ext4', 'xfs', 'vfat'))


@dataclass(frozen=True)
class RequestedDisk:
    """The user's request for one disk. A field that is None was not requested.

    ``size`` is in GiB for an ephemeral disk and in MiB for swap. ``flavor_swap`` is the swap size of the flavor at the
    time of the request. After a resize to a flavor with another swap size, the requested swap size is ignored.
    """

    size: int | None = None
    file_system: str | None = None
    bus: str | None = None
    device: str | None = None
    tag: str | None = None
    flavor_swap: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the request from a dict that ``to_dict`` made."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the requested fields as a dict. Fields that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def read(block_devices: Iterable[BlockDeviceMapping], flavor: Flavor) -> dict[str, RequestedDisk]:
    """Return a dict from disk name to requested disk, read from block device mappings.

    Uses source type, destination type, guest format and size of each mapping. Volumes are left out.
    """
    found: dict[str, RequestedDisk] = {}
    ephemerals = 0
    for device in block_devices:
        if device.destination_type == 'volume':
            continue
        hardware = {'bus': device.disk_bus, 'device': device.device_type, 'tag': device.tag}
        if device.source_type == 'image':
            found[DISK] = RequestedDisk(**hardware)
        elif device.guest_format == 'swap':
            found[SWAP] = RequestedDisk(size=device.volume_size, flavor_swap=flavor.swap, **hardware)
        else:
            file_system = device.guest_format if device.guest_format in FILE_SYSTEMS else None
            found[f'{EPHEMERAL}{ephemerals}'] = RequestedDisk(
                size=device.volume_size, file_system=file_system, **hardware
            )
            ephemerals += 1
    return found


def ephemerals(asked: Mapping[str, RequestedDisk]) -> dict[str, RequestedDisk]:
    """Return only the ephemeral disks of ``asked``."""
    return {name: wish for name, wish in asked.items() if name.startswith(EPHEMERAL)}


def ephemeral_gb(asked: Mapping[str, RequestedDisk], flavor: Flavor) -> int:
    """Return the total size of all ephemeral disks in GiB: as requested, or the flavor's size if none was requested."""
    found = ephemerals(asked)
    return sum(wish.size or 0 for wish in found.values()) if found else flavor.ephemeral_gb or 0


def swap_mb(asked: Mapping[str, RequestedDisk], flavor: Flavor) -> int:
    """Return the swap size in MiB.

    This is the size that the user requested. The flavor's size is returned in two cases: the user requested no size, or
    the server was later resized to a flavor with another swap size.
    """
    wish = asked.get(SWAP)
    if wish is not None and wish.size and wish.flavor_swap == flavor.swap:
        return wish.size
    return flavor.swap or 0


def rank(name: str) -> tuple[int, int] | None:
    """Return the sort key of a disk among the disks of a guest.

    The order is: root disk, ephemeral disks by number, swap, config drive. Returns None if the name is not a disk of a
    guest that runs normally, for example the disk of a rescue system.
    """
    if name.startswith(EPHEMERAL):
        return 1, int(name.removeprefix(EPHEMERAL))
    return {DISK: (0, 0), SWAP: (2, 0), CONFIG: (3, 0)}.get(name)
