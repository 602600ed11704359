"""Protocol for snapshots of volumes that are files on a network share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta


@dataclass(frozen=True)
class Merge:
    """Merge of files in a volume's backing chain, after a snapshot was deleted. The names are files on its share.

    If ``into`` is given, it is a block commit: the data of ``file`` are written into its backing file ``into``. If
    ``into`` is None, it is a block pull: the active file, to which the guest writes, gets the data of its backing files
    down to ``file``, which then is its backing file. If ``file`` is None, too, the active file gets the data of all.
    """

    file: str | None
    into: str | None

    def is_done(self, names: Sequence[str]) -> bool:
        """Return whether the merge is complete.

        ``names`` are the files of the backing chain in order, beginning with the file that the guest writes to.
        """
        if self.into is None:
            return names[1:2] == ([] if self.file is None else [self.file])
        return self.into in names and self.file not in names

    def why_not(self, names: Sequence[str]) -> str:
        """Return the reason why this merge is impossible, or '' if it is possible.

        ``names`` are the files of the backing chain in order, beginning with the file that the guest writes to.
        """
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
    """Snapshots of volumes that are files on a network share.

    After a snapshot, the guest writes to a new file, which the volume service has created as an overlay of the previous
    file. When a snapshot is deleted, files of the volume are merged.
    """

    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """Make the guest write to the file of ``new`` from now on. Do nothing if the guest already writes to it.

        If the guest has an agent, the agent first writes buffered data to the disk. ``withdraw`` undoes this call.
        Raises VolumeUnsupported if this host cannot use the volume, and GuestFailed if the guest still writes to the
        old file.
        """

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Return whether the guest writes to the file of ``new``, or will write to it after its next start."""

    def withdraw(
        self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume, check: Check
    ) -> None:
        """Undo ``take``: merge the file of ``new`` into the file of ``old``, to which the guest then writes again.

        No data of the guest are lost. Raises GuestFailed if this fails, and whatever ``check()`` raises. After an error
        the guest still writes to the file of ``new``, and the call may be repeated.
        """

    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Merge files of the volume, while the guest runs or is off. The guest continues to write to the same file.

        A merge that already runs is continued. Do nothing if the merge is complete already. ``end_merge`` ends an
        incomplete merge. Raises GuestFailed, VolumeUnsupported, and whatever ``check()`` raises. After an error the
        merge may still run.
        """

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """End the block job of a merge if one is running, and return whether the backing chain shows a complete merge.

        Return False if the guest does not exist, does not have the volume, or is off and the volume's files cannot be
        read. Raises GuestFailed if the block job could not be ended.
        """
