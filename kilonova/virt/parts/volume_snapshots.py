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
    """Merge of two files of a volume into one, after a snapshot was deleted.

    ``file`` and ``into`` are names of files on the volume's share. If ``into`` is given, ``file`` is merged into it;
    ``into`` is the backing file of ``file``. If ``into`` is None, the file that the guest writes to receives the
    content of the backing files between itself and ``file``, and ``file`` becomes its backing file. If ``file`` is None
    as well, it receives the content of all its backing files.
    """

    file: str | None
    into: str | None

    def is_done(self, names: Sequence[str]) -> bool:
        """Return whether the merge is complete.

        ``names`` are the file that the guest writes to, its backing file, the backing file of that one, and so on.
        """
        if self.into is None:
            return names[1:2] == ([] if self.file is None else [self.file])
        return self.into in names and self.file not in names

    def why_not(self, names: Sequence[str]) -> str:
        """Return the reason why files with these names cannot be merged in this way, or '' if they can be merged."""
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

    After a snapshot, the guest writes to a new file. The volume service created the new file, and its backing file is
    the previous file. When a snapshot is deleted, two of the files are merged.
    """

    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """Make the guest write to the file of ``new``, now and after each start. Do nothing if it already writes to it.

        If the guest has an agent, the agent first writes buffered data to the disk. ``withdraw`` is the undo. Raises
        VolumeUnsupported, or GuestFailed if the guest still writes to the file of ``old``.
        """

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Return whether the guest writes to the file of ``new``, or will write to it after its next start."""

    def withdraw(
        self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume, check: Check
    ) -> None:
        """Undo ``take``: make the guest write to the file of ``old``, with all data that it has written since.

        Raises GuestFailed or the exception of ``check()``. After an error the guest still writes to the file of
        ``new``, and the call may be repeated.
        """

    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Merge files of the volume, while the guest runs or is off. It continues to write to the same file as before.

        A merge that already runs is continued, and a complete merge is no error. ``end_merge`` is the undo of an
        incomplete merge. Raises GuestFailed, VolumeUnsupported or the exception of ``check()``; the merge may still run
        after an error.
        """

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """End a running merge, and return whether the merge is known to be complete.

        Return False if the guest does not exist, does not have the volume, or is off and the volume's files cannot be
        read. Raises GuestFailed if a merge is still running.
        """
