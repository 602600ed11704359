"""Disks that read from the files before them: a move on storage that both hosts use copies no disk.

    lay(kept, coming, move)        # in <uuid>_incoming: overlays, and links to what is in <uuid>_resize
    adopt(kept, current)           # confirm: the files themselves take the links' places
    join(directory)                # before a copy: each disk reads from nothing but its base again

A layer is called ``layer.<move>.<name of the disk>``. Overlays name theirs without a directory, so a renamed directory
still holds together; a link's place is taken by a rename, which a guest that has the file open doesn't notice.
"""
from __future__ import annotations

import os

from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.instance import ASKED, CONFIG, CONSOLE, INFO, RBD, InstanceDirectory

_PREFIX = 'layer.'
# A guest with more layers below a disk gets one disk of them when it moves next.
MOST = 8
# Small, or written by others than the guest.
_COPIED = frozenset({ASKED, CONSOLE})


def origin(name: str) -> str:
    """The disk whose layer the file is; any other file is its own."""
    return name.split('.', 2)[2] if name.startswith(_PREFIX) else name


def is_layer(name: str) -> bool:
    return name.startswith(_PREFIX)


def lay(kept: InstanceDirectory, coming: InstanceDirectory, move: str, left_behind: frozenset[str]) -> None:
    """Fill an empty directory: what the guest writes goes there, what it reads is in ``kept``, which stays as it is."""
    if sum(map(is_layer, kept.formats())) >= MOST:
        join(kept)
    formats, overlays = kept.formats(), {}
    for name in kept.pooled():
        coming.record(name, RBD)
    # A config drive that is a disk is written as any other.
    drive = kept.asked().get(CONFIG)
    unchanged = CONFIG if drive is None or drive.device == 'cdrom' else None
    for name in kept.carried(left_behind | {INFO}):
        if name in _COPIED:
            command.run('cp', '--', kept.file(name), coming.file(name))
            continue
        layer = name
        if name in formats and name != unchanged and not is_layer(name):
            layer = overlays[name] = f'{_PREFIX}{move}.{name}'
        os.symlink(os.path.join(os.pardir, os.path.basename(kept.path), name), coming.file(layer))
        if name in formats:
            coming.record(layer, formats[name])
    for name, layer in overlays.items():
        size = disk.look(kept.file(name), formats[name]).virtual_size
        disk.create_layer(coming.file(name), disk.Base(layer, formats[name], size), size)
        coming.record(name, 'qcow2')


def adopt(kept: InstanceDirectory, current: InstanceDirectory) -> None:
    """What ``current`` has links to moves there; fine to repeat, and where it has none."""
    for name in os.listdir(current.path):
        path = current.file(name)
        if os.path.islink(path):
            os.rename(kept.file(os.path.basename(os.readlink(path))), path)


def join(directory: InstanceDirectory) -> None:
    """One file a disk again. The guest must be off; what it sees doesn't change."""
    found = directory.disks()
    for name, top in found.items():
        if not is_layer(name) and _layer_below(top):
            bottom, below = top, []
            while layer := _layer_below(bottom):
                bottom = found[layer]
                below.append(directory.file(layer))
            if bottom.backing:
                disk.collapse(directory.file(name), disk.look_at_base(bottom.backing))
            else:
                disk.flatten(directory.file(name), below)
    for name in filter(is_layer, found):
        directory.forget(name)
        files.remove(directory.file(name))


def _layer_below(found: disk.DiskFile) -> str | None:
    name = os.path.basename(found.backing or '')
    return name if is_layer(name) else None
