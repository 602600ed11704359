"""Domains of servers: build a domain from a server, its disks and its devices; define, replace and remove domains.

    xml = domains.prepare(domains.spec(instance, image_meta, disks, pci_devices))
    domains.replace(instance, xml, power_on=True)

Code for guests, power and moves uses the class ``Domains``. A copy of each domain's XML is in the server's directory,
in libvirt.xml.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from xml.etree import ElementTree

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.virt import driver
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.consoles import SerialPorts, serial_ports
from kilonova.virt.libvirt.devices import functions, hostdevs, tags
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs
from kilonova.virt.libvirt.devices.vif.plugs import Plugs
from kilonova.virt.libvirt.domain import builder, interface
from kilonova.virt.libvirt.domain import volume_disk as volumes
from kilonova.virt.libvirt.domain.disk import VolumePlace, layout
from kilonova.virt.libvirt.domain.guest import GuestDisk, GuestSpec, GuestVolume
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.storage import rescue
from kilonova.virt.libvirt.storage.instance import CONSOLE
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.libvirt.xml.base import to_text
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.live_migrations import LivePlace

LOG = logging.getLogger(__name__)


class Domains:
    """The domains of one host's servers.

    ``plugs`` connects ports to Open vSwitch before their guests start.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connection: Connection,
        host: LibvirtHost,
        disks: ServerDisks,
        volumes: HostVolumes,
        mediated: LibvirtMdevs,
        plugs: Plugs,
    ) -> None:
        self._conf, self._libvirt, self._host, self._disks = conf, connection, host, disks
        self._volumes, self._mediated, self.plugs = volumes, mediated, plugs

    @functools.cached_property
    def _serial_ports(self) -> SerialPorts:
        options = self._conf.serial_console
        return SerialPorts(options.port_range, options.proxyclient_address, self._ports_of_domains)

    def _ports_of_domains(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for guest in self._libvirt.guests():
            with contextlib.suppress(libvirt.libvirtError):  # the domain was deleted after it was listed
                found[guest.uuid] = serial_ports(ElementTree.fromstring(guest.xml()))
        return found

    def build(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Build and define the domain of a server whose disks are on this host. Start it if ``power_on`` is set.

        The server starts from its own disks. If it was rescued, the files of the rescue system are deleted. If
        ``plugged`` is given, the guest is started paused, ``plugged()`` is called, and the guest is resumed.
        """
        spec = self.spec(instance, image_meta, self._disks.present(instance), pci_devices)
        xml = self.prepare(spec)
        if power_on:
            self._disks.ensure_bases(instance, image_meta)
        self.note(instance, spec, self.replace(instance, xml, power_on, plugged))
        rescue.forget(self._disks, instance.uuid)

    def spec(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        disks: tuple[GuestDisk, ...],
        pci_devices: Iterable[objects.PciDevice],
    ) -> GuestSpec:
        """Connect the server's volumes to this host, and return all data from which the server's domain is built.

        ``disks`` are the guest's own disks. Raises VolumeUnsupported if a volume cannot be connected.
        """
        connected = self._volumes.connected(instance)
        kernel, ramdisk = self._disks.kernel(instance)
        given, of_ports = functions.split(instance, pci_devices)
        guest = GuestSpec(
            instance=instance,
            name=driver.guest_name(self._conf, instance),
            settings=self._host.settings,
            image_meta=image_meta,
            disks=disks,
            volumes=connected,
            hostdevs=tuple(hostdevs.host_devices(given)),
            functions=functions.of(of_ports),
            ends=functions.ends(self._libvirt, instance.vifs, of_ports),
            console_log=self._disks.directory(instance.uuid).file(CONSOLE),
            kernel=kernel,
            ramdisk=ramdisk,
        )
        if self._host.settings.consoles.serial is None:
            return guest
        return replace(guest, serial_tcp=self._serial_ports.take(instance.uuid, guest.tuning.serial_ports))

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that guests of this host can have the hardware that flavor and image request. Changes nothing.

        Raises NotOnThisHost if another host may have the hardware, and UnsupportedHardware if no host can.
        """
        builder.build(self._bare(instance, image_meta), builder.ASKED)

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return the host CPUs and the host memory that the server's guest will use on this host.

        Raises UnsupportedHardware or NotOnThisHost if a guest of this flavor and image cannot run here.
        """
        domain = builder.build(self._bare(instance, image_meta), builder.PLACE)
        return {
            'cpuset': domain.cpuset,
            'cputune': to_text(domain.cputune.element()) if domain.cputune is not None else None,
            'numatune': to_text(domain.numatune.element()) if domain.numatune is not None else None,
        }

    def card(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice]
    ) -> str:
        """Return the XML of a port's network card, and set the trust mode of the port's PCI function.

        The XML is the same as in a domain that ``build`` makes. Raises InterfaceUnsupported, UnsupportedHardware or
        GuestFailed if the port cannot be used.
        """
        _, of_ports = functions.split(instance, pci_devices)
        guest = replace(
            self._bare(instance, image_meta),
            functions=functions.of(of_ports),
            ends=functions.ends(self._libvirt, [vif], of_ports),
        )
        card = interface.card(guest, vif)
        functions.trust(instance, [vif], guest.functions)
        return to_text(card.element())

    def volume_places(
        self, instance: objects.Instance, image_meta: ImageMeta, disks: tuple[GuestDisk, ...]
    ) -> list[VolumePlace]:
        """Return the bus and the device name of each of the server's volumes.

        ``disks`` are the guest's own disks, whose device names the volumes cannot have. Raises
        ``disk_names.TooManyDiskDevices`` if there are too many disks, and UnsupportedHardware for an unknown bus.
        """
        return layout(
            replace(self._bare(instance, image_meta), disks=disks, volumes=tuple(map(GuestVolume, instance.volumes)))
        ).volumes

    def volume_disk(self, instance: objects.Instance, image_meta: ImageMeta, given: GuestVolume, guest: Guest) -> str:
        """Return the <disk> element, as XML, for the connected volume ``given`` in the existing guest ``guest``.

        The disk gets the volume's recorded device name, such as 'vdb', or a free name if another disk of the guest has
        this name. Raises TooManyDiskDevices if no name is free, and UnsupportedHardware for an unknown bus.
        """
        spec = replace(self._bare(instance, image_meta), volumes=(given,))
        texts = guest.xml(), guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        (place,) = layout(spec, set().union(*(_targets(text, given.volume.volume_id) for text in texts))).volumes
        return to_text(volumes.disk(spec, *place).element())

    def _bare(self, instance: objects.Instance, image_meta: ImageMeta) -> GuestSpec:
        return GuestSpec(
            instance=instance,
            name=driver.guest_name(self._conf, instance),
            settings=self._host.settings,
            image_meta=image_meta,
        )

    def change(self, guest: Guest, change: Callable[[str], str]) -> None:
        """Change the persistent definition of a guest, which libvirt uses at the guest's next start.

        ``change`` is a function that gets the definition as XML and returns the new one. The running guest is not
        changed.
        """
        was = guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        wanted = change(was)
        if wanted != was:
            self._libvirt.define(wanted, guest.uuid)
        self.show(guest)

    def prepare(self, guest: GuestSpec) -> str:
        """Create the guest's mediated devices, set its ports' functions to trusted or untrusted, and return the XML.

        The result is the XML for the server's domain. The existing domain and the disks are not changed.

        Raises:
            UnsupportedHardware: if no host supports the requested hardware.
            NotOnThisHost: if this host does not support the requested hardware.
            errors.PciDeviceUnsupportedHypervisor: if this hypervisor cannot pass devices through.
            MdevUnavailable: if a mediated device cannot be created.
            GuestFailed: if setting the trust mode of a function fails.
            InterfaceUnsupported: if a port's binding is not supported, or its function cannot be set to trusted.
        """
        uuid = guest.instance.uuid
        LOG.debug('Start _get_guest_xml disks=%s image_meta=%s', guest.disks, guest.image_meta, instance_uuid=uuid)
        xml = builder.build(guest).to_xml()
        LOG.debug('End _get_guest_xml xml=%s', xml, instance_uuid=uuid)
        self._mediated.ensure(guest.hostdevs)
        functions.trust(guest.instance, guest.instance.vifs, guest.functions)
        return xml

    def prepare_devices(self, pci_devices: Iterable[objects.PciDevice]) -> None:
        """Create the mediated devices among ``pci_devices``, for a guest that is resumed or arrives by live migration.

        For all other guests, ``prepare`` creates them. Raises MdevUnavailable if a device cannot be created.
        """
        self._mediated.ensure(hostdevs.host_devices(pci_devices))

    def define_first(self, instance: objects.Instance, spec: GuestSpec, xml: str) -> None:
        """Define the domain of a server before its disks are made.

        If the definition is impossible, libvirt refuses it before any disk is copied. libvirt also assigns the
        addresses of tagged devices here, so that they can be written to the config drive.
        """
        self._disks.begin(instance.uuid)
        self.note(instance, spec, self._libvirt.define(xml, instance.uuid))

    def note(self, instance: objects.Instance, spec: GuestSpec, guest: Guest) -> None:
        """Write the addresses of the guest's tagged devices to ``instance.device_metadata``."""
        self._note(instance, guest, tags.of(spec.disks, [given.volume for given in spec.volumes]), instance.vifs)

    def note_volume(self, instance: objects.Instance, volume: AttachedVolume, guest: Guest) -> None:
        """Update ``instance.device_metadata`` after a volume was attached to the guest or detached from it."""
        if volume.tag:
            tagged = tags.of(self._disks.present(instance), [*instance.volumes, volume])
            self._note(instance, guest, tagged, instance.vifs)

    def note_port(self, instance: objects.Instance, vif: Vif, guest: Guest) -> None:
        """Update ``instance.device_metadata`` after a port was attached to the guest or detached from it."""
        if tags.told([vif]):
            others = [one for one in instance.vifs if one.id != vif.id]
            self._note(instance, guest, tags.of(self._disks.present(instance), instance.volumes), [*others, vif])

    def _note(self, instance: objects.Instance, guest: Guest, tagged: Mapping[str, str], vifs: Iterable[Vif]) -> None:
        told = tags.told(vifs)
        # If no device is tagged any more, the ``device_metadata`` of an earlier call must be emptied.
        if tagged or told or getattr(instance, 'device_metadata', None) is not None:
            instance.device_metadata = tags.places(ElementTree.fromstring(guest.xml()), tagged, told)

    def replace(self, instance: objects.Instance, xml: str, power_on: bool, plugged: Plugged | None = None) -> Guest:
        """Define ``xml`` (a result of ``prepare``) in place of the server's domain. Start it if ``power_on`` is set.

        If the guest runs, it is stopped first. Its saved memory is deleted, so that it boots. Ports that this service
        itself connects to Open vSwitch are plugged before the start. If ``plugged`` is given, the guest is started
        paused, ``plugged()`` is called, and the guest is resumed. Raises InterfaceFailed if a port cannot be plugged.
        """
        old = self._libvirt.find(instance.uuid)
        if old is not None:
            old.destroy()
            old.forget_saved()
            if old.name != driver.guest_name(self._conf, instance):
                old.undefine()
        guest = self._libvirt.define(xml, instance.uuid)
        if power_on:
            self.plugs.renew(instance, instance.vifs)
        else:
            self.plugs.retain(instance.uuid, instance.vifs)
        if power_on:
            guest.start(paused=plugged is not None)
        self.show(guest)
        if power_on and plugged is not None:
            plugged()
            guest.go_on()
        return guest

    def show(self, guest: Guest) -> None:
        """Write the domain's XML to the file libvirt.xml in the server's directory, for operators to read."""
        directory = self._disks.directory(guest.uuid)
        if directory.is_of(self._libvirt.name):
            directory.show_domain(guest.xml())

    def hide(self, uuid: str) -> None:
        """Delete the file libvirt.xml in the server's directory."""
        directory = self._disks.directory(uuid)
        if directory.is_of(self._libvirt.name):
            directory.hide_domain()

    def forget(self, uuid: str) -> bool:
        """Remove the domain, release its TCP ports for consoles, and unplug its ports from Open vSwitch.

        Return True if there was a domain.
        """
        found = self.remove(uuid)
        self._serial_ports.free(uuid)
        self.plugs.remove(uuid)
        return found

    def remove(self, uuid: str) -> bool:
        """Stop and undefine the domain, and delete libvirt.xml. Return True if there was a domain."""
        guest = self._libvirt.find(uuid)
        if guest is not None:
            guest.destroy()
            guest.undefine()
            self.hide(uuid)
        return guest is not None

    def forget_if_made(self, uuid: str) -> None:
        """Undo an operation on this host: remove the domain, its TCP ports and its plugged ports, if they exist.

        A server's directory is created before its domain and deleted after it. So if libvirt does not answer, but the
        server has no directory on this host, there is no domain to remove. Raises HypervisorUnavailable if libvirt does
        not answer and the server has a directory on this host.
        """
        try:
            if self.forget(uuid):
                LOG.info('Instance destroyed successfully.', instance_uuid=uuid)
        except HypervisorUnavailable as error:
            if any(map(os.path.lexists, self._disks.own_directories(uuid))):
                raise
            self._serial_ports.free(uuid)
            self.plugs.remove(uuid)
            LOG.info(
                'libvirt does not answer, but the instance has no directory and thus no domain on this host: %s',
                error,
                instance_uuid=uuid,
            )


def _targets(xml: str, but: str) -> set[str]:
    """Return the device names ('vda', 'vdb') of a domain's disks. ``but`` is the id of a volume that is left out."""
    return {
        target.get('dev', '')
        for disk in ElementTree.fromstring(xml).iterfind('devices/disk')
        if VOLUMES.name(disk) != but and (target := disk.find('target')) is not None
    }
