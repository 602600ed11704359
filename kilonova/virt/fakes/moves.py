"""Resizes and cold migrations of fake guests."""

from __future__ import annotations

import uuid as uuidlib
from collections.abc import Iterable
from dataclasses import replace

from kilonova import errors, objects
from kilonova.states import PowerState
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged
from kilonova.virt.parts.moves import DiskInfo, MoveOffer, Progress


class FakeMoves(FakePart):
    """Fake of ``parts.moves.Moves``."""

    @scripted
    def prepare_move(self) -> MoveOffer:
        """Return the data with which a source can copy disks to this host, with a new id for the move."""
        path = f'fake:/{self.fake.name}'
        return {
            'host': self.fake.name,
            'machine_id': self.fake.machine.machine_id,
            'boot_id': 'fake-boot',
            'instances_path': path,
            'base_path': f'{path}/_base',
            'storage_id': path,
            'move': str(uuidlib.uuid4()),
        }

    @scripted
    def check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Raise errors.ResizeError if a disk would shrink, or DisksUnmovable if ``dest`` is on another machine."""
        self._check_move(instance, dest, flavor)

    @scripted
    def migrate_disk_and_power_off(
        self,
        instance: objects.Instance,
        dest: MoveOffer,
        flavor: objects.Flavor,
        timeout: int = 0,
        retry_interval: int = 0,
        progress: Progress | None = None,
    ) -> DiskInfo:
        """Keep the disk as <uuid>_resize, copy the disk to the destination's host, and delete the domain."""
        self._check_move(instance, dest, flavor)
        self.fake.stop(instance)
        uuid, kept, move, here = instance.uuid, instance.uuid + '_resize', dest['move'], self.fake.directories
        if uuid in here and (kept not in here or here[kept].move != move):
            here[kept] = replace(here.pop(uuid), move=move)
        if kept not in here:
            raise errors.InstanceNotFound(instance_id=uuid)
        arrived = self.fake.machine.disks[dest['host']]
        if uuid not in arrived or arrived[uuid].move != move:
            arrived[uuid] = here[kept]
        self.fake.domains.pop(uuid, None)
        self.fake.disconnect(instance)
        return {'move': move, 'disks': ['disk']}

    @scripted
    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        """Delete the copy of the disk that this move has written to the host of ``dest``."""
        arrived = self.fake.machine.disks[dest['host']]
        if dest['host'] != self.fake.name and instance.uuid in arrived and arrived[instance.uuid].move == dest['move']:
            del arrived[instance.uuid]

    @scripted
    def finish_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        disk_info: DiskInfo,
        plugged: Plugged | None = None,
    ) -> None:
        """Grow the disk to the flavor's size, connect the volumes, and create the domain."""
        disk = self.fake.disk(instance)
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = replace(
            disk,
            root_gb=max(disk.root_gb, instance.local_root_gb),
            ephemeral_gb=max(disk.ephemeral_gb, instance.flavor.ephemeral_gb),
        )
        self.fake.define(instance, pci_devices, power_on, plugged)

    @scripted
    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Return False: fake hosts share no storage, so the disks of ``source`` are not on this host."""
        return False

    @scripted
    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        """Return False: fake hosts share no storage, so this host never takes over disks of ``source``."""
        return False

    @scripted
    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the original disk, <uuid>_resize. Delete the domain, too, if source and destination are two hosts."""
        self.fake.directories.pop(instance.uuid + '_resize', None)
        if same_host:
            if instance.uuid in self.fake.directories:
                self.fake.directories[instance.uuid] = replace(self.fake.directories[instance.uuid], move=None)
        else:
            self.fake.domains.pop(instance.uuid, None)

    @scripted
    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the domain and the copied disk.

        Do nothing if source and destination are the same host and there is no directory <uuid>_resize: the disk was
        then not copied yet, so the only disk is the original.
        """
        if same_host and instance.uuid + '_resize' not in self.fake.directories:
            return
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        self.fake.machine.arrived[self.fake.name].pop(instance.uuid, None)
        disk = self.fake.directories.get(instance.uuid)
        if disk and disk.move:
            del self.fake.directories[instance.uuid]

    @scripted
    def finish_revert_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Restore the original disk, which was kept as <uuid>_resize, and create the domain.

        If no disk was kept and the guest is already on or off as ``power_on`` requests, nothing is changed.
        """
        kept = instance.uuid + '_resize'
        if (
            kept not in self.fake.directories
            and instance.uuid in self.fake.domains
            and power_on == (self.fake.domains[instance.uuid].state == PowerState.RUNNING)
        ):
            return
        self.fake.connect(instance)
        if kept in self.fake.directories:
            self.fake.directories[instance.uuid] = replace(self.fake.directories.pop(kept), move=None)
        self.fake.define(instance, pci_devices, power_on, plugged)

    def _check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        old = instance.flavor
        shrinks = not instance.is_from_volume and flavor.root_gb < old.root_gb
        if shrinks or flavor.ephemeral_gb < old.ephemeral_gb:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        if dest['machine_id'] != self.fake.machine.machine_id:
            raise errors.DisksUnmovable(
                source=self.fake.name, dest=dest['host'], reason='the hosts are different machines'
            )
