"""Devices that leave a running guest, and come: those of its host, network cards, volumes.

    hotplug = Hotplug(attempts=8, timeout=20)
    hotplug.take(guest, check)                       # memory of a guest that has none can be saved
    hotplug.give(guest, ['0000:08:00.0'])         # uuids of mediated devices, too
    hotplug.plug(guest, elements.CARDS, '<interface …', 'tap1eeb6c43-4f')
    hotplug.unplug(guest, elements.CARDS, 'tap1eeb6c43-4f', check)

A guest's system lets a device go when it is asked to, and says so later; what the guest's definition names stays there.
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
from kilonova.virt.libvirt.devices.elements import CARDS, FUNCTIONS, Kind, of_host
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.disks import Check
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)

# Seconds between two looks whether a device has gone.
_LOOK = 0.2
# Seconds after which a guest that could not be asked is asked again: a slot of q35 is busy for 5 s after each change.
_BUSY = 5.0
_BUSY_WORDS = 'guest is busy'
_ASKED_WORDS = 'already in the process of unplug'


class Asked(enum.Enum):
    """What came of a request for a device: the guest has it, could not take it now, or this hypervisor knows none."""

    YES = 'yes'
    BUSY = 'busy'
    IMPOSSIBLE = 'impossible'


class Hotplug:
    """``attempts``: how often a guest is asked for its devices; ``timeout``: seconds that it has each time."""

    def __init__(self, attempts: int, timeout: float) -> None:
        self._attempts, self._timeout = attempts, timeout

    def take(self, guest: Guest, check: Check) -> None:
        """Ask for all devices of the host that it has and wait. GuestFailed when it keeps one; what ``check()`` raises
        ends the waiting.

        A hypervisor that knows no such request keeps them in the guest.
        """
        self._take(guest, check, _texts)

    def unplug(self, guest: Guest, kind: Kind, name: str, check: Check) -> None:
        """The same for one network card or volume."""
        self._take(guest, check, functools.partial(kind.found, name=name))

    def _take(self, guest: Guest, check: Check, texts: Callable[[str], dict[str, str]]) -> None:
        for _attempt in range(self._attempts):
            # All are asked for before the first is waited for.
            asked = {_detach(guest, xml) for xml in texts(guest.xml()).values()}
            if Asked.IMPOSSIBLE in asked:
                LOG.debug('This hypervisor takes no devices out of guests', instance_uuid=guest.uuid)
                return
            end = time.monotonic() + (min(self._timeout, _BUSY) if Asked.BUSY in asked else self._timeout)
            while kept := texts(guest.xml()):
                check()
                if time.monotonic() >= end:
                    break
                time.sleep(_LOOK)
            if not kept:
                return
            LOG.warning('The guest has not given up %s in time; it is asked again', ', '.join(kept),
                        instance_uuid=guest.uuid)
        raise GuestFailed(act='take the devices of', uuid=guest.uuid,
                          reason=f'its system does not give up {", ".join(kept)}')

    def give(self, guest: Guest, addresses: Iterable[str]) -> None:
        """Put those in that it lacks, as its definition has them. GuestFailed."""
        there, defined = _texts(guest.xml()), _defined(guest)
        for address in addresses:
            if address in there:
                continue
            if address not in defined:
                raise GuestFailed(act='give devices to', uuid=guest.uuid,
                                  reason=f'{address} is not in its definition')
            _attach(guest, address, defined[address])

    def plug(self, guest: Guest, kind: Kind, element: str, name: str) -> None:
        """Put a network card or volume into it, unless it has that. GuestFailed.

        A hypervisor that knows no such request leaves that to the guest's next start.
        """
        if kind.found(guest.xml(), name):
            return
        try:
            # Once: asked again after the connection was lost, it would get a second one.
            guest.call_once('attachDeviceFlags', element, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise causes.failed(f'give {kind.words} to', guest.uuid, error,
                                    [name] if kind is FUNCTIONS else ()) from error
            LOG.debug('This hypervisor puts no devices into guests', instance_uuid=guest.uuid)

    def give_back(self, guest: Guest) -> None:
        """All that its definition names, as far as it goes: for a guest that is to be as it was."""
        try:
            self.give(guest, _defined(guest))
        except Exception:
            LOG.exception('The guest runs without all its devices; a hard reboot gives them to it',
                          instance_uuid=guest.uuid)


def maps_memory(xml: str) -> bool:
    """Whether other processes may map a guest's memory."""
    return ElementTree.fromstring(xml).find("memoryBacking/access[@mode='shared']") is not None


def _defined(guest: Guest) -> dict[str, str]:
    """Those that its next start gives it."""
    return _texts(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE))


def _detach(guest: Guest, device: str) -> Asked:
    """Ask the guest for a device (its XML), which leaves later. Return what came of the request.

    Raises GuestFailed if the hypervisor refuses it for good.
    """
    try:
        guest.call('detachDeviceFlags', device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        code, said = error.get_error_code(), str(error)
        if code == libvirt.VIR_ERR_NO_SUPPORT:
            return Asked.IMPOSSIBLE
        # QEMU's own words, which libvirt passes on as an internal error.
        if _BUSY_WORDS in said:
            LOG.debug('The guest can not be asked for a device at the moment: %s', said, instance_uuid=guest.uuid)
            return Asked.BUSY
        # The guest has been asked already, or has let it go.
        if code not in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED) and _ASKED_WORDS not in said:
            raise GuestFailed(act='take a device of', uuid=guest.uuid, reason=said) from error
    return Asked.YES


def _attach(guest: Guest, name: str, device: str) -> None:
    try:
        guest.call('attachDeviceFlags', device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        raise causes.failed('give a device to', guest.uuid, error, [name]) from error


def _texts(xml: str) -> dict[str, str]:
    """{address or uuid: the <hostdev> as text} of a domain, and by their MAC addresses the cards that are vDPA, whose
    state QEMU can't save either."""
    domain = ElementTree.fromstring(xml)
    cards = {CARDS.name(one) or '': one for one in domain.iterfind("devices/interface[@type='vdpa']")}
    return {name: ElementTree.tostring(element, encoding='unicode')
            for name, element in {**of_host(domain), **cards}.items()}
