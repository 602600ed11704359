"""Domains as guests, power and moves need them: built from a server, its disks and devices, put in place, forgotten.

    xml = domains.prepare(domains.spec(instance, image_meta, disks, pci_devices))
    domains.replace(instance, xml, power_on=True)

What libvirt holds of a domain can be read in its server's directory, libvirt.xml.
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
from kilonova.virt.libvirt.devices.elements import VOLUMES
from kilonova.virt.libvirt.devices.mdev import MediatedDevices
from kilonova.virt.libvirt.devices.plugs import Plugs
from kilonova.virt.libvirt.domain import builder, interface
from kilonova.virt.libvirt.domain import volume as volumes
from kilonova.virt.libvirt.domain.disk import VolumePlace, layout
from kilonova.virt.libvirt.domain.guest import GuestDisk, GuestSpec, GuestVolume
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import Host
from kilonova.virt.libvirt.storage import rescue
from kilonova.virt.libvirt.storage.instance import CONSOLE
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volumes import HostVolumes
from kilonova.virt.libvirt.xml import to_text
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import Plugged
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.live_migrations import LivePlace

LOG = logging.getLogger(__name__)


class Domains:
    """The domains of one host's servers, and in ``plugs`` those of their ports that it connects itself."""

    def __init__(self, conf: cfg.ConfigOpts, connection: Connection, host: Host, disks: ServerDisks,
                 volumes: HostVolumes, mediated: MediatedDevices, plugs: Plugs) -> None:
        self._conf, self._libvirt, self._host, self._disks = conf, connection, host, disks
        self._volumes, self._mediated, self.plugs = volumes, mediated, plugs

    @functools.cached_property
    def _serial_ports(self) -> SerialPorts:
        options = self._conf.serial_console
        return SerialPorts(options.port_range, options.proxyclient_address, self._ports_of_domains)

    def _ports_of_domains(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for guest in self._libvirt.guests():
            with contextlib.suppress(libvirt.libvirtError):     # deleted since the list was made
                found[guest.uuid] = serial_ports(ElementTree.fromstring(guest.xml()))
        return found

    def build(self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice],
              power_on: bool, plugged: Plugged | None = None) -> None:
        """The domain of a server that has its disks here, made afresh; it starts from them, rescued or not."""
        spec = self.spec(instance, image_meta, self._disks.present(instance), pci_devices)
        xml = self.prepare(spec)
        if power_on:
            self._disks.ensure_bases(instance, image_meta)
        self.note(instance, spec, self.replace(instance, xml, power_on, plugged))
        rescue.forget(self._disks, instance.uuid)

    def spec(self, instance: objects.Instance, image_meta: ImageMeta, disks: tuple[GuestDisk, ...],
             pci_devices: Iterable[objects.PciDevice]) -> GuestSpec:
        """All that a domain is made from; the server's volumes are connected. VolumeUnsupported."""
        connected = self._volumes.connected(instance)
        kernel, ramdisk = self._disks.kernel(instance)
        given, of_ports = functions.split(instance, pci_devices)
        guest = GuestSpec(
            instance=instance, name=driver.guest_name(self._conf, instance), settings=self._host.settings,
            image_meta=image_meta, disks=disks, volumes=connected, hostdevs=tuple(hostdevs.host_devices(given)),
            functions=functions.of(of_ports), ends=functions.ends(self._libvirt, instance.vifs, of_ports),
            console_log=self._disks.directory(instance.uuid).file(CONSOLE), kernel=kernel, ramdisk=ramdisk)
        if self._host.settings.consoles.serial is None:
            return guest
        return replace(guest, serial_tcp=self._serial_ports.take(instance.uuid, guest.tuning.serial_ports))

    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check what flavor and image ask for: see ``parts.guests.Guests.check``."""
        builder.build(self._bare(instance, image_meta), builder.ASKED)

    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        """Return where on this host the server's guest runs. Raises UnsupportedHardware, NotOnThisHost."""
        domain = builder.build(self._bare(instance, image_meta), builder.PLACE)
        return {'cpuset': domain.cpuset,
                'cputune': to_text(domain.cputune.element()) if domain.cputune is not None else None,
                'numatune': to_text(domain.numatune.element()) if domain.numatune is not None else None}

    def card(self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif,
             pci_devices: Iterable[objects.PciDevice]) -> str:
        """What a port is, as ``build`` makes it; a function is trusted or not. InterfaceUnsupported,
        UnsupportedHardware, GuestFailed."""
        _, of_ports = functions.split(instance, pci_devices)
        guest = replace(self._bare(instance, image_meta), functions=functions.of(of_ports),
                        ends=functions.ends(self._libvirt, [vif], of_ports))
        card = interface.card(guest, vif)
        functions.trust(instance, [vif], guest.functions)
        return to_text(card.element())

    def volume_places(self, instance: objects.Instance, image_meta: ImageMeta,
                      disks: tuple[GuestDisk, ...]) -> list[VolumePlace]:
        """Where a guest with these disks of its own has its server's volumes. ``disk_names.TooManyDiskDevices``,
        UnsupportedHardware."""
        return layout(replace(self._bare(instance, image_meta), disks=disks,
                                   volumes=tuple(map(GuestVolume, instance.volumes)))).volumes

    def volume_disk(self, instance: objects.Instance, image_meta: ImageMeta, given: GuestVolume,
                    guest: Guest) -> str:
        """A volume for a guest that is there: under its name, or if another disk has that, under one that is free.
        Errors: the same."""
        spec = replace(self._bare(instance, image_meta), volumes=(given,))
        texts = guest.xml(), guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        (place,) = layout(spec, set().union(*(_targets(text, given.volume.volume_id) for text in texts))).volumes
        return to_text(volumes.disk(spec, *place).element())

    def _bare(self, instance: objects.Instance, image_meta: ImageMeta) -> GuestSpec:
        return GuestSpec(instance=instance, name=driver.guest_name(self._conf, instance),
                         settings=self._host.settings, image_meta=image_meta)

    def change(self, guest: Guest, change: Callable[[str], str]) -> None:
        """What its next start makes of it, changed; what runs stays."""
        was = guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        wanted = change(was)
        if wanted != was:
            self._libvirt.define(wanted, guest.uuid)
        self.show(guest)

    def prepare(self, guest: GuestSpec) -> str:
        """A domain's definition; the mediated devices that it names are made, and its ports' functions are trusted or
        not. The server's domain and disks aren't touched. UnsupportedHardware, errors.PciDeviceUnsupportedHypervisor,
        MdevUnavailable; GuestFailed, InterfaceUnsupported: a function isn't trusted."""
        uuid = guest.instance.uuid
        LOG.debug('Start _get_guest_xml disks=%s image_meta=%s', guest.disks, guest.image_meta, instance_uuid=uuid)
        xml = builder.build(guest).to_xml()
        LOG.debug('End _get_guest_xml xml=%s', xml, instance_uuid=uuid)
        self._mediated.ensure(guest.hostdevs)
        functions.trust(guest.instance, guest.instance.vifs, guest.functions)
        return xml

    def prepare_devices(self, pci_devices: Iterable[objects.PciDevice]) -> None:
        """The same for a guest that goes on with the definition that it has. MdevUnavailable."""
        self._mediated.ensure(hostdevs.host_devices(pci_devices))

    def define_first(self, instance: objects.Instance, spec: GuestSpec, xml: str) -> None:
        """Define the domain before its disks are made: what libvirt can't do on this host it refuses now, and it gives
        out the addresses at which the guest will find what has tags, for the config drive."""
        self._disks.begin(instance.uuid)
        self.note(instance, spec, self._libvirt.define(xml, instance.uuid))

    def note(self, instance: objects.Instance, spec: GuestSpec, guest: Guest) -> None:
        """Know where the guest finds what has tags."""
        self._note(instance, guest, tags.of(spec.disks, [given.volume for given in spec.volumes]), instance.vifs)

    def note_volume(self, instance: objects.Instance, volume: AttachedVolume, guest: Guest) -> None:
        """A volume has come to a guest, or gone."""
        if volume.tag:
            tagged = tags.of(self._disks.present(instance), [*instance.volumes, volume])
            self._note(instance, guest, tagged, instance.vifs)

    def note_port(self, instance: objects.Instance, vif: Vif, guest: Guest) -> None:
        """The same of an interface."""
        if tags.told([vif]):
            others = [one for one in instance.vifs if one.id != vif.id]
            self._note(instance, guest, tags.of(self._disks.present(instance), instance.volumes), [*others, vif])

    def _note(self, instance: objects.Instance, guest: Guest, tagged: Mapping[str, str], vifs: Iterable[Vif]) -> None:
        told = tags.told(vifs)
        # What was noted before may have gone while the server was on no host.
        if tagged or told or getattr(instance, 'device_metadata', None) is not None:
            instance.device_metadata = tags.places(ElementTree.fromstring(guest.xml()), tagged, told)

    def replace(self, instance: objects.Instance, xml: str, power_on: bool,
                plugged: Plugged | None = None) -> Guest:
        """Define ``xml``, as ``prepare`` gave it, in place of whatever domain the server has, and start it if asked,
        its ports plugged; with ``plugged`` it is held until that returns. InterfaceFailed.

        Defining over a running domain would change its next start only, so it is stopped first; from saved memory it
        would not start anew.
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
        """Keep what libvirt holds of it for people to read."""
        directory = self._disks.directory(guest.uuid)
        if directory.is_of(self._libvirt.name):
            directory.show_domain(guest.xml())

    def hide(self, uuid: str) -> None:
        """Nothing is left to read."""
        directory = self._disks.directory(uuid)
        if directory.is_of(self._libvirt.name):
            directory.hide_domain()

    def forget(self, uuid: str) -> bool:
        """``remove``, and free the ports that it had on this host: of networks, and for its consoles."""
        found = self.remove(uuid)
        self._serial_ports.free(uuid)
        self.plugs.remove(uuid)
        return found

    def remove(self, uuid: str) -> bool:
        """Stop and undefine the domain, if there is one, and take its XML away; whether there was one."""
        guest = self._libvirt.find(uuid)
        if guest is not None:
            guest.destroy()
            guest.undefine()
            self.hide(uuid)
        return guest is not None

    def forget_if_made(self, uuid: str) -> None:
        """``forget`` for undos: a guest that was never made here needs no hypervisor. Its directory is made before
        its domain and goes after it."""
        try:
            if self.forget(uuid):
                LOG.info('Instance destroyed successfully.', instance_uuid=uuid)
        except HypervisorUnavailable as error:
            if any(map(os.path.lexists, self._disks.own_directories(uuid))):
                raise
            self.plugs.remove(uuid)
            LOG.info('Nothing of the instance is here; the hypervisor was not asked: %s', error, instance_uuid=uuid)


def _targets(xml: str, but: str) -> set[str]:
    """Names of a domain's disks; of all but one volume."""
    return {target.get('dev', '') for disk in ElementTree.fromstring(xml).iterfind('devices/disk')
            if VOLUMES.name(disk) != but and (target := disk.find('target')) is not None}
