"""Snapshots of volumes of fake guests."""

from __future__ import annotations

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.volume_snapshots import Merge


class FakeVolumeSnapshots(FakePart):
    """Fake of ``parts.volume_snapshots.VolumeSnapshots``. It assumes that every file exists."""

    @scripted
    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """Make the guest write to the file of ``new``, by adding it as the first of the volume's files."""
        self.fake.check_volume(new)
        files = self._files(instance, old)
        if files[0] != new.file[0]:
            files.insert(0, new.file[0])

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Return whether the volume's first file, to which the guest writes, is the file that ``new`` names."""
        domain = self.fake.domains.get(instance.uuid)
        return domain is not None and domain.files.get(new.volume_id, [''])[0] == new.file[0]

    @scripted
    def withdraw(
        self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume, check: Check
    ) -> None:
        """Remove the file of ``new`` from the volume's files, if the guest writes to it."""
        check()
        if self.has(instance, new):
            self._files(instance, old).pop(0)

    @scripted
    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Complete the merge at once: remove the merged files from the list of the volume's files.

        Raises GuestFailed if the merge is impossible.
        """
        check()
        files = self._files(instance, volume)
        if merge.is_done(files):
            return
        if reason := merge.why_not(files):
            raise GuestFailed(f'Files of volume {volume.volume_id} of guest {instance.uuid} cannot be merged: {reason}')
        gone = (
            {merge.file}
            if merge.into is not None
            else set(files[1 : files.index(merge.file) if merge.file is not None else None])
        )
        files[:] = [name for name in files if name not in gone]

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """Return whether the merge is complete."""
        domain = self.fake.domains.get(instance.uuid)
        return (
            domain is not None and volume.volume_id in domain.volumes and merge.is_done(self._files(instance, volume))
        )

    def _files(self, instance: objects.Instance, volume: AttachedVolume) -> list[str]:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or volume.volume_id not in domain.volumes:
            raise GuestFailed(f'Guest {instance.uuid} does not have volume {volume.volume_id}')
        return domain.files.setdefault(volume.volume_id, [volume.file[0]])
