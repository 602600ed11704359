"""Live migrations of fake guests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kilonova import errors, objects
from kilonova.states import PowerState
from kilonova.virt.fakes.state import FakeDisk, FakeDomain, FakePart, FakeState, scripted
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.live_migrations import LiveDisk, LiveGuest, LiveOffer, LivePlace, LiveTold, PlacedOffer


class FakeLiveMigrations(FakePart):
    """Fake of ``parts.live_migrations.LiveMigrations``: ``migrate`` transfers a guest immediately and completely."""

    def __init__(self, fake: FakeState) -> None:
        super().__init__(fake)
        # Uuids of the guests for which a call of ``migrate`` from this host is running.
        self._giving: set[str] = set()

    @scripted
    def describe(self, instance: objects.Instance) -> LiveGuest:
        """Return a description of the running guest. It has one disk, or none if the guest boots from a volume."""
        domain, size = self._active(instance), self.fake.disk(instance).root_gb << 30
        disk: LiveDisk = {'name': 'disk', 'format': 'raw', 'size': size, 'used': size, 'copied': True}
        return {
            'host': self.fake.name,
            'storage_id': f'fake:/{self.fake.name}',
            'instances_path': f'fake:/{self.fake.name}',
            'arch': 'x86_64',
            'machine': None,
            'virt_type': 'fake',
            'cpu': None,
            'asked': {},
            'volumes': list(domain.volumes),
            'disks': [] if instance.is_from_volume else [disk],
        }

    @scripted
    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None, over_commit: bool) -> LiveOffer:
        """Return the data that the source needs to migrate a guest to this host. The guest's disks are always copied.

        Raises errors.MigrationPreCheckError if the disks do not fit on this host, or if ``block`` is False.
        """
        if block is False and guest['disks']:
            raise errors.MigrationPreCheckError(reason='hosts of the fake driver share no storage')
        if sum(disk['size'] for disk in guest['disks']) > self.fake.local_gb << 30 or guest['virt_type'] != 'fake':
            raise errors.MigrationPreCheckError(reason='the guest does not fit on this host')
        uri = f'fake:/{self.fake.name}'
        return {**self.fake.moves.prepare_move(), 'block': True, 'uri': uri, 'data_uri': uri, 'listen': {}}

    @scripted
    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return a LivePlace that lets the guest use any CPUs and memory of this host."""
        return {'cpuset': None, 'cputune': None, 'numatune': None}

    @scripted
    def prepare(
        self,
        instance: objects.Instance,
        guest: LiveGuest,
        offer: LiveOffer,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> dict[str, str]:
        """Create an empty disk and mediated devices, and connect the volumes that are attached to this host."""
        coming = [volume for one in instance.volumes if (volume := one.coming(self.fake.name)) is not None]
        for volume in coming:
            self.fake.check_volume(volume)
        self.fake.prepare(pci_devices)
        self.fake.domains.pop(instance.uuid, None)
        self.fake.directories[instance.uuid] = FakeDisk(
            sum(disk['size'] for disk in guest['disks']) >> 30, 0, move=offer['move']
        )
        for volume in coming:
            self.fake.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
        return {volume.volume_id: f'fake:/{self.fake.name}' for volume in coming}

    @scripted
    def migrate(self, instance: objects.Instance, offer: PlacedOffer, report: LiveTold) -> None:
        """Copy disk and domain to the destination, report the progress once, and switch the guest off on this host."""
        machine, there = self.fake.machine, offer['host']
        if instance.uuid in machine.arrived[there]:
            return
        domain, disk = self._active(instance), self.fake.disk(instance)
        if missing := sorted(domain.volumes.keys() - offer.get('volumes', {}).keys()):
            raise errors.MigrationError(reason=f'the destination has not connected volume {missing[0]}')
        size = disk.root_gb << 30
        self._giving.add(instance.uuid)
        try:
            self._tell(report, domain, size)
        finally:
            self._giving.discard(instance.uuid)
        machine.disks[there][instance.uuid] = replace(disk, move=offer['move'])
        machine.arrived[there][instance.uuid] = replace(
            domain, hostdevs=[offer.get('hostdevs', {})[one] for one in domain.hostdevs], used={}
        )
        domain.state = PowerState.SHUTDOWN

    @staticmethod
    def _tell(report: LiveTold, domain: FakeDomain, size: int) -> None:
        report(
            {
                'memory_total': domain.memory_mb << 20,
                'memory_processed': domain.memory_mb << 20,
                'memory_remaining': 0,
                'disk_total': size,
                'disk_processed': size,
                'disk_remaining': 0,
            }
        )

    @scripted
    def force_complete(self, instance: objects.Instance) -> None:
        """Check only that the guest is being migrated. Raises errors.MigrationError if it is not."""
        if instance.uuid not in self._giving:
            raise errors.MigrationError(reason='the guest is not being migrated')

    @scripted
    def abort(self, instance: objects.Instance) -> bool:
        """Return whether the guest still runs (or is paused) on this host.

        No migration is aborted, because a fake migration is complete at once.
        """
        return instance.uuid in self.fake.domains and self.fake.domains[instance.uuid].state != PowerState.SHUTDOWN

    def has_switched(self, instance: objects.Instance) -> bool:
        """Return False, because the fake driver has no post-copy."""
        return False

    @scripted
    def go_on(self, instance: objects.Instance) -> None:
        """Do nothing, because the fake driver never leaves a guest paused."""

    def has_arrived(self, instance: objects.Instance) -> bool:
        """Return whether ``migrate`` has transferred the guest to this host, even if ``receive`` was not called yet."""
        return instance.uuid in self.fake.domains or instance.uuid in self.fake.machine.arrived[self.fake.name]

    @scripted
    def receive(self, instance: objects.Instance) -> None:
        """Add the transferred domain to the domains of this host, and complete the move of its disk.

        ``FakeDisk.move`` is set to None. Therefore a later undo of the move does not delete the disk: it deletes only
        disks that have the id of the move.
        """
        came = self.fake.machine.arrived[self.fake.name].pop(instance.uuid, None)
        if came is not None:
            self.fake.domains[instance.uuid] = came
        self.fake.directories[instance.uuid] = replace(self.fake.disk(instance), move=None)

    @scripted
    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Delete the guest's domain and its disk, and disconnect its volumes."""
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        self.fake.directories.pop(instance.uuid, None)

    def _active(self, instance: objects.Instance) -> FakeDomain:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state == PowerState.SHUTDOWN:
            raise GuestFailed(act='migrate', uuid=instance.uuid, reason='it is off')
        return domain
