"""Layers of disks: a move between two hosts that share storage copies no disk, but adds a new file to each disk.

A layer is a disk file as it was before a move. After the move, the guest writes to a new file, an overlay, which reads
unchanged data from the layer.

    lay(kept, coming, move)        # fill <uuid>_incoming: new overlays, and links to the files in <uuid>_resize
    adopt(kept, current)           # when the move is confirmed: replace the links by the files themselves
    join(directory)                # before disks are copied to other storage: merge each disk with its layers

A layer has the name ``layer.<move>.<name of the disk>``. An overlay names its layer without a directory, so the name
remains valid when the directory is renamed. A link is replaced by a rename, which a guest that has the file open does
not notice.
"""

from __future__ import annotations

import os

from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.instance import ASKED, CONFIG, CONSOLE, INFO, RBD, InstanceDirectory

_PREFIX = 'layer.'
# If a disk has this many layers, they are merged into one file at the next move.
MOST = 8
# Names of small files that a move on shared storage copies. To other unchanged files it makes symbolic links.
_COPIED = frozenset({ASKED, CONSOLE})


def origin(name: str) -> str:
    """Return the disk's name in the name of a layer: 'disk' for 'layer.<move>.disk'. Return other names unchanged."""
    return name.split('.', 2)[2] if name.startswith(_PREFIX) else name


def is_layer(name: str) -> bool:
    """Return True if the file name has the form of a layer's name: layer.<move>.<name of the disk>."""
    return name.startswith(_PREFIX)


def lay(kept: InstanceDirectory, coming: InstanceDirectory, move: str, left_behind: frozenset[str]) -> None:
    """Fill the empty directory ``coming`` with overlays of the disks in ``kept`` and links to the files in ``kept``.

    The guest will write to the overlays in ``coming``, so the files in ``kept`` stay as they were before the move.
    Files with a name in ``left_behind`` are left out.
    """
    if sum(map(is_layer, kept.formats())) >= MOST:
        join(kept)
    formats, overlays = kept.formats(), {}
    for name in kept.pooled():
        coming.record(name, RBD)
    # A config drive that is a CD never changes, so it gets a link. As a disk it is writable, and gets an overlay.
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
        disk.create_layer(coming.file(name), disk.BaseFile(layer, formats[name], size), size)
        coming.record(name, 'qcow2')


def adopt(kept: InstanceDirectory, current: InstanceDirectory) -> None:
    """Replace the links in ``current`` by the files that they name, which are moved from ``kept`` to ``current``.

    Repeated calls are safe. Do nothing if ``current`` has no links.
    """
    for name in os.listdir(current.path):
        path = current.file(name)
        if os.path.islink(path):
            os.rename(kept.file(os.path.basename(os.readlink(path))), path)


def join(directory: InstanceDirectory) -> None:
    """Merge each disk in a directory with its layers into one file.

    The guest must be off. The content that the guest sees does not change.
    """
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
