"""Live migration: libvirt transfers memory and disks, and this module starts the migration, follows it and ends it.

The two libvirt daemons do the transfer without the compute service (peer to peer). A compute service that is restarted
during a migration finds the running job, or sees its result in the state of the domain on source and destination.
Disks that are not on shared storage are copied into empty files that the destination has made. Files that QEMU does not
write, such as a config drive, are copied before the migration. Volumes are not copied: they are connected to the two
hosts during the migration.

Libvirt's test driver cannot migrate, so ``handover`` simulates migrations for it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.states import PowerState, VmState
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES, of_host
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.migration import migration_job
from kilonova.virt.libvirt.migration.handover import TestDriverMigration
from kilonova.virt.libvirt.migration.transfer import LOOK, MigrationTarget, Transfers
from kilonova.virt.libvirt.storage import destination, disk, files
from kilonova.virt.libvirt.storage.instance import RBD
from kilonova.virt.libvirt.storage.move import DiskMover
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import GuestFailed, NotOnThisHost, UnsupportedHardware
from kilonova.virt.parts.live_migrations import LiveDisk, LiveGuest, LiveOffer, LivePlace, LiveTold, PlacedOffer

LOG = logging.getLogger(__name__)


class LibvirtLiveMigrations:
    """Live migrations from and to one host. Implements ``parts.live_migrations.LiveMigrations``."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connection: Connection,
        host: LibvirtHost,
        domains: Domains,
        disks: ServerDisks,
        volumes: HostVolumes,
        mover: DiskMover,
    ) -> None:
        options = conf.libvirt
        self._libvirt, self._host, self._domains, self._disks, self._mover = connection, host, domains, disks, mover
        self._volumes = volumes
        self._instances_path = conf.instances_path
        self._address = options.live_migration_inbound_addr or conf.my_ip
        self._uri = options.live_migration_uri or f'qemu+{options.live_migration_scheme or "tcp"}://%s/system'
        self._transfers = Transfers(conf)
        self._listen = {'vnc': conf.vnc.server_listen, 'spice': conf.spice.server_listen}
        self._handover = TestDriverMigration(connection, disks)

    # -- checks before a migration -------------------------------------------------------------------

    @translated
    def describe(self, instance: objects.Instance) -> LiveGuest:
        """Return a description of the running guest for the destination. Called on the source.

        Raises:
            GuestFailed: if the guest is off.
            errors.MigrationError: if the guest has serial consoles on TCP ports of its host.
            errors.MigrationPreCheckError: if libvirt or QEMU of this host is too old to migrate mediated devices.
        """
        guest = self._active(instance)
        directory, offer = self._disks.directory(instance.uuid), self._mover.offer()
        found: list[LiveDisk] = []
        for name, header in directory.disks().items():
            path = directory.file(name)
            used = files.used(path) + (files.used(header.backing) if header.backing else 0)
            found.append(
                {
                    'name': name,
                    'format': header.format,
                    'size': header.virtual_size,
                    'used': min(used, header.virtual_size),
                    'copied': True,
                }
            )
        own = self._disks.present(instance)
        whole = {one.name for one in own if one.device != 'disk'}
        for one in found:
            one['copied'] = one['name'] not in whole
        pooled = directory.pooled()
        found += [{'name': name, 'format': RBD, 'size': 0, 'used': 0, 'copied': False} for name in pooled]
        domain = ElementTree.fromstring(migration_job.xml(guest))
        if domain.find("devices/serial[@type='tcp']") is not None:
            raise errors.MigrationError(
                reason='the guest has serial consoles on TCP ports of its host '
                '([serial_console]enabled), which cannot be migrated'
            )
        mdevs = any(one.get('type') == 'mdev' for one in of_host(domain).values())
        if mdevs:
            self._host.check_moves_mdevs('source')
        os_type, cpu = domain.find('os/type'), domain.find('cpu')
        told: LiveGuest = {
            'host': offer['host'],
            'storage_id': offer['storage_id'],
            'instances_path': self._instances_path,
            'disks': found,
            'asked': {name: wish.to_dict() for name, wish in directory.asked().items()},
            'arch': self._host.capabilities.arch,
            'virt_type': self._host.settings.virt_type,
            'machine': os_type.get('machine') if os_type is not None else None,
            'mdevs': mdevs,
            'volumes': [volume for one in domain.iterfind('devices/disk') if (volume := VOLUMES.name(one))],
            # 'cpu' is None for host-passthrough, which names no model: libvirt checks it during the migration.
            'cpu': ElementTree.tostring(cpu, encoding='unicode')
            if cpu is not None and cpu.find('model') is not None
            else None,
        }
        if pooled:
            told['pool'] = self._disks.pool.id
        return told

    @translated
    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None, over_commit: bool) -> LiveOffer:
        """Check whether the guest can be migrated to this host. Return the data that the source needs to migrate it.

        Called on the destination. ``guest`` is the source's description of the guest. ``block`` is True if the disks
        must be copied, False if they must be on shared storage, and None if this host decides. To copy disks, there
        must be free space for their full size, or with ``over_commit`` for their used size. Raises
        errors.MigrationPreCheckError if ``block``, or this host's CPU, storage or free space is not suitable.
        """
        mine = self._mover.offer()
        is_shared = guest['storage_id'] == mine['storage_id'] and guest['host'] != mine['host']
        path = self._disks.directory(instance.uuid).path
        pool = guest.get('pool')
        if pool is not None and pool != mine.get('pool'):
            raise errors.MigrationPreCheckError(
                reason=f'disks of the server are in Ceph pool {pool}, which host {self._libvirt.name} does not use'
            )
        if pool is not None and block:
            raise errors.MigrationPreCheckError(
                reason='disks of the server are in a shared Ceph pool: Block migration can not be used with shared '
                'storage.'
            )
        # A guest without disk files is migrated in the same way with any ``block``, so the requested value is ignored.
        if block is None or all(one['format'] == RBD for one in guest['disks']):
            block = not is_shared
        if block and is_shared:
            raise errors.MigrationPreCheckError(
                reason=f'{path} is not on local storage: Block migration can not be used with shared storage.'
            )
        if not block and not is_shared:
            raise errors.MigrationPreCheckError(
                reason=f'{path} is not on shared storage: Shared storage '
                'live-migration requires either shared storage or '
                'boot-from-volume with no local disks.'
            )
        if not block and guest['instances_path'] != self._instances_path:
            raise errors.MigrationPreCheckError(
                reason='source and destination share storage, but its path is '
                f'{guest["instances_path"]} on the source and '
                f'{self._instances_path} on the destination'
            )
        self._compare(guest)
        if guest.get('mdevs'):
            self._host.check_moves_mdevs('destination')
        if block:
            self._check_room(instance, guest, over_commit)
        address = f'[{self._address}]' if ':' in self._address else self._address
        return {
            **mine,
            'block': block,
            'uri': self._uri.replace('%s', address),
            'data_uri': f'tcp://{address}',
            'listen': self._listen,
        }

    def _compare(self, guest: LiveGuest) -> None:
        here = self._host.settings
        if (guest['arch'], guest['virt_type']) != (self._host.capabilities.arch, here.virt_type):
            raise errors.MigrationPreCheckError(
                reason=f'guests are {guest["virt_type"]} on {guest["arch"]} on the source, but {here.virt_type} on '
                f'{self._host.capabilities.arch} on the destination'
            )
        lacks = guest['cpu'] and migration_job.lacks_cpu(
            self._libvirt, guest['cpu'], guest['arch'], guest['machine'], guest['virt_type']
        )
        if lacks:
            raise errors.MigrationPreCheckError(
                reason="Unacceptable CPU info: CPU doesn't have compatibility: the guest's CPU is not supported on "
                f'host {self._libvirt.name}: {lacks}'
            )

    def _check_room(self, instance: objects.Instance, guest: LiveGuest, over_commit: bool) -> None:
        needed = sum(one['used'] if over_commit else one['size'] for one in guest['disks'])
        free = shutil.disk_usage(self._instances_path).free
        if needed > free:
            raise errors.MigrationPreCheckError(
                reason=f'Unable to migrate {instance.uuid}: Disk of instance is too large(available on destination '
                f'host:{free} < need:{needed})'
            )

    # -- work on the destination of a migration ------------------------------------------------------

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return the host CPUs and host memory that the guest will use on this host, the destination of its migration.

        Raises errors.MigrationPreCheckError if a guest of this flavor and image cannot run here.
        """
        try:
            return self._domains.place(instance, image_meta)
        except (UnsupportedHardware, NotOnThisHost) as error:
            raise errors.MigrationPreCheckError(reason=str(error)) from error

    @translated
    def prepare(
        self,
        instance: objects.Instance,
        guest: LiveGuest,
        offer: LiveOffer,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> dict[str, str]:
        """Prepare this host as the destination: create empty disks and devices, plug ports, and connect volumes.

        ``guest`` is the source's description of the guest, and ``offer`` is this host's answer to it. Returns a dict
        from volume id to the XML of the volume's source on this host.
        """
        coming = self._volumes.coming(instance)
        self._domains.prepare_devices(pci_devices)
        self._domains.forget_if_made(instance.uuid)
        # Leave out ports that are PCI functions: the guest migrates without them, and gets them back by hot plug.
        self._domains.plugs.renew(instance, [vif for vif in instance.vifs if not vif.is_function])
        self._handover.forget(instance.uuid)
        if offer['block']:
            self._make_room(instance, guest, offer['move'])
        return self._volumes.origins(instance, coming)

    def _make_room(self, instance: objects.Instance, guest: LiveGuest, move: str) -> None:
        """Create the server's directory with empty disks, and fetch the base files and the kernel that the guest needs.

        An existing directory of the server is deleted first. The new directory records ``move``, the id of the
        migration.
        """
        directory = self._disks.directory(instance.uuid)
        if directory.exists():
            LOG.info(
                'Removing the old directory %s before the guest is migrated to this host',
                directory.path,
                instance_uuid=instance.uuid,
            )
            files.remove_tree(directory.path)
        directory.create()
        directory.mark_move(move)
        directory.own(self._libvirt.name)
        directory.keep_asked({name: RequestedDisk.from_dict(wish) for name, wish in guest['asked'].items()})
        for one in guest['disks']:
            if one['copied']:
                disk.create_empty(directory.file(one['name']), one['format'], one['size'])
                self._disks.allocate(directory.file(one['name']), one['size'])
            directory.record(one['name'], one['format'])
        self._disks.ensure_bases(instance, {})

    @translated
    def has_arrived(self, instance: objects.Instance) -> bool:
        """Return True if the guest already runs on this host, the destination of its migration.

        After the switch to post-copy it runs here although a part of its memory is still missing.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return self._libvirt.is_test and self._handover.has_arrived(instance.uuid)
        return migration_job.has_arrived(guest)

    @translated
    def receive(self, instance: objects.Instance) -> None:
        """Complete the migration on the destination: define the guest that has arrived and take over its disks.

        If a part of the guest's memory is missing because the post-copy failed, the guest is stopped. It can then be
        started from its disks.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None and self._libvirt.is_test:
            guest = self._handover.take(instance.uuid)
        if guest is not None and migration_job.is_broken(guest):
            LOG.error(
                'Post-copy failed and a part of the guest memory is lost; stopping the guest, which can be started '
                'again from its disks',
                instance_uuid=instance.uuid,
            )
            guest.destroy()
            guest = self._libvirt.find(instance.uuid)
        if guest is not None and not guest.call('isPersistent'):
            guest = self._libvirt.define(migration_job.xml(guest), instance.uuid)
        directory = self._disks.directory(instance.uuid)
        if directory.is_of(self._libvirt.name):
            self._disks.own(instance.uuid)
            directory.unmark_move()
        if guest is not None:
            self._domains.show(guest)

    # -- work on the source of a migration -----------------------------------------------------------

    @translated
    def migrate(self, instance: objects.Instance, offer: PlacedOffer, report: LiveTold) -> None:
        """Migrate the guest to the host of ``offer``, and return when the guest has arrived. Called on the source.

        ``report`` is called with the progress of the migration.
        """
        if self._libvirt.is_test:
            self._handover.give(instance.uuid, offer, self._place(instance, offer), report)
            return
        guest = self._libvirt.find(instance.uuid)
        if migration_job.has_gone(guest):
            return
        guest = self._active(instance)
        if migration_job.outgoing(guest) is None and not migration_job.has_switched(guest):
            self._carry_files(instance, offer)
        self._transfers.carry(guest, self._way(guest, instance, offer), report)

    def _active(self, instance: objects.Instance) -> Guest:
        guest = self._libvirt.find(instance.uuid)
        if guest is None or not guest.is_active():
            raise GuestFailed(act='migrate', uuid=instance.uuid, reason='the guest is off')
        return guest

    def _place(self, instance: objects.Instance, offer: LiveOffer) -> destination.MoveDestination:
        return self._mover.destination(offer, instance.uuid)

    def _carry_files(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Copy the files that QEMU does not transfer, such as a config drive.

        Raises DisksUnmovable if they cannot be copied.
        """
        place = self._place(instance, offer)
        if not offer['block']:
            place.check()
            return
        paths = [one.path for one in self._disks.present(instance) if one.device != 'disk' and one.pool is None]
        if not paths:
            return
        place.check()
        try:
            place.put(paths, os.path.join(offer['instances_path'], instance.uuid), lambda count: None)
        except command.CommandFailed as error:
            raise errors.DisksUnmovable(source=self._libvirt.name, dest=offer['host'], reason=str(error)) from error

    def _way(self, guest: Guest, instance: objects.Instance, offer: PlacedOffer) -> MigrationTarget:
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_PERSIST_DEST
        moved = self._disks.directory(instance.uuid).path, os.path.join(offer['instances_path'], instance.uuid)
        live = migration_job.xml(guest)
        parameters: dict[str, Any] = {
            libvirt.VIR_MIGRATE_PARAM_URI: offer['data_uri'],
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: migration_job.rewritten(live, *moved, offer),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: migration_job.rewritten(
                migration_job.xml(guest, inactive=True), *moved, offer
            ),
        }
        copied = migration_job.copied_disks(live, moved[0]) if offer['block'] else []
        # The disks to copy are listed, because libvirt would otherwise copy all writable disks, including volumes.
        if copied:
            flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
            parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = copied
        # A guest that was paused before the migration stays paused at the destination.
        # A guest that post-copy has paused on the source already runs at the destination, so it gets no PAUSED flag.
        if guest.power_state() == PowerState.PAUSED and not migration_job.has_switched(guest):
            flags |= libvirt.VIR_MIGRATE_PAUSED
        # Post-copy is switched off for guests with passed-through devices: DMA cannot wait for memory to be fetched.
        return MigrationTarget(
            offer['host'], offer['uri'], parameters, flags, post_copy=not of_host(ElementTree.fromstring(live))
        )

    @translated
    def force_complete(self, instance: objects.Instance) -> None:
        """Force a running migration to complete, by post-copy or by pausing the guest."""
        guest = self._libvirt.find(instance.uuid)
        if guest is not None and self._libvirt.is_test and self._handover.is_giving(instance.uuid):
            return
        if guest is None or migration_job.outgoing(guest) is None:
            raise errors.MigrationError(reason='the guest is not being migrated')
        self._transfers.hasten(guest)

    @translated
    def abort(self, instance: objects.Instance) -> bool:
        """Abort a migration on the source and wait for its end.

        Return True if the abort was in time, so that the guest stays on this host. Return False if the guest already
        runs at the destination, or if it is off.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return False
        while migration_job.outgoing(guest) is not None:
            migration_job.abort(guest)
            time.sleep(LOOK)
        return guest.is_active() and not migration_job.has_switched(guest)

    @translated
    def has_switched(self, instance: objects.Instance) -> bool:
        """Return True if the guest runs at the destination while a part of its memory is still on the source."""
        guest = self._libvirt.find(instance.uuid)
        return guest is not None and not self._libvirt.is_test and migration_job.has_switched(guest)

    @translated
    def go_on(self, instance: objects.Instance) -> None:
        """Resume a guest that is still paused on the source after its migration has failed.

        libvirt pauses a guest at the end of a migration. A forced completion pauses it earlier.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is not None and (
            migration_job.is_held(guest) or (migration_job.was_held(guest) and instance.vm_state == VmState.ACTIVE)
        ):
            LOG.warning(
                'The guest was paused by a live migration that did not complete; resuming it on this host',
                instance_uuid=instance.uuid,
            )
            guest.go_on()

    @translated
    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        """Remove the domain and the volumes of a guest that has been migrated. Called on the source.

        If the disks were copied, they are deleted here. On shared storage the destination becomes their owner. With
        post-copy, this method first waits until the rest of the memory has been transferred. Raises VolumeFailed if a
        volume stays connected.
        """
        guest = self._libvirt.find(instance.uuid)
        # With post-copy, the guest already runs at the destination. Wait until the rest of its memory is transferred.
        while guest is not None and not self._libvirt.is_test and migration_job.outgoing(guest) is not None:
            time.sleep(LOOK)
        with self._volumes.given_back(instance, instance.volumes):
            self._domains.forget(instance.uuid)
        directory = self._disks.directory(instance.uuid)
        if offer['block']:
            self._disks.remove_directories(instance.uuid)
        elif directory.exists() and directory.is_of(self._libvirt.name):
            directory.own(offer['host'])
