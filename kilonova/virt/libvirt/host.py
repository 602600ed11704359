"""One libvirt host: checks at the start of the compute service, and the resources and traits that the host reports."""

from __future__ import annotations

import functools
import os
import shutil
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.pci.spec import DeviceSpecs
from kilonova.virt import command, identity
from kilonova.virt import inventory as shared_inventory
from kilonova.virt.hardware import cpu_features
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import pci
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs
from kilonova.virt.libvirt.devices.vif.plugs import Plugs
from kilonova.virt.libvirt.domain.guest import MACHINES, X86, GuestSettings
from kilonova.virt.libvirt.hostinfo import cpus, inventory, settings
from kilonova.virt.libvirt.hostinfo.capabilities import GuestCapabilities, HostCapabilities, of_guests, parse
from kilonova.virt.libvirt.storage.instance import InstanceDirectory
from kilonova.virt.libvirt.storage.move import DiskMover
from kilonova.virt.libvirt.storage.secrets import LibvirtSecrets
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.host import DriverMisconfigured, HypervisorUnavailable, Inventories, Listener

LOG = logging.getLogger(__name__)

# The oldest supported version of libvirt, as major * 1000000 + minor * 1000 + micro.
_OLDEST_LIBVIRT = 8000000
# The oldest versions of libvirt and QEMU that can live migrate guests with PCI devices (live_migratable).
_MOVES_DEVICES = 10000000, 8002002
# The oldest versions of libvirt and QEMU that can live migrate guests with mediated devices.
_MOVES_MDEVS = 8006000, 8001000


