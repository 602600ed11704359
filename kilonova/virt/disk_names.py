"""Names by which guests know their disks: 'vda', 'sdb', 'hdc'.

    free('virtio', {'vda'})          # 'vdb'
    bus_of(volume, image_meta)       # 'virtio'
"""
from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from typing import Any

from kilonova import errors
from kilonova.objects.volume import AttachedVolume

PREFIX = {'virtio': 'vd', 'scsi': 'sd', 'sata': 'sd', 'usb': 'sd', 'ide': 'hd', 'fdc': 'fd'}
# How many disks a guest may have by such names.
_MOST = {'hd': 4, 'fd': 2}
_LETTERS = string.ascii_lowercase


class TooManyDiskDevices(errors.Forbidden):
    """No name is left for a disk on that bus."""

    msg_fmt = 'The maximum allowed number of disk devices (%(maximum)d) of bus %(bus)s for a single server is exceeded'


def bus_of(volume: AttachedVolume, image_meta: Mapping[str, Any]) -> str:
    """The bus on which a guest of that image has the volume."""
    return str(volume.bus or (image_meta.get('properties') or {}).get('hw_disk_bus') or 'virtio')


def free(bus: str, taken: Collection[str]) -> str:
    """The first name of a disk on ``bus`` that isn't taken; TooManyDiskDevices."""
    prefix = PREFIX[bus]
    most = _MOST.get(prefix, len(_LETTERS))
    for letter in _LETTERS[:most]:
        if prefix + letter not in taken:
            return prefix + letter
    raise TooManyDiskDevices(maximum=most, bus=bus)
