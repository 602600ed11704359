"""Hot plug and unplug of a running guest's devices: devices of its host, network cards, and volumes.

    hotplug = Hotplug(attempts=8, timeout=20)
    hotplug.take(guest, check)                    # before a suspend: QEMU cannot save a guest with host devices
    hotplug.give(guest, ['0000:08:00.0'])         # uuids of mediated devices are accepted, too
    hotplug.plug(guest, CARDS, '<interface …', 'tap1eeb6c43-4f')
    hotplug.unplug(guest, CARDS, 'tap1eeb6c43-4f', check)

A guest's operating system releases a device some time after the request to release it. The guest's persistent
definition is not changed.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable, Iterable
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.libvirt import causes
from kilonova.virt.libvirt.devices.hotplug_xml import CARDS, FUNCTIONS, ElementKind, of_host
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.disks import Check
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)

# Seconds between two checks whether a device was released.
_LOOK = 0.2
# Seconds until an unplug request is repeated, if QEMU has refused it because the guest is busy.
# After a device was plugged or unplugged, the PCI Express slot of a q35 guest is busy for 5 s.
_BUSY = 5.0
_BUSY_WORDS = 'guest is busy'
_ASKED_WORDS = 'already in the process of unplug'


class UnplugResult(enum.Enum):
    """The result of an unplug request: request accepted, guest busy, or unplug not supported by this hypervisor."""

    YES = 'yes'
    BUSY = 'busy'
    IMPOSSIBLE = 'impossible'


class Hotplug:
    """Hot plug and unplug of devices.

    An unplug request is sent up to ``attempts`` times. After each request, the guest has ``timeout`` seconds to release
    the device.
    """

    def __init__(self, attempts: int, timeout: float) -> None:
        self._attempts, self._timeout = attempts, timeout

    def take(self, guest: Guest, check: Check) -> None:
        """Unplug all devices of the host from the guest and wait until it has released them.

        If the hypervisor does not support hot unplug, the guest keeps the devices. ``check`` is called again and again
        during the wait, and an exception that it raises ends the wait. Raises GuestFailed if the guest does not release
        a device.
        """
        self._take(guest, check, _texts)

    def unplug(self, guest: Guest, kind: ElementKind, name: str, check: Check) -> None:
        """Unplug one network card or volume, and wait until the guest has released it.

        ``name`` identifies the device, for example 'tap1eeb6c43-4f'. Raises GuestFailed if the guest does not release
        it, and whatever ``check()`` raises during the wait.
        """
        self._take(guest, check, functools.partial(kind.found, name=name))

    def _take(self, guest: Guest, check: Check, texts: Callable[[str], dict[str, str]]) -> None:
        for _attempt in range(self._attempts):
            # Send the unplug requests for all devices first, so that the guest releases them at the same time.
            asked = {_detach(guest, xml) for xml in texts(guest.xml()).values()}
            if UnplugResult.IMPOSSIBLE in asked:
                LOG.debug(
                    'This hypervisor does not support hot unplug; the guest keeps its devices', instance_uuid=guest.uuid
                )
                return
            end = time.monotonic() + (min(self._timeout, _BUSY) if UnplugResult.BUSY in asked else self._timeout)
            while kept := texts(guest.xml()):
                check()
                if time.monotonic() >= end:
                    break
                time.sleep(_LOOK)
            if not kept:
                return
            LOG.warning(
                'The guest has not released %s in time; the unplug request is sent up to '
                '[libvirt]device_detach_attempts times',
                ', '.join(kept),
                instance_uuid=guest.uuid,
            )
        raise GuestFailed(
            act='detach devices from',
            uuid=guest.uuid,
            reason=f'the operating system of the guest does not release {", ".join(kept)}',
        )

    def give(self, guest: Guest, addresses: Iterable[str]) -> None:
        """Plug the devices with these addresses into the guest, unless the guest has them.

        The XML of each device is taken from the guest's persistent definition. Raises GuestFailed if a device is not in
        the definition or cannot be plugged in, and DevicesFailed if the device is faulty.
        """
        there, defined = _texts(guest.xml()), _defined(guest)
        for address in addresses:
            if address in there:
                continue
            if address not in defined:
                raise GuestFailed(
                    act='attach devices to', uuid=guest.uuid, reason=f'{address} is not in its domain definition'
                )
            _attach(guest, address, defined[address])

    def plug(self, guest: Guest, kind: ElementKind, element: str, name: str) -> None:
        """Plug a network card or volume into the guest, unless the guest has it.

        On a hypervisor without hot plug, the guest gets the device at its next start. Raises GuestFailed if the device
        cannot be plugged in, and DevicesFailed if it is a faulty PCI function.
        """
        if kind.found(guest.xml(), name):
            return
        try:
            # ``call_once`` does not repeat the call after a lost connection: this could plug in a second device.
            guest.call_once('attachDeviceFlags', element, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise causes.failed(
                    f'attach {kind.words} to', guest.uuid, error, [name] if kind is FUNCTIONS else ()
                ) from error
            LOG.debug(
                'This hypervisor does not support hot plug; the guest gets the device at its next start',
                instance_uuid=guest.uuid,
            )

    def give_back(self, guest: Guest) -> None:
        """Plug in again the host's devices that the guest's persistent definition has and the running guest lacks.

        A failure is only logged.
        """
        try:
            self.give(guest, _defined(guest))
        except Exception:
            LOG.exception(
                'Could not attach all devices to the guest again; a hard reboot of the server attaches them',
                instance_uuid=guest.uuid,
            )


def maps_memory(xml: str) -> bool:
    """Return True if the domain allows other processes to map the guest's memory."""
    return ElementTree.fromstring(xml).find("memoryBacking/access[@mode='shared']") is not None


def _defined(guest: Guest) -> dict[str, str]:
    """Return the host's devices in the guest's persistent definition, as a dict from identifier to XML text."""
    return _texts(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE))


def _detach(guest: Guest, device: str) -> UnplugResult:
    """Request the unplug of a device from a guest, which will release it later. ``device`` is the device's XML.

    Return the result of the request. Raises GuestFailed if libvirt refuses the request.
    """
    try:
        guest.call('detachDeviceFlags', device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        code, said = error.get_error_code(), str(error)
        if code == libvirt.VIR_ERR_NO_SUPPORT:
            return UnplugResult.IMPOSSIBLE
        # libvirt has no error code for a busy guest, so QEMU's error text is examined.
        if _BUSY_WORDS in said:
            LOG.debug('The guest is busy; the unplug request is sent again: %s', said, instance_uuid=guest.uuid)
            return UnplugResult.BUSY
        # Ignore errors that mean that the guest has already released the device, or was already asked to release it.
        if code not in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED) and _ASKED_WORDS not in said:
            raise GuestFailed(act='detach a device from', uuid=guest.uuid, reason=said) from error
    return UnplugResult.YES


def _attach(guest: Guest, name: str, device: str) -> None:
    try:
        guest.call('attachDeviceFlags', device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        raise causes.failed('attach a device to', guest.uuid, error, [name]) from error


def _texts(xml: str) -> dict[str, str]:
    """Return the host's devices in a domain's XML, as a dict from identifier to the device's XML element as text.

    The identifier is the address of a PCI function, the uuid of a mediated device, or the MAC address of a vDPA card.
    """
    domain = ElementTree.fromstring(xml)
    cards = {CARDS.name(one) or '': one for one in domain.iterfind("devices/interface[@type='vdpa']")}
    return {
        name: ElementTree.tostring(element, encoding='unicode')
        for name, element in {**of_host(domain), **cards}.items()
    }
