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
# A dict from a bus's name prefix to its maximum number of disks, which is checked only when a volume gets a name.
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
    """Return the device names of a guest's own disks, and the names of its volumes.

    A volume keeps its name if the name has the prefix of the volume's bus and no other disk has the name. All other
    disks get free names, first the guest's own disks and then its volumes. Raises TooManyDiskDevices if no name is
    left for a volume.

    Args:
        own: Buses of the guest's own disks.
        volumes: (bus, device path or None) of each volume, for example ('virtio', '/dev/vdb').
        others: Names that other disks have already.
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