class LibvirtHost:
    """One libvirt host. Implements ``parts.host.Host``.

    The capabilities and settings for guests are read once, when they are first needed.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connection: Connection,
        disks: ServerDisks,
        mover: DiskMover,
        mediated: LibvirtMdevs,
        secrets: LibvirtSecrets,
        plugs: Plugs,
    ) -> None:
        self._conf, self._libvirt, self._disks, self._mover = conf, connection, disks, mover
        self._mediated, self._secrets, self._plugs = mediated, secrets, plugs

    def listen(self, listener: Listener) -> None:
        """Set the listener for events of guests and of the hypervisor."""
        self._libvirt.listen(listener)

    @translated
    def init_host(self) -> None:
        """Connect to libvirt, check the host's settings, and remove what a crash of this service left behind."""
        os.makedirs(self._conf.instances_path, exist_ok=True)
        self._disks.check_storage()
        self._mover.start()
        self._libvirt.connect()
        found = self._libvirt.libvirt_version()
        if found < _OLDEST_LIBVIRT:
            raise DriverMisconfigured(reason=f'libvirt {found} is too old, {_OLDEST_LIBVIRT} is needed')
        self._check_live_migratable(found)
        self._check_cpu_models()
        LOG.debug('Guest settings of this host: %s; CPUs for guests: %s', self.settings, self.offer)
        self._clear_leftovers()
        self._mediated.start_inactive()

    def _check_live_migratable(self, libvirt_version: int) -> None:
        """Raise DriverMisconfigured if libvirt or QEMU is too old to migrate devices that are marked live_migratable.

        With libvirt's test driver nothing is checked, because it migrates no devices.
        """
        if self._libvirt.is_test or not any(
            spec.tags.get('live_migratable') == 'true' for spec in DeviceSpecs.from_conf(self._conf).specs
        ):
            return
        for name, found, needed in (
            ('libvirt', libvirt_version, _MOVES_DEVICES[0]),
            ('QEMU', self._libvirt.version(), _MOVES_DEVICES[1]),
        ):
            if found < needed:
                raise DriverMisconfigured(
                    reason=f'[pci]device_spec has devices with live_migratable, for which {name} '
                    f'{found} is too old, {needed} is needed'
                )

    def check_moves_mdevs(self, end: str) -> None:
        """Raise errors.MigrationPreCheckError if this host's libvirt or QEMU is too old to migrate mediated devices.

        ``end`` is 'source' or 'destination', the role of this host in the error text.
        """
        for name, found, needed in (
            ('libvirt', self._libvirt.libvirt_version(), _MOVES_MDEVS[0]),
            ('QEMU', self._libvirt.version(), _MOVES_MDEVS[1]),
        ):
            if found < needed and not self._libvirt.is_test:
                raise errors.MigrationPreCheckError(
                    reason=f'{name} {found} of the {end} is too old to migrate mediated devices, {needed} is needed'
                )

    def _check_cpu_models(self) -> None:
        """Raise DriverMisconfigured if guests of this host cannot have a model of [libvirt]cpu_models.

        With libvirt's test driver nothing is checked, because it runs no guests.
        """
        made = self.settings
        for model in () if self._libvirt.is_test else made.cpu_models:
            machine = made.machines.get(made.arch) or MACHINES.get(made.arch)
            why = cpus.lacks(self._libvirt, model, made.arch, machine, made.virt_type)
            if why is not None:
                raise DriverMisconfigured(
                    reason=f'[libvirt]cpu_models has {model}, which this host does not support: {why}'
                )

    def _clear_leftovers(self) -> None:
        """Delete what earlier runs of the compute service left.

        The leftovers are directories whose deletion was interrupted, files libvirt.xml of domains that no longer exist,
        and secrets of volumes that no domain has. Ports of servers that have neither a domain nor disks on this host
        are unplugged. Directories of servers with a domain are recorded as owned by this host.
        """
        known, path = {guest.uuid for guest in self._libvirt.guests()}, self._conf.instances_path
        self._secrets.clear()
        self._plugs.clear(lambda uuid: uuid in known or any(map(os.path.lexists, self._disks.own_directories(uuid))))
        for name in self._disks.list_directories():
            if name.endswith('_del'):
                shutil.rmtree(os.path.join(path, name), ignore_errors=True)
            elif name not in known:
                InstanceDirectory(path, name).hide_domain()
            else:
                InstanceDirectory(path, name).own(self._libvirt.name)

    @functools.cached_property
    def capabilities(self) -> HostCapabilities:
        """The host's capabilities, as libvirt reports them.

        Raises HypervisorUnavailable if libvirt has no emulator for the host's architecture. This may be temporary: if
        libvirt could not examine the emulator, it tries it again when the capabilities are read the next time. So the
        error is not cached.
        """
        found = parse(self._libvirt.capabilities_xml(), test=self._libvirt.is_test)
        if found.arch not in dict(found.guests):
            raise HypervisorUnavailable(
                host=self._libvirt.name, reason=f'libvirt found no emulator for guests of architecture {found.arch}'
            )
        return found

    @functools.cached_property
    def guest_capabilities(self) -> GuestCapabilities:
        """The hardware that guests can have on this host."""
        arch = self.capabilities.arch
        return of_guests(self._libvirt, arch, self._conf.libvirt.virt_type, settings.machine_types(self._conf, arch))

    @functools.cached_property
    def offer(self) -> Offer:
        """The host's CPUs and memory pages that servers may use."""
        cells = inventory.cells(self._libvirt, self.capabilities)
        return Offer.read(
            self._conf, {cpu for cell in cells for cpu in cell.cpus} or set(range(self._libvirt.info()[2]))
        )

    @functools.cached_property
    def settings(self) -> GuestSettings:
        """The settings for the domain XML of guests. Raises DriverMisconfigured if the configuration is invalid."""
        return settings.read(
            self._conf,
            self.capabilities,
            test=self._libvirt.is_test,
            offer=self.offer,
            cells=inventory.cells(self._libvirt, self.capabilities),
            guests=self.guest_capabilities,
            features_of=lambda model: cpus.features(self._libvirt, self.capabilities.arch, model),
        )

    @functools.cached_property
    def _cpu_features(self) -> frozenset[str]:
        """The CPU features of guests on this host, as far as libvirt reports them.

        If [libvirt]cpu_models has several models, the result has each feature that at least one of them has.
        """
        made = self.settings
        found: frozenset[str] = frozenset()
        if made.guest_cpu_mode == 'custom':
            found = found.union(*made.cpu_models.values())
        elif made.guest_cpu_mode != 'none':
            found = cpus.of_host_model(self._libvirt, made.arch, MACHINES.get(made.arch, 'virt'), made.virt_type)
        flags = {
            policy: {name for name, chosen in made.cpu_flags if chosen == policy} for policy in ('require', 'disable')
        }
        return (found | flags['require']) - flags['disable']

    @translated
    def get_available_resource(self) -> dict[str, Any]:
        """Return the host's resources for the scheduler."""
        found = inventory.available(
            self._libvirt, self.capabilities, self._disks.room(), identity.node_uuid(self._conf.state_path), self.offer
        )
        if self._has_remote:
            pci.read_serials(found['pci_passthrough_devices'])
        return found

    @functools.cached_property
    def _has_remote(self) -> bool:
        """True if device_spec has devices with remote_managed, which are functions of a SmartNIC (DPU).

        The serial numbers of cards are read only if there are such devices, because reading them is slow.
        """
        return any(spec.remote_managed for spec in DeviceSpecs.from_conf(self._conf).specs)

    @translated
    def inventory(self, existing: Inventories | None = None) -> Inventories:
        """Return the Placement inventory of the host's root provider.

        ``existing`` is the provider's current inventory in Placement.
        """
        disk_gb = self._disks.room().total >> 30
        return shared_inventory.root(
            self._conf, len(self.offer.shared), self._libvirt.info()[1], disk_gb, existing, len(self.offer.dedicated)
        )

    @translated
    def traits(self) -> set[str]:
        """Return the traits of the host's root provider."""
        return inventory.traits(
            self._libvirt, self.capabilities, self.guest_capabilities, self.settings.address_spaces
        ) | (cpu_features.traits(self._cpu_features) if self.capabilities.arch in X86 else set())

    def uptime(self) -> str | None:
        """Return the output of the program uptime, or None if the program fails."""
        try:
            return command.run('uptime').removesuffix('\n')
        except command.CommandFailed as error:
            LOG.warning('Could not read the uptime of this host: %s', error)
            return None
