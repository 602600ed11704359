"""Creation, deletion and status of guests, and their network cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.objects.vif import VHOST_USER, Vif
from kilonova.states import PowerState
from kilonova.virt.libvirt import consoles, diagnostics
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import hostdevs, hotplug_xml
from kilonova.virt.libvirt.devices.hotplug import Hotplug, maps_memory
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.storage import requested_disks as wishes
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import ConsoleAddress, DomainInfo, GuestFailed, Plugged

LOG = logging.getLogger(__name__)

# A dict from libvirt's error code to the text that users see if the guest agent did not set the password.
_AGENT = {
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE: 'the guest agent does not answer',
    libvirt.VIR_ERR_AGENT_UNSYNCED: 'the guest agent does not answer',
    libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED: 'the guest has no channel for a guest agent',
}


class LibvirtGuests:
    """Guests of one host. Implements ``parts.guests.Guests``.

    ``reached_at`` is a dict from console protocol to the address at which proxies reach the consoles.
    """

    def __init__(
        self,
        connection: Connection,
        host: LibvirtHost,
        disks: ServerDisks,
        volumes: HostVolumes,
        domains: Domains,
        hotplug: Hotplug,
        reached_at: Mapping[str, str],
    ) -> None:
        self._volumes, self._hotplug, self._reached_at = volumes, hotplug, reached_at
        self._libvirt, self._host, self._disks, self._domains = connection, host, disks, domains

    @translated
    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of all domains, running or not."""
        return [guest.uuid for guest in self._libvirt.guests()]

    @translated
    def describe(self) -> list[DomainInfo]:
        """Return uuid, name, power state and host devices of all domains of the host."""
        return [
            {
                'uuid': guest.uuid,
                'name': guest.name,
                'state': int(guest.power_state()),
                'hostdevs': hostdevs.given_to(domain),
            }
            for guest, domain in self._domains_there()
        ]

    @translated
    def holding(self, addresses: Collection[str]) -> list[DomainInfo]:
        """Return the domains that have any of these host devices."""
        found: list[DomainInfo] = []
        for guest, domain in self._domains_there():
            hostdevs_ = [one for one in hostdevs.given_to(domain) if one in addresses]
            if hostdevs_:
                found.append(
                    {'uuid': guest.uuid, 'name': guest.name, 'state': int(guest.power_state()), 'hostdevs': hostdevs_}
                )
        return found

    def _domains_there(self) -> Iterator[tuple[Guest, ElementTree.Element]]:
        """Yield each domain of the host with its XML."""
        for guest in self._libvirt.guests():
            try:
                xml = guest.xml()
            except libvirt.libvirtError as error:
                # The error VIR_ERR_NO_DOMAIN means that the guest was deleted after it was listed.
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise
                continue
            yield guest, ElementTree.fromstring(xml)

    @translated
    def get_info(self, instance: objects.Instance) -> int:
        """Return the guest's power state, which is SHUTDOWN if there is no domain."""
        guest = self._libvirt.find(instance.uuid)
        return int(guest.power_state() if guest else PowerState.SHUTDOWN)

    @translated
    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that guests of this host can have the hardware that flavor and image request. Changes nothing.

        Raises NotOnThisHost if another host may have the hardware, and UnsupportedHardware if no host can.
        """
        self._domains.check(instance, image_meta)

    @translated
    def spawn(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice] = (),
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
        block_devices: Iterable[objects.BlockDeviceMapping] = (),
        power_on: bool = True,
        plugged: Plugged | None = None,
    ) -> None:
        """Create a server's disks and domain, and start the guest if ``power_on`` is set.

        If ``plugged`` is given, the guest is started paused, ``plugged()`` is called, and the guest is resumed.
        """
        # 1. Make the domain's XML and create the guest's mediated devices.
        # An impossible request is refused in this step, before any disk is copied.
        asked = wishes.read(block_devices, instance.flavor)
        guest = self._domains.spec(instance, image_meta, self._disks.plan(instance, image_meta, asked), pci_devices)
        xml = self._domains.prepare(guest)
        # 2. Remove the guest of an earlier try, because it would use the disks that step 3 replaces.
        self._domains.remove(instance.uuid)
        # 3. Define the domain and create the disks.
        self._domains.define_first(instance, guest, xml)
        self._disks.create(instance, image_meta, admin_password=admin_password, files=files, asked=asked)
        # 4. Start the guest.
        self._domains.replace(instance, xml, power_on, plugged)
        LOG.debug('Guest created on hypervisor', instance_uuid=instance.uuid)
        LOG.info('Instance spawned successfully.', instance_uuid=instance.uuid)

    @translated
    def prepare_rebuild(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Check that ``rebuild`` is possible and fetch the image. The guest and its disks are not changed."""
        self._domains.prepare(
            self._domains.spec(instance, image_meta, self._disks.plan(instance, image_meta), pci_devices)
        )
        self._disks.fetch(instance, image_meta)

    @translated
    def rebuild(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        preserve_ephemeral: bool = False,
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Replace the server's disks and domain by new ones from the image. Start the guest if ``power_on`` is set."""
        guest = self._domains.spec(instance, image_meta, self._disks.plan(instance, image_meta), pci_devices)
        xml = self._domains.prepare(guest)
        # Remove the old guest before its disks are replaced.
        self._domains.remove(instance.uuid)
        self._domains.define_first(instance, guest, xml)
        self._disks.create(
            instance, image_meta, admin_password=admin_password, files=files, keep_ephemeral=preserve_ephemeral
        )
        self._domains.replace(instance, xml, power_on)
        LOG.info('Instance rebuilt successfully', instance_uuid=instance.uuid)

    @translated
    def attach_interface(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Plug a port into the running guest, and add the port to the guest's definition for its next starts.

        Do nothing if there is no guest.
        """
        guest, (kind, name) = self._libvirt.find(instance.uuid), hotplug_xml.of_port(vif)
        if guest is None:
            return
        card = self._domains.card(instance, image_meta, vif, pci_devices)
        if guest.is_active():
            if vif.type == VHOST_USER and not maps_memory(guest.xml()):
                raise GuestFailed(
                    act='attach a network card to',
                    uuid=instance.uuid,
                    reason=(
                        'its memory is not shared with the virtual switch, because it was started without vhostuser '
                        'ports'
                    ),
                )
            self._domains.plugs.add(instance, vif)
            self._hotplug.plug(guest, kind, card, name)
        self._domains.change(guest, lambda definition: kind.put(definition, card))
        self._domains.note_port(instance, vif, guest)
        LOG.info('Port %s is plugged into the guest', vif.id, instance_uuid=instance.uuid)

    @translated
    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Unplug a port from the guest and wait until the guest has released it.

        ``check()`` is called again and again during the wait. If it raises an exception, the wait ends.
        """
        guest, (kind, name) = self._libvirt.find(instance.uuid), hotplug_xml.of_port(vif)
        if guest is None:
            self._domains.plugs.remove(instance.uuid, [vif.id])
            return
        if guest.is_active():
            self._hotplug.unplug(guest, kind, name, check)
        self._domains.change(guest, lambda definition: kind.without(definition, name))
        self._domains.plugs.remove(instance.uuid, [vif.id])
        self._domains.note_port(instance, vif, guest)
        LOG.info('Port %s is no longer plugged into the guest', vif.id, instance_uuid=instance.uuid)

    @translated
    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Remove the domain and disconnect its volumes. Delete the server's disks if ``destroy_disks`` is set."""
        with self._volumes.given_back(instance, instance.volumes, force=True):
            self._domains.forget_if_made(instance.uuid)
        if destroy_disks:
            self._disks.remove(instance.uuid)

    @translated
    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Set the password of a user in the guest, with the QEMU guest agent.

        Raises errors.AdminPasswordNotSet if the guest does not run or the agent fails, and
        errors.AdminPasswordNotSupported if the hypervisor does not support it.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None or guest.power_state() != PowerState.RUNNING:
            raise errors.AdminPasswordNotSet(instance=instance.uuid, reason='it does not run')
        try:
            guest.set_password(user, password)
        except libvirt.libvirtError as error:
            code = error.get_error_code()
            if code == libvirt.VIR_ERR_NO_SUPPORT:
                raise errors.AdminPasswordNotSupported from None
            # Do not log or raise the agent's output, because it may contain the password.
            LOG.warning(
                'Could not set the password of user %s: libvirt error %d', user, code, instance_uuid=instance.uuid
            )
            raise errors.AdminPasswordNotSet(
                instance=instance.uuid, reason=_AGENT.get(code, 'error setting admin password')
            ) from None

    def get_console_output(self, instance: objects.Instance) -> str:
        """Return the end of the serial console's log, at most 100 KiB."""
        return self._disks.directory(instance.uuid).console()

    @translated
    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Return the address of a guest's console, or None if the guest is off or has no console of this protocol."""
        guest = self._libvirt.find(instance.uuid)
        if guest is None or not guest.is_active():
            return None
        found = consoles.find(ElementTree.fromstring(guest.xml()), protocol)
        return None if found is None else ConsoleAddress(self._reached_at[protocol], found.port, found.tls_port)

    @translated
    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """Return statistics of a running guest as a dict with libvirt's names."""
        return diagnostics.flat(self._measured(instance))

    @translated
    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """Return statistics of a running guest in the format that all drivers share."""
        return diagnostics.standard(self._measured(instance), instance, self._host.settings.virt_type)

    def _measured(self, instance: objects.Instance) -> diagnostics.Measured:
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            raise GuestFailed(
                act='read statistics of', uuid=instance.uuid, reason='the guest does not exist on this host'
            )
        return diagnostics.measure(guest)
