"""Volumes of fake guests."""

from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.states import PowerState
from kilonova.virt import disk_names
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware
from kilonova.virt.parts.volumes import VolumeCounters


class FakeVolumes(FakePart):
    """Fake of ``parts.volumes.Volumes``. It accepts all kinds of volumes, and reads no encryption keys."""

    @scripted
    def connector(self) -> dict[str, Any]:
        """Return the fake host's connector: ip, host and initiator."""
        return {'ip': self.fake.conf.my_block_storage_ip, 'host': self.fake.name, 'initiator': 'fake'}

    @scripted
    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """Return device names for the volumes that have none. Raises UnsupportedHardware for an unknown bus."""
        flavor, bus = instance.flavor, (image_meta.get('properties') or {}).get('hw_disk_bus') or 'virtio'
        for one in (bus, *(volume.bus or bus for volume in instance.volumes)):
            if one not in disk_names.PREFIX:
                raise UnsupportedHardware(model=one, virt='fake')
        own = [bus] * (bool(flavor.ephemeral_gb) + bool(flavor.swap))
        roots = [volume for volume in instance.volumes if volume.is_root]
        rest = [volume for volume in instance.volumes if not volume.is_root]
        names, others = disk_names.assign(
            [*(volume.bus or bus for volume in roots), *([] if roots else [bus]), *own],
            [(volume.bus or bus, volume.device) for volume in rest],
        )
        found = {
            volume.uuid: name for volume, name in [*zip(roots, names, strict=False), *zip(rest, others, strict=True)]
        }
        return [f'/dev/{found[volume.uuid]}' for volume in instance.volumes if not volume.device]

    @scripted
    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect the volume and add it to the domain. Do nothing if there is no domain."""
        self.fake.check_volume(volume)
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            self.fake.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
            domain.volumes.setdefault(volume.volume_id, volume.size)
            others = [one for one in instance.volumes if one.volume_id != volume.volume_id]
            self.fake.note(instance, instance.vifs, [*others, volume])

    @scripted
    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Remove the volume from the domain, and disconnect it."""
        check()
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            domain.volumes.pop(volume.volume_id, None)
            domain.used.pop(volume.volume_id, None)
            self.fake.note(instance, instance.vifs, instance.volumes)
        self.fake.disconnect(instance, [volume])

    @scripted
    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Record that the server no longer uses the volume on this host."""
        self.fake.disconnect(instance, [volume])

    @scripted
    def copy(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        volume: AttachedVolume,
        new: AttachedVolume,
        check: Check,
    ) -> None:
        """Connect ``new``, and record ``new`` as a copy of the volume. Raises GuestFailed if the guest does not run."""
        self.fake.check_volume(new)
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (PowerState.RUNNING, PowerState.PAUSED):
            reason = 'the guest is off, or does not have this volume'
            raise GuestFailed(act='copy a volume of', uuid=instance.uuid, reason=reason)
        self.fake.connected.setdefault(new.volume_id, set()).add(instance.uuid)
        check()
        domain.copies[volume.volume_id] = new.volume_id

    @scripted
    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """Remove the record of the copy, and disconnect ``new``."""
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            domain.copies.pop(volume.volume_id, None)
        self.fake.disconnect(instance, [new])

    @scripted
    def swap(
        self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume
    ) -> bool:
        """Replace the volume by ``new`` in the guest, if ``copy`` has copied the volume to ``new``.

        Return True if the guest uses ``new`` afterwards.
        """
        domain = self.fake.domains.get(instance.uuid)
        if domain is None:
            return False
        if domain.copies.get(volume.volume_id) == new.volume_id and domain.state in (
            PowerState.RUNNING,
            PowerState.PAUSED,
        ):
            del domain.copies[volume.volume_id]
            domain.moved[volume.volume_id] = new.volume_id
            domain.volumes[volume.volume_id] = new.size
            self.fake.disconnect(instance, [new])
        return domain.moved.get(volume.volume_id) == new.volume_id

    @scripted
    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Set the size that the guest sees to the volume's size."""
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None and volume.volume_id in domain.volumes:
            domain.volumes[volume.volume_id] = volume.size

    @scripted
    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """Return {volume id: counters} for the volumes of a running guest, or {} if the guest does not run."""
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (PowerState.RUNNING, PowerState.PAUSED):
            return {}
        return {
            volume.volume_id: domain.used.get(volume.volume_id, VolumeCounters())
            for volume in instance.volumes
            if volume.volume_id in domain.volumes
        }
