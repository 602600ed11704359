"""Snapshots of volumes that are files of a share."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta


@dataclass(frozen=True)
class Merge:
    """Two files behind a volume become one. ``file`` becomes part of ``into``, from which it reads; where that is None,
    the file to which the guest writes gets what it reads from others, up to ``file``, from which it reads then (None:
    it reads from none). Names of files of the volume's share."""

    file: str | None
    into: str | None

    def is_done(self, names: Sequence[str]) -> bool:
        """``names``: the file to which the guest writes, the one from which that reads, and so on."""
        if self.into is None:
            return names[1:2] == ([] if self.file is None else [self.file])
        return self.into in names and self.file not in names

    def why_not(self, names: Sequence[str]) -> str:
        """Why files of these names can't be merged so. '': they can."""
        for name in (self.file, self.into):
            if name is not None and name not in names:
                return f'it does not read from {name}, but from {", ".join(names)}'
        if self.into is not None and (self.file is None or names[0] == self.file
                                      or names[names.index(self.file):][1:2] != [self.into]):
            return f'{self.file} can not become part of {self.into}: it has {", ".join(names)}'
        if self.into is None and self.file == names[0]:
            return f'{self.file} is what it writes to'
        return ''


class VolumeSnapshots(Protocol):
    """Snapshots of volumes that are files of a share, by which a guest writes to another file from then on: the volume
    service made it, and it reads from the one before. Two of these files become one when a snapshot is deleted."""

    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """The guest writes to the file of ``new``, now and whenever it is started; nothing where it does so already.
        What it holds back is written before, if it has an agent. Undo: ``withdraw``.

        VolumeUnsupported; GuestFailed: it writes to the file of ``old``.
        """

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Whether the guest writes to that file, or will when it is started."""

    def withdraw(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume,
                 check: Check) -> None:
        """What ``take`` did is undone, and what the guest has written since is in the file of ``old``. GuestFailed, and
        what ``check()`` raises: it writes to the file of ``new``, and that may be tried again."""

    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Files behind the volume are one when this returns, while the guest runs or is off; it writes to the same one
        as before. One that is under way goes on; fine if it has been done. Undo: ``end_merge``, of what isn't done.

        GuestFailed, VolumeUnsupported, and what ``check()`` raises: it may be going on.
        """

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """No merge is going on when this returns; whether it is known to have been done. It isn't of a guest that is
        gone, or hasn't got the volume, or is off where the files can't be looked at. GuestFailed: one is going on."""
