"""Device names of a guest's disks: 'vda', 'sdb', 'hdc'.

    own, volumes = assign(['virtio'], [('virtio', '/dev/vdc'), ('virtio', None)])
    own, volumes                     # ['vda'], ['vdc', 'vdb']

Drivers assign these names to a guest's own disks and its volumes.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Sequence

from kilonova import errors

PREFIX = {'virtio': 'vd', 'scsi': 'sd', 'sata': 'sd', 'usb': 'sd', 'ide': 'hd', 'fdc': 'fd'}
# Maximum number of disk names with each prefix. Only volumes are checked against it, not a guest's local disks.
_MOST = {'vd': 26, 'sd': 26, 'hd': 4, 'fd': 2}


class TooManyDiskDevices(errors.Forbidden):
    """All device names of a bus are used, so a volume cannot be attached."""

    msg_fmt = 'The maximum allowed number of disk devices (%(maximum)d) of bus %(bus)s for a single server is exceeded'


def root(bus: str | None) -> str:
    """Return the device path of the first disk on this bus. An unknown bus counts as virtio.

    >>> root('scsi') '/dev/sda'
    """
    return f'/dev/{_free(bus if bus in PREFIX else "virtio", ())}'


def assign(
    own: Iterable[str], volumes: Sequence[tuple[str, str | None]], others: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return two lists of device names, such as ['vda', 'vdc']: of a guest's local disks, and of its volumes.

    A volume keeps the name in its device path if the name fits the volume's bus and no earlier volume and no disk in
    ``others`` has it. Then local disks, and at last the other volumes, get the first free names of their buses. Raises
    TooManyDiskDevices if a bus has no name left for a volume.

    Args:
        own: Bus of each local disk, for example the root disk and the swap disk.
        volumes: (bus, device path) of each volume, for example ('virtio', '/dev/vdb'). The path may be None.
        others: Names of disks that already exist in the guest.
    """
    taken = set(others)
    kept: dict[int, str] = {}
    for number, (bus, device) in enumerate(volumes):
        name = (device or '').removeprefix('/dev/')
        if _suits(name, bus) and name not in taken:
            kept[number] = name
            taken.add(name)
    found = []
    for bus in own:
        found.append(_free(bus, taken))
        taken.add(found[-1])
    names = []
    for number, (bus, _device) in enumerate(volumes):
        names.append(kept.get(number) or _free(bus, taken))
        taken.add(names[-1])
        if not _suits(names[-1], bus):
            raise TooManyDiskDevices(maximum=_MOST[PREFIX[bus]], bus=bus)
    return found, names


def _free(bus: str, taken: Collection[str]) -> str:
    """Return the first name on a bus that is not in ``taken``, in the order 'vda' … 'vdz', 'vdaa' and so on."""
    return next(name for number in itertools.count() if (name := PREFIX[bus] + _letters(number)) not in taken)


def _suits(name: str, bus: str) -> bool:
    """Return whether a volume on ``bus`` may have the name: the name must begin with the prefix of the bus."""
    return name in {PREFIX[bus] + letter for letter in string.ascii_lowercase[: _MOST[PREFIX[bus]]]}


def _letters(number: int) -> str:
    """Return the letters of the disk with this number: 'a' for 0, 'z' for 25, 'aa' for 26."""
    head, last = divmod(number, 26)
    return (_letters(head - 1) if head else '') + string.ascii_lowercase[last]
