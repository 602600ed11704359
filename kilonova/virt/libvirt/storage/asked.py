"""Disks as a server's user asked for them: what differs from what its flavor and image say.

    asked = read(block_devices, flavor)           # {'disk.eph0': Wish(size=2, file_system='ext4'), …}

It is kept beside the disks (``InstanceDirectory.asked``) and goes with them, so that whoever defines the guest later
needs no more than the directory.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kilonova.objects import BlockDeviceMapping, Flavor

DISK, SWAP, CONFIG, EPHEMERAL = 'disk', 'disk.swap', 'disk.config', 'disk.eph'
# They become an argument of mkfs.
FILE_SYSTEMS = frozenset(('ext2', 'ext3', 'ext4', 'xfs', 'vfat'))


@dataclass(frozen=True)
class Wish:
    """``size``: GiB of an ephemeral disk, MiB of swap. ``flavor_swap``: what the flavor had when swap was asked for: a
    flavor with another amount takes its place. None: nothing was said."""

    size: int | None = None
    file_system: str | None = None
    bus: str | None = None
    device: str | None = None
    tag: str | None = None
    flavor_swap: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Only what was said."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def read(block_devices: Iterable[BlockDeviceMapping], flavor: Flavor) -> dict[str, Wish]:
    """Name of the disk → wish, from block device mappings (source, destination, formats, sizes); volumes are left
    out."""
    found: dict[str, Wish] = {}
    ephemerals = 0
    for device in block_devices:
        if device.destination_type == 'volume':
            continue
        hardware = {'bus': device.disk_bus, 'device': device.device_type, 'tag': device.tag}
        if device.source_type == 'image':
            found[DISK] = Wish(**hardware)
        elif device.guest_format == 'swap':
            found[SWAP] = Wish(size=device.volume_size, flavor_swap=flavor.swap, **hardware)
        else:
            file_system = device.guest_format if device.guest_format in FILE_SYSTEMS else None
            found[f'{EPHEMERAL}{ephemerals}'] = Wish(size=device.volume_size, file_system=file_system, **hardware)
            ephemerals += 1
    return found


def ephemerals(asked: Mapping[str, Wish]) -> dict[str, Wish]:
    """Those of the ephemeral disks."""
    return {name: wish for name, wish in asked.items() if name.startswith(EPHEMERAL)}


def ephemeral_gb(asked: Mapping[str, Wish], flavor: Flavor) -> int:
    """GiB of all ephemeral disks: those asked for, else the flavor's."""
    found = ephemerals(asked)
    return sum(wish.size or 0 for wish in found.values()) if found else flavor.ephemeral_gb or 0


def swap_mb(asked: Mapping[str, Wish], flavor: Flavor) -> int:
    """MiB of swap: those asked for while the flavor has as much as then, else the flavor's."""
    wish = asked.get(SWAP)
    if wish is not None and wish.size and wish.flavor_swap == flavor.swap:
        return wish.size
    return flavor.swap or 0


def rank(name: str) -> tuple[int, int] | None:
    """Where a disk stands among a guest's: root, ephemeral ones by number, swap, config drive. None: it is no disk of
    a guest that runs as usual."""
    if name.startswith(EPHEMERAL):
        return 1, int(name.removeprefix(EPHEMERAL))
    return {DISK: (0, 0), SWAP: (2, 0), CONFIG: (3, 0)}.get(name)
