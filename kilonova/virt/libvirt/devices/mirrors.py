"""A disk of a guest that runs is copied to another place, and then the guest has that: libvirt's block copy.

    begin(guest, 'vdb', '<disk …>')             # False: this hypervisor copies nothing
    state(guest.xml(), 'vdb')                   # COPYING, READY, None: there is no copy
    pivot(guest, 'vdb')                         # or end(guest, 'vdb')

Once it is ready the guest's writes go to both places before the guest is told that they are done.
"""
from __future__ import annotations

from xml.etree import ElementTree

import libvirt

from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.guests import GuestFailed

COPYING, READY = 'copying', 'ready'
# What is there already is written to; libvirt itself would not go on with it after the guest's end.
_FLAGS = (libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
          | libvirt.VIR_DOMAIN_BLOCK_COPY_SYNCHRONOUS_WRITES)


def begin(guest: Guest, target: str, disk: str) -> bool:
    """To where ``disk`` is, as XML. GuestFailed."""
    try:
        guest.call('blockCopy', target, disk, None, _FLAGS)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
            return False
        # Asked again after the connection was lost, it refuses a second copy.
        if state(guest.xml(), target) is None:
            raise GuestFailed(act=f'copy disk {target} of', uuid=guest.uuid, reason=str(error)) from error
    return True


def state(xml: str, target: str) -> str | None:
    """Of a domain, whose disk has that name."""
    mirror = _mirror(xml, target)
    if mirror is None:
        return None
    return READY if mirror.get('ready') == 'yes' else COPYING


def path(xml: str, target: str) -> str | None:
    """Where on the host the copy is, if there is one and it is a file or a device."""
    mirror = _mirror(xml, target)
    source = None if mirror is None else mirror.find('source')
    return None if source is None else source.get('dev') or source.get('file')


def pivot(guest: Guest, target: str) -> None:
    """The guest has the copy when this returns; libvirt's errors."""
    guest.call_once('blockJobAbort', target, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)


def end(guest: Guest, target: str) -> None:
    """There is no copy when this returns. GuestFailed."""
    try:
        if state(guest.xml(), target) is not None:
            guest.call('blockJobAbort', target, 0)
    except libvirt.libvirtError as error:
        # It may have ended just now.
        if guest.is_active() and state(guest.xml(), target) is not None:
            raise GuestFailed(act=f'end the copy of disk {target} of', uuid=guest.uuid,
                              reason=str(error)) from error


def _mirror(xml: str, target: str) -> ElementTree.Element | None:
    for disk in ElementTree.fromstring(xml).iterfind('devices/disk'):
        place = disk.find('target')
        if place is not None and place.get('dev') == target:
            return disk.find('mirror')
    return None
