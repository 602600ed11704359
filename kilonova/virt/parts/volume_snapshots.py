"""Protocol for snapshots of volumes that are files of a share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta


@dataclass(frozen=True)
class Merge:
    """Merge of two files of a volume into one, after a snapshot was deleted.

    ``file`` is merged into ``into``, its backing file. If ``into`` is None, the file that the guest writes to gets the
    data of its backing files up to ``file``, which becomes its backing file, or that of all if ``file`` is None. Both
    are names of files of the volume's share.
    """

    file: str | None
    into: str | None

    def is_done(self, names: Sequence[str]) -> bool:
        """Return whether the merge is complete.

        ``names`` are the file that the guest writes to, its backing file, the backing file of this one, and so on.
        """
        if self.into is None:
            return names[1:2] == ([] if self.file is None else [self.file])
        return self.into in names and self.file not in names

    def why_not(self, names: Sequence[str]) -> str:
        """Return the reason why files of these names cannot be merged in this way, or '' if they can."""
        for name in (self.file, self.into):
            if name is not None and name not in names:
                return f'the guest does not use the file {name}, only {", ".join(names)}'
        if self.into is not None and (
            self.file is None or names[0] == self.file or names[names.index(self.file) :][1:2] != [self.into]
        ):
            return f'{self.file} cannot be merged into {self.into}: the guest uses {", ".join(names)}'
        if self.into is None and self.file == names[0]:
            return f'{self.file} is the file that the guest writes to'
        return ''


class VolumeSnapshots(Protocol):
    """Snapshots of volumes that are files of a share.

    After a snapshot, the guest writes to a new file, which the volume service created and whose backing file is the
    previous one. When a snapshot is deleted, two of these files are merged.
    """

    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """Let the guest write to the file of ``new``, now and at each start; do nothing if it does so already.

        If the guest has an agent, its buffered data is written before. ``withdraw`` is the undo. Raises
        VolumeUnsupported, or GuestFailed if the guest still writes to the file of ``old``.
        """

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Return whether the guest writes to the file of ``new``, or will do so at its next start."""

    def withdraw(
        self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume, check: Check
    ) -> None:
        """Undo ``take``, so that the file of ``old`` contains all data that the guest has written since.

        Raises GuestFailed or the exception of ``check()``. Then the guest writes to the file of ``new``, and the call
        may be repeated.
        """

    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Merge files of the volume, while the guest runs or is off. It continues to write to the same file as before.

        A merge under way is continued, and a complete one is no error. ``end_merge`` is the undo of an incomplete
        merge. Raises GuestFailed, VolumeUnsupported or the exception of ``check()``; the merge may still be running
        then.
        """

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """End a running merge, and return whether it is known to be complete.

        Return False if the guest does not exist, does not have the volume, or is off and its files cannot be read.
        Raises GuestFailed if a merge is still running.
        """
