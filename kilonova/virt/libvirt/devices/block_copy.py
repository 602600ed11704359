"""Copies of a running guest's disk to other storage, which the guest can then use: libvirt's block copy.

    begin(guest, 'vdb', '<disk …>')             # False: this hypervisor cannot copy disks
    state(guest.xml(), 'vdb')                   # COPYING, READY, or None if there is no copy
    pivot(guest, 'vdb')                         # or end(guest, 'vdb')

When the copy is ready, each write of the guest goes to the disk and to the copy before the guest gets the confirmation.
"""

from __future__ import annotations

from xml.etree import ElementTree

import libvirt

from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.guests import GuestFailed

COPYING, READY = 'copying', 'ready'
# Flags for a copy to an existing target. TRANSIENT_JOB means that libvirt ends the copy job when the guest stops.
_FLAGS = (
    libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT
    | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    | libvirt.VIR_DOMAIN_BLOCK_COPY_SYNCHRONOUS_WRITES
)


def begin(guest: Guest, target: str, disk: str) -> bool:
    """Start to copy the guest's disk ``target``, such as 'vdb', to the storage that ``disk`` (XML) describes.

    Return False if this hypervisor cannot copy disks. Raises GuestFailed if the copy cannot be started.
    """
    try:
        guest.call('blockCopy', target, disk, None, _FLAGS)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
            return False
        # Ignore the error if the copy is running: the first call's answer was lost, and only its repetition failed.
        if state(guest.xml(), target) is None:
            raise GuestFailed(act=f'copy disk {target} of', uuid=guest.uuid, reason=str(error)) from error
    return True


def state(xml: str, target: str) -> str | None:
    """Return the state of the copy job of the disk ``target``: COPYING, READY, or None if there is no job."""
    mirror = _mirror(xml, target)
    if mirror is None:
        return None
    return READY if mirror.get('ready') == 'yes' else COPYING


def path(xml: str, target: str) -> str | None:
    """Return the path of the file or device of this host to which the disk ``target`` is copied.

    Return None if there is no copy, or if the copy is neither a file nor a device.
    """
    mirror = _mirror(xml, target)
    source = None if mirror is None else mirror.find('source')
    return None if source is None else source.get('dev') or source.get('file')


def pivot(guest: Guest, target: str) -> None:
    """Make the guest use the copy of its disk ``target`` instead of the original. Raises libvirt's errors."""
    guest.call_once('blockJobAbort', target, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)


def end(guest: Guest, target: str) -> None:
    """End the copy job of the guest's disk ``target``, if there is one. Raises GuestFailed if it cannot be ended."""
    try:
        if state(guest.xml(), target) is not None:
            guest.call('blockJobAbort', target, 0)
    except libvirt.libvirtError as error:
        # Ignore the error if there is no copy job to end any more: the job has just ended, or the guest has stopped.
        if guest.is_active() and state(guest.xml(), target) is not None:
            raise GuestFailed(act=f'end the copy of disk {target} of', uuid=guest.uuid, reason=str(error)) from error


def _mirror(xml: str, target: str) -> ElementTree.Element | None:
    for disk in ElementTree.fromstring(xml).iterfind('devices/disk'):
        place = disk.find('target')
        if place is not None and place.get('dev') == target:
            return disk.find('mirror')
    return None
