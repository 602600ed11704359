"""Files behind a volume of a guest that is off: the first, to which it writes, gets what it lacks from the next.

    look('/mnt/…/volume-1.s2', 'qcow2')     # [Link('/mnt/…/volume-1.s2', 'qcow2'), Link('/mnt/…/volume-1', 'raw')]
    merge(links, Merge('volume-1.s1', 'volume-1'), check)

What a program left half done here is done by the next try; what the guest sees is the same at any moment.
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
    path: str
    format: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def look(path: str, format_: str) -> list[Link]:
    """What the file reads from, as headers say: of one that isn't qcow2 nothing. CommandFailed."""
    found = json.loads(command.run('qemu-img', 'info', '--output=json', '--backing-chain', '-f', format_, path))
    return [Link(one['filename'], one['format']) for one in found]


def merge(links: list[Link], wanted: Merge, check: Check) -> None:
    """What can be merged so (``parts.volume_snapshots.Merge``). CommandFailed, and what ``check()`` raises."""
    by_name = {link.name: number for number, link in enumerate(links)}
    if wanted.into is None:
        base = ('-b', '') if wanted.file is None else (
            '-b', wanted.file, '-F', links[by_name[wanted.file]].format)
        command.watched(check, 'qemu-img', 'rebase', '-q', '-f', links[0].format, *base, links[0].path)
        return
    into, above = links[by_name[wanted.into]], links[by_name[wanted.into] - 2]
    commit(links[by_name[wanted.into] - 1], check)
    command.run(*disk.rebase(above.path, into.name, into.format))


def commit(link: Link, check: Check) -> None:
    """What is in the file is in the one from which it reads, too. CommandFailed, and what ``check()`` raises."""
    command.watched(check, 'qemu-img', 'commit', '-q', '-d', '-f', link.format, link.path)
