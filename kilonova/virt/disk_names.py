"""Names by which guests know their disks: 'vda', 'sdb', 'hdc'.

    own, volumes = assign(['virtio'], [('virtio', '/dev/vdc'), ('virtio', None)])
    own, volumes                     # ['vda'], ['vdc', 'vdb']
"""
from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Sequence

from kilonova import errors

PREFIX = {'virtio': 'vd', 'scsi': 'sd', 'sata': 'sd', 'usb': 'sd', 'ide': 'hd', 'fdc': 'fd'}
# How many disks with such names a guest may have, once it has volumes.
_MOST = {'vd': 26, 'sd': 26, 'hd': 4, 'fd': 2}


class TooManyDiskDevices(errors.Forbidden):
    """No name is left for a volume on that bus."""

    msg_fmt = 'The maximum allowed number of disk devices (%(maximum)d) of bus %(bus)s for a single server is exceeded'


def root(bus: str | None) -> str:
    """Return the path by which a guest knows the first disk on this bus, which is virtio if there is none such.

    >>> root('scsi')
    '/dev/sda'
    """
    return f'/dev/{_free(bus if bus in PREFIX else "virtio", ())}'


def assign(own: Iterable[str], volumes: Sequence[tuple[str, str | None]],
           others: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Names of a guest's own disks, by their buses, and of its volumes, by bus and device ('/dev/vdb', None: it has
    none yet). ``others`` are taken.

    A volume keeps its name where its bus has such names; all others get those that are free, the guest's own disks
    first. TooManyDiskDevices.
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
    """The first that isn't taken: 'vda' … 'vdz', 'vdaa' …"""
    return next(name for number in itertools.count() if (name := PREFIX[bus] + _letters(number)) not in taken)


def _suits(name: str, bus: str) -> bool:
    """Whether a volume on ``bus`` may have the name."""
    return name in {PREFIX[bus] + letter for letter in string.ascii_lowercase[:_MOST[PREFIX[bus]]]}


def _letters(number: int) -> str:
    """0 → 'a', 25 → 'z', 26 → 'aa'."""
    head, last = divmod(number, 26)
    return (_letters(head - 1) if head else '') + string.ascii_lowercase[last]
