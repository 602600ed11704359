"""The libvirt driver: it puts host, disks and domain together, and knows nothing that one of them knows.

    driver = LibvirtDriver(conf, image_client)
    driver.init_host()
    driver.spawn(ctxt, instance, image_meta, pci_devices=devices)

With [libvirt]connection_uri = test:///FILE libvirt's test driver plays the host: real XML, real domains, real
disks, no hypervisor. What the calls promise stands in ``kilonova.virt.driver``.
"""
from __future__ import annotations

import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.pci.spec import DeviceSpecs
from kilonova.states import PowerState
from kilonova.virt import driver, identity
from kilonova.virt import inventory as shared_inventory
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt import diagnostics, inventory, settings
from kilonova.virt.libvirt.capabilities import GuestCapabilities, HostCapabilities, of_guests, parse
from kilonova.virt.libvirt.devices import pci
from kilonova.virt.libvirt.domain import builder
from kilonova.virt.libvirt.domain import disk as domain_disk
from kilonova.virt.libvirt.domain.guest import GuestDisk, GuestSpec, Settings
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import Host
from kilonova.virt.libvirt.storage import asked as wishes
from kilonova.virt.libvirt.storage import command, files, ssh
from kilonova.virt.libvirt.storage.cache import ImageCache, Limits
from kilonova.virt.libvirt.storage.instance import CONSOLE, InstanceDirectory
from kilonova.virt.libvirt.storage.move import COMING, KEPT, DiskMover
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.snapshot import Snapshot

LOG = logging.getLogger(__name__)

