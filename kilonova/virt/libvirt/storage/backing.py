"""The backing chain of a volume that is a file, for a guest that is off: read the chain, and merge files of it.

    links = look('/mnt/…/volume-1.s2', 'qcow2')
    # [Link('/mnt/…/volume-1.s2', 'qcow2'), Link('/mnt/…/volume-1.s1', 'qcow2'), Link('/mnt/…/volume-1', 'raw')]
    merge(links, Merge('volume-1.s1', 'volume-1'), check)   # writes the data of volume-1.s1 into volume-1

The guest writes to the first file of the chain. What a file does not contain is read from the next file of the chain.
A merge does not change the data that the guest sees. A merge that was interrupted is completed when it is called again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk
from kilonova.virt.parts.disks import Check
from kilonova.virt.parts.volume_snapshots import Merge


@dataclass(frozen=True)
class Link:
    """One file of a backing chain: its path and its format."""

    path: str
    format: str

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)


def look(path: str, format_: str) -> list[Link]:
    """Return the backing chain of a file, beginning with the file itself, as the headers describe it.

    A file that isn't qcow2 has no further files in its chain. Raises CommandFailed if qemu-img fails.
    """
    found = json.loads(command.run('qemu-img', 'info', '--output=json', '--backing-chain', '-f', format_, path))
    return [Link(one['filename'], one['format']) for one in found]


def merge(links: list[Link], wanted: Merge, check: Check) -> None:
    """Merge files of a backing chain into one file of the chain.

    ``Merge(file, into)`` commits ``file`` into its backing file ``into``, and ``file`` leaves the chain.
    ``Merge(file, None)`` copies the data of all files above ``file`` into the first file, which gets ``file`` as its
    backing file. ``Merge(None, None)`` copies the data of all files into the first file, which then has no backing
    file. ``check()`` is called during the merge. Raises CommandFailed if qemu-img fails, and whatever ``check()``
    raises.
    """
    by_name = {link.name: number for number, link in enumerate(links)}
    if wanted.into is None:
        base = ('-b', '') if wanted.file is None else ('-b', wanted.file, '-F', links[by_name[wanted.file]].format)
        command.watched(check, 'qemu-img', 'rebase', '-q', '-f', links[0].format, *base, links[0].path)
        return
    into, above = links[by_name[wanted.into]], links[by_name[wanted.into] - 2]
    commit(links[by_name[wanted.into] - 1], check)
    command.run(*disk.rebase(above.path, into.name, into.format))


def commit(link: Link, check: Check) -> None:
    """Write the data of a file into its backing file, with ``qemu-img commit``.

    ``check()`` is called again and again until qemu-img has ended. Raises CommandFailed if qemu-img fails, and whatever
    ``check()`` raises.
    """
    command.watched(check, 'qemu-img', 'commit', '-q', '-d', '-f', link.format, link.path)