# libvirt.md: the oldest libvirt that the field still serves, as major * 1000000 + minor * 1000 + micro.
_OLDEST_LIBVIRT = 8000000
# libvirt and QEMU that move devices of live_migratable with their guests.
_MOVES_DEVICES = 10000000, 8002002
# Seconds between two looks whether QEMU still copies a disk.
_LOOK = 0.2
_SERVER_DIRECTORY = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_\w+)?')


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    """libvirt's errors end here: whoever calls a driver doesn't know the library."""
    @functools.wraps(method)
    def call(self: LibvirtDriver, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except libvirt.libvirtError as error:
            uuid = next((arg.uuid for arg in args if hasattr(arg, 'uuid')), None)
            if uuid is None:
                raise driver.HypervisorUnavailable(host=self._host.name, reason=str(error)) from error
            raise driver.GuestFailed(act=method.__name__, uuid=uuid, reason=str(error)) from error
    return call


class LibvirtDriver:
    """ComputeDriver for kvm and qemu guests by libvirt."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(self, conf: cfg.ConfigOpts, image_client: driver.ImageClient | None = None, *,
                 host: Host | None = None) -> None:
        """``host``: a connection to go on with, instead of an own one."""
        self._conf = conf
        self._instances_path: str = conf.instances_path
        base_path = os.path.join(self._instances_path, conf.image_cache.subdirectory_name)
        self._cache = ImageCache(base_path, files.Locks(os.path.join(self._instances_path, 'locks')),
                                 force_raw=conf.force_raw_images,
                                 limits=Limits(conf.libvirt.images_cpu_time_limit,
                                               conf.libvirt.images_address_space_limit))
        self._disks = ServerDisks(conf, self._cache, image_client.download if image_client else None)
        self._images = image_client
        self._mover = DiskMover(conf.host, conf.my_ip, self._instances_path, base_path, ssh.Transport(
            conf.libvirt.remote_filesystem_transport, conf.libvirt.remote_filesystem_bandwidth << 20))
        self._host = host or Host(settings.connection_uri(conf), conf.host, conf.libvirt.keepalive_interval)
        self._soft_reboot_timeout: int = conf.libvirt.wait_soft_reboot_seconds

    # -- the host ------------------------------------------------------------------------------------

    def listen(self, listener: driver.Listener) -> None:
        self._host.listen(listener)

    @_translated
    def init_host(self) -> None:
        os.makedirs(self._instances_path, exist_ok=True)
        self._mover.start()
        self._host.connect()
        found = self._host.libvirt_version()
        if found < _OLDEST_LIBVIRT:
            raise driver.DriverMisconfigured(reason=f'libvirt {found} is too old, {_OLDEST_LIBVIRT} is needed')
        self._check_live_migratable(found)
        LOG.debug('Guests of this host: %s, on %s', self._settings, self._offer)
        self._clear_leftovers()

    def _check_live_migratable(self, libvirt_version: int) -> None:
        """pci.md §1: a host that can't move such devices must not offer them. libvirt's test driver moves nothing."""
        if self._host.is_test or not any(spec.tags.get('live_migratable') == 'true'
                                         for spec in DeviceSpecs.from_conf(self._conf).specs):
            return
        for name, found, needed in (('libvirt', libvirt_version, _MOVES_DEVICES[0]),
                                    ('QEMU', self._host.version(), _MOVES_DEVICES[1])):
            if found < needed:
                raise driver.DriverMisconfigured(reason=f'[pci]device_spec says live_migratable, for which {name} '
                                                        f'{found} is too old, {needed} is needed')

    def _clear_leftovers(self) -> None:
        """Directories that were being deleted, and XML of domains that libvirt has forgotten."""
        known = set(self.list_instance_uuids())
        for name in self.list_directories():
            if name.endswith('_del'):
                shutil.rmtree(os.path.join(self._instances_path, name), ignore_errors=True)
            elif name not in known:
                InstanceDirectory(self._instances_path, name).hide_domain()
            else:
                InstanceDirectory(self._instances_path, name).own(self._host.name)

    @functools.cached_property
    def _capabilities(self) -> HostCapabilities:
        return parse(self._host.capabilities_xml(), test=self._host.is_test)

    @functools.cached_property
    def _guest_capabilities(self) -> GuestCapabilities:
        arch = self._capabilities.arch
        return of_guests(self._host, arch, self._conf.libvirt.virt_type, settings.machine_types(self._conf, arch))

    @functools.cached_property
    def _offer(self) -> Offer:
        """What of the host's CPUs and pages servers may have."""
        cells = inventory.cells(self._host, self._capabilities)
        return Offer.read(self._conf, {cpu for cell in cells for cpu in cell.cpus} or set(range(self._host.info()[2])))

    @functools.cached_property
    def _settings(self) -> Settings:
        return settings.read(self._conf, self._capabilities, test=self._host.is_test, offer=self._offer,
                             cells=inventory.cells(self._host, self._capabilities), guests=self._guest_capabilities)

    @_translated
    def get_available_resource(self) -> dict[str, Any]:
        return inventory.available(self._host, self._capabilities, self._instances_path,
                                   identity.node_uuid(self._conf.state_path), self._offer)

    @_translated
    def inventory(self, existing: dict[str, dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
        info = self._host.info()
        disk_gb = shutil.disk_usage(self._instances_path).total >> 30
        return shared_inventory.root(self._conf, len(self._offer.shared), info[1], disk_gb, existing,
                                     len(self._offer.dedicated))

    @_translated
    def traits(self) -> set[str]:
        return inventory.traits(self._host, self._capabilities, self._guest_capabilities)

    @_translated
    def missing_devices(self, addresses: Iterable[str]) -> list[str]:
        return [address for address in addresses if not self._host.has_node_device(pci.node_name(address))]

    def uptime(self) -> str | None:
        try:
            return command.run('uptime').removesuffix('\n')
        except command.CommandFailed as error:
            LOG.warning('This host does not tell how long it is up: %s', error)
            return None

    @_translated
    def list_instance_uuids(self) -> list[str]:
        return [guest.uuid for guest in self._host.guests()]

    @_translated
    def describe(self) -> list[dict[str, Any]]:
        found = []
        for guest in self._host.guests():
            try:
                xml = guest.xml()
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:     # deleted since the list was made
                    raise
                continue
            found.append({'uuid': guest.uuid, 'name': guest.name, 'state': int(guest.power_state()),
                          'hostdevs': pci.given_to(ElementTree.fromstring(xml))})
        return found

    def list_directories(self) -> list[str]:
        with os.scandir(self._instances_path) as entries:
            return sorted(entry.name for entry in entries
                          if _SERVER_DIRECTORY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                          and InstanceDirectory(self._instances_path, entry.name).is_of(self._host.name))

    # -- one guest -----------------------------------------------------------------------------------

    @_translated
    def get_info(self, instance: Any) -> int:
        guest = self._host.find(instance.uuid)
        return int(guest.power_state() if guest else PowerState.SHUTDOWN)

    @_translated
    def spawn(self, ctxt: Any, instance: Any, image_meta: dict[str, Any], *, pci_devices: Iterable[Any] = (),
              admin_password: str | None = None, files: Sequence[tuple[str, str]] = (),
              image_fetch: driver.ImageFetch | None = None, block_devices: Sequence[Any] = ()) -> None:
        # 1. the XML: what can't be is refused before a byte is copied
        asked = wishes.read(block_devices, instance.flavor)
        guest = self._guest_spec(instance, image_meta, self._disks.plan(instance, image_meta, asked), pci_devices)
        xml = self._guest_xml(guest)
        # 2. an earlier try's guest must not hold the disks that are replaced
        self._forget(instance)
        # 3. disks
        self._disks.create(instance, image_meta, admin_password=admin_password, files=files, fetch=image_fetch,
                           asked=asked, devices=domain_disk.tagged(guest))
        # 4. the guest
        self._replace_guest(instance, xml, power_on=True)
        LOG.debug('Guest created on hypervisor', instance_uuid=instance.uuid)
        LOG.info('Instance spawned successfully.', instance_uuid=instance.uuid)

    @_translated
    def destroy(self, instance: Any, destroy_disks: bool = True) -> None:
        if self._forget_if_made(instance):
            LOG.info('Instance destroyed successfully.', instance_uuid=instance.uuid)
        if not destroy_disks:
            return
        for path in self._own_directories(instance.uuid):
            LOG.debug('Deleting instance files %s', path, instance_uuid=instance.uuid)
            if files.remove_tree(path):
                LOG.info('Deletion of %s complete', path, instance_uuid=instance.uuid)

    @_translated
    def power_off(self, instance: Any, timeout: int = 0, retry_interval: int = 0) -> None:
        guest = self._host.find(instance.uuid)
        if guest is None:
            return
        if guest.is_active() and not (timeout and guest.shut_down(timeout, retry_interval)):
            guest.destroy()
            LOG.info('Instance destroyed successfully.', instance_uuid=instance.uuid)
        self._show_domain(instance, guest)

    @_translated
    def power_on(self, ctxt: Any, instance: Any, image_meta: dict[str, Any],
                 pci_devices: Iterable[Any] = ()) -> None:
        self._build_guest(instance, image_meta, pci_devices, power_on=True)

    @_translated
    def reboot(self, ctxt: Any, instance: Any, reboot_type: str, image_meta: dict[str, Any],
               pci_devices: Iterable[Any] = ()) -> None:
        guest = self._host.find(instance.uuid)
        soft = reboot_type == 'SOFT' and guest is not None and guest.power_state() == PowerState.RUNNING
        if soft and not guest.shut_down(self._soft_reboot_timeout):     # type: ignore[union-attr]
            LOG.warning('Failed to soft reboot instance. Trying hard reboot.', instance_uuid=instance.uuid)
            soft = False
        self._build_guest(instance, image_meta, pci_devices, power_on=True)
        LOG.info('Instance soft rebooted successfully.' if soft else 'Instance rebooted successfully.',
                 instance_uuid=instance.uuid)

    # -- images of a guest ---------------------------------------------------------------------------

    @_translated
    def snapshot(self, ctxt: Any, instance: Any, image_id: str, check: driver.Check, copied: driver.Check) -> None:
        if self._images is None:
            raise driver.DriverMisconfigured(reason='there is no image client to send images with')
        made = self._snapshot(image_id)
        if not made.is_made():
            # Looked at first: nobody is held still for an image that is gone, or a service that is silent.
            if self._images.get(image_id)['status'] == 'active':
                return
            self._copy_root_disk(instance, made, check)
        copied()
        with open(made.path, 'rb') as stream:
            self._images.upload(image_id, stream, check)
        made.remove()

    @_translated
    def forget_snapshot(self, instance: Any, image_id: str) -> None:
        made = self._snapshot(image_id)
        self._let_go_on(instance, made)
        guest = self._host.find(instance.uuid)
        if guest is not None:
            guest.end_copy(made.part)
        made.remove()

    def _snapshot(self, image_id: str) -> Snapshot:
        return Snapshot(self._conf.libvirt.snapshots_directory, image_id)

    def _copy_root_disk(self, instance: Any, made: Snapshot, check: driver.Check) -> None:
        """By QEMU while the guest runs; where that won't, the file while the guest can't write."""
        root = self._disks.present(instance.uuid)[0]
        self._let_go_on(instance, made)
        guest = self._host.find(instance.uuid)
        if guest is not None and guest.power_state() == PowerState.RUNNING:
            if self._copy_running(guest, root.path, made, check):
                return
            if guest.power_state() == PowerState.RUNNING:
                made.hold()
                guest.hold()
        try:
            made.copy(root.path, check)
        finally:
            self._let_go_on(instance, made)
        made.flatten(root.format, check)

    def _copy_running(self, guest: Guest, path: str, made: Snapshot, check: driver.Check) -> bool:
        """False: QEMU won't, or the guest stopped meanwhile. A process that died may have left a copy under way."""
        guest.end_copy(made.part)
        made.make_room()
        if not guest.begin_copy(path, made.part):
            return False
        try:
            while guest.is_copying(made.part):
                check()
                time.sleep(_LOOK)
        except BaseException:
            guest.end_copy(made.part)
            raise
        if guest.has_copied():
            made.take()
            return True
        if guest.is_active():
            raise driver.GuestFailed(act='copy the disk of', uuid=guest.uuid, reason='QEMU did not come to its end')
        return False

    def _let_go_on(self, instance: Any, made: Snapshot) -> None:
        if made.is_held():
            guest = self._host.find(instance.uuid)
            if guest is not None:
                guest.go_on()
            made.let_go()

    # -- looking at a guest --------------------------------------------------------------------------

    def get_console_output(self, instance: Any) -> str:
        return self._disks.directory(instance.uuid).console()

    @_translated
    def get_diagnostics(self, instance: Any) -> dict[str, Any]:
        return diagnostics.flat(self._measured(instance))

    @_translated
    def get_instance_diagnostics(self, instance: Any) -> objects.Diagnostics:
        return diagnostics.standard(self._measured(instance), instance, self._settings.virt_type)

    def _measured(self, instance: Any) -> diagnostics.Measured:
        guest = self._host.find(instance.uuid)
        if guest is None:
            raise driver.GuestFailed(act='measure', uuid=instance.uuid, reason='it is not there')
        return diagnostics.measure(guest)

    # -- disk moves ----------------------------------------------------------------------------------

    def prepare_move(self) -> dict[str, Any]:
        return self._mover.offer()

    def fetch_base(self, instance: Any, image_meta: dict[str, Any]) -> None:
        self._disks.fetch_base(instance, image_meta)

    def check_move(self, instance: Any, dest: dict[str, Any], flavor: Any) -> None:
        self._mover.check(instance, dest, flavor)

    @_translated
    def migrate_disk_and_power_off(self, instance: Any, dest: dict[str, Any], flavor: Any, timeout: int = 0,
                                   retry_interval: int = 0, progress: driver.Progress | None = None) -> dict[str, Any]:
        self._mover.check(instance, dest, flavor)
        LOG.debug('Starting migrate_disk_and_power_off', instance_uuid=instance.uuid)
        self.power_off(instance, timeout, retry_interval)
        self._hide_domain(instance)
        disk_info = self._mover.carry(instance.uuid, dest, progress)
        self._forget(instance)
        return disk_info

    def discard_copy(self, instance: Any, dest: dict[str, Any]) -> None:
        self._mover.discard_copy(instance.uuid, dest)

    @_translated
    def finish_migration(self, ctxt: Any, instance: Any, image_meta: dict[str, Any], pci_devices: Iterable[Any],
                         power_on: bool, disk_info: dict[str, Any]) -> None:
        LOG.debug('Starting finish_migration', instance_uuid=instance.uuid)
        if self._disks.directory(instance.uuid).move() != disk_info['move']:
            raise driver.GuestFailed(act='move', uuid=instance.uuid, reason='its disks have not arrived')
        self._disks.directory(instance.uuid).own(self._host.name)
        self._disks.grow(instance, image_meta)
        self._build_guest(instance, image_meta, pci_devices, power_on)
        if power_on:
            LOG.info('Instance running successfully.', instance_uuid=instance.uuid)

    @_translated
    def confirm_migration(self, instance: Any, same_host: bool) -> None:
        if not same_host:
            self._forget(instance)
        self._mover.confirm(instance.uuid)

    @_translated
    def cleanup_move_dest(self, instance: Any, same_host: bool) -> None:
        if same_host and not self._mover.is_aside(instance.uuid):
            return      # nothing has been moved: domain and disks are the server's own
        if self._forget_if_made(instance):
            LOG.info('Instance destroyed successfully.', instance_uuid=instance.uuid)
        self._mover.discard(instance.uuid, same_host)

    @_translated
    def finish_revert_migration(self, ctxt: Any, instance: Any, image_meta: dict[str, Any],
                                pci_devices: Iterable[Any], power_on: bool) -> None:
        if self._mover.is_aside(instance.uuid):
            self._forget(instance)
        else:
            guest = self._host.find(instance.uuid)
            if guest is not None and guest.is_active() == power_on:
                self._mover.restore(instance.uuid)
                return      # it was never moved, or is back already
        self._mover.restore(instance.uuid)
        self._build_guest(instance, image_meta, pci_devices, power_on)
        if power_on:
            LOG.info('Instance running successfully.', instance_uuid=instance.uuid)

    # -- parts ---------------------------------------------------------------------------------------

    def _own_directories(self, uuid: str) -> list[str]:
        """Where a server's files may be, less what is another host's: they may share their storage."""
        found = (InstanceDirectory(self._instances_path, uuid, suffix) for suffix in ('', KEPT, COMING))
        return [each.path for each in found if each.is_of(self._host.name)]

    def _build_guest(self, instance: Any, image_meta: dict[str, Any], pci_devices: Iterable[Any],
                     power_on: bool) -> None:
        """The domain of a server that has its disks here, made afresh."""
        xml = self._guest_xml(self._guest_spec(instance, image_meta, self._disks.present(instance.uuid), pci_devices))
        if power_on:
            self._disks.ensure_bases(instance, image_meta)
        self._replace_guest(instance, xml, power_on)

    def _guest_spec(self, instance: Any, image_meta: dict[str, Any], disks: tuple[GuestDisk, ...],
                    pci_devices: Iterable[Any]) -> GuestSpec:
        kernel, ramdisk = self._disks.kernel(instance)
        return GuestSpec(
            instance=instance, name=driver.guest_name(self._conf, instance), settings=self._settings,
            image_meta=image_meta, disks=disks, hostdevs=tuple(pci.host_devices(pci_devices)),
            console_log=self._disks.directory(instance.uuid).file(CONSOLE), kernel=kernel, ramdisk=ramdisk)

    def _guest_xml(self, guest: GuestSpec) -> str:
        uuid = guest.instance.uuid
        LOG.debug('Start _get_guest_xml disks=%s image_meta=%s', guest.disks, guest.image_meta, instance_uuid=uuid)
        xml = builder.build(guest).to_xml()
        LOG.debug('End _get_guest_xml xml=%s', xml, instance_uuid=uuid)
        return xml

    def _replace_guest(self, instance: Any, xml: str, power_on: bool) -> Guest:
        """Define ``xml`` in place of whatever domain the server has, and start it if asked.

        Defining over a running domain would change its next start only, so it is stopped first.
        """
        old = self._host.find(instance.uuid)
        if old is not None:
            old.destroy()
            if old.name != driver.guest_name(self._conf, instance):
                old.undefine()
        guest = self._host.define(xml, instance.uuid)
        if power_on:
            guest.start()
        self._show_domain(instance, guest)
        return guest

    def _show_domain(self, instance: Any, guest: Guest) -> None:
        directory = self._disks.directory(instance.uuid)
        if directory.is_of(self._host.name):
            directory.show_domain(guest.xml())

    def _hide_domain(self, instance: Any) -> None:
        directory = self._disks.directory(instance.uuid)
        if directory.is_of(self._host.name):
            directory.hide_domain()

    def _forget(self, instance: Any) -> bool:
        """Stop and undefine the domain, if there is one, and take its XML away; whether there was one."""
        guest = self._host.find(instance.uuid)
        if guest is not None:
            guest.destroy()
            guest.undefine()
            self._hide_domain(instance)
        return guest is not None

    def _forget_if_made(self, instance: Any) -> bool:
        """``_forget`` for undos: a guest that was never made here needs no hypervisor. Its directory is made before
        its domain and goes after it."""
        try:
            return self._forget(instance)
        except driver.HypervisorUnavailable as error:
            if any(map(os.path.lexists, self._own_directories(instance.uuid))):
                raise
            LOG.info('Nothing of the instance is here; the hypervisor was not asked: %s', error,
                     instance_uuid=instance.uuid)
            return False
