"""A domain that goes to another libvirt: what is asked of one side's libvirt, and what the other side gets.

    call = Call(guest, uri, parameters, flags)       # lasts as long as the migration
    outgoing(guest)                                  # its numbers, None when it is over
    has_gone(guest)                                  # it runs elsewhere
"""
from __future__ import annotations

import enum
import os
import re
import time
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova import concurrency, errors
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.elements import VOLUMES, of_host
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.live_migrations import LivePlace, PlacedOffer

LOG = logging.getLogger(__name__)

# States of a guest whose post-copy broke off, at the source and at the destination.
_BROKEN_HERE = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED
_BROKEN = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED), _BROKEN_HERE
_POST_COPIED = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
# Go on with a post-copy that broke off (VIR_MIGRATE_POSTCOPY_RESUME, of libvirt 8.5).
RESUME = 1 << 19
# How often the numbers of a job are asked for, and the seconds between two times.
TRIES, AGAIN = 5, 0.2

_GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)


class PostCopy(enum.Enum):
    """What became of a switch to post-copy."""

    BEGUN = 'begun'
    TOO_EARLY = 'too early'
    IMPOSSIBLE = 'impossible'


class PostCopyRefused(Exception):
    """The destination can't take a guest by post-copy."""


class Call:
    """The call that migrates, in a thread of its own: it lasts as long as the migration."""

    def __init__(self, guest: Guest, uri: str, parameters: dict[str, Any], flags: int) -> None:
        self.ended = False
        self.error: Exception | None = None
        self._guest, self._arguments = guest, (uri, parameters, flags)
        concurrency.spawn(self._run, name=f'migration of {guest.uuid}')

    def _run(self) -> None:
        try:
            self._guest.call_once('migrateToURI3', *self._arguments)
        except Exception as error:  # noqa: BLE001 - whoever follows it raises it
            self.error = error
        finally:
            self.ended = True


# -- what libvirt knows of it ---------------------------------------------------------------------------------------
def state(guest: Guest) -> tuple[int, int] | None:
    """libvirt's number of its state, and of the reason; None: it has gone meanwhile."""
    try:
        found, reason = guest.call('state')
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            raise
        return None
    return int(found), int(reason)


def _stats(guest: Guest) -> dict[str, int]:
    """Return the statistics of the guest's job; ask again when QEMU has none for a moment.

    libvirt says so by an internal error: "migration was active, but no RAM info was set".
    """
    for left in reversed(range(TRIES)):
        try:
            found: dict[str, int] = guest.call('jobStats', 0)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_INTERNAL_ERROR or not left:
                raise
            time.sleep(AGAIN)
        else:
            return found
    raise AssertionError


def _job(guest: Guest) -> dict[str, int] | None:
    """Return libvirt's numbers of what it does with the guest now ('operation', 'memory_total' …), None for nothing.

    Raises libvirtError if they can't be read.
    """
    try:
        found = _stats(guest)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_UNSUPPORTED:
            # All there is to know of a guest that arrives: only its source counts.
            return {'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN}
        if error.get_error_code() not in (*_GONE, libvirt.VIR_ERR_NO_SUPPORT):
            raise
        return None
    return found if found.get('type', libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE else None


def outgoing(guest: Guest) -> dict[str, int] | None:
    """The numbers of the migration of a guest that leaves this host; None: none runs, or its post-copy broke off."""
    job = _job(guest)
    if job is None or job.get('operation') != libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT:
        return None
    # libvirt keeps the job of one that broke off, for whoever goes on with it.
    if state(guest) == _BROKEN_HERE:
        return None
    return job


def has_arrived(guest: Guest) -> bool:
    """Whether it is here, and not only on its way. One that came by post-copy is from the switch on."""
    if state(guest) == _POST_COPIED or is_broken(guest):
        return True
    job = _job(guest)
    if job is not None and job.get('operation') == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN:
        return False
    return state(guest) not in (None, (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION))


def has_gone(guest: Guest | None) -> bool:
    """Whether libvirt knows that a guest is off here because it runs elsewhere."""
    return guest is not None and state(guest) == (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED)


def has_switched(guest: Guest) -> bool:
    """Whether it runs at the destination, with memory of which a part is still here."""
    return state(guest) in ((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY), _BROKEN_HERE)


def is_broken(guest: Guest) -> bool:
    """Whether it came here by post-copy, and a part of its memory did not."""
    return state(guest) in _BROKEN


def switch(guest: Guest) -> PostCopy:
    """Let a guest on its way run at the destination at once."""
    try:
        guest.call('migrateStartPostCopy', 0)
    except libvirt.libvirtError as error:
        # Only the texts differ: that of libvirt where it was begun without the flag, those of QEMU where it is too
        # early ("Postcopy must be started after migration has been started").
        known = error.get_error_code() in _GONE or 'postcopy' in str(error).lower()
        if known and 'VIR_MIGRATE_POSTCOPY' not in str(error):
            return PostCopy.TOO_EARLY
        LOG.warning('The guest can not be carried by post-copy: %s', error, instance_uuid=guest.uuid)
        return PostCopy.IMPOSSIBLE
    return PostCopy.BEGUN


def is_unknown(error: Exception) -> bool:
    """Whether the destination has no such guest any more: its QEMU died."""
    return isinstance(error, libvirt.libvirtError) and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN


def refuses_post_copy(error: Exception) -> bool:
    """Whether a migration failed as its destination has no post-copy: QEMU's word for it, in libvirt's text."""
    return 'postcopy' in str(error).lower()


def allow_downtime(guest: Guest, milliseconds: int) -> None:
    """How long it may stand still for the rest of its memory; fine if it has gone meanwhile."""
    try:
        guest.call('migrateSetMaxDowntime', milliseconds, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            raise


def is_held(guest: Guest) -> bool:
    """Whether a migration that didn't come to its end holds it."""
    return state(guest) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)


def was_held(guest: Guest) -> bool:
    """Whether somebody held it: so does whoever forces a migration to its end."""
    return state(guest) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)


def abort(guest: Guest) -> None:
    """Ask for its end; fine if there is none, or it can't be ended any more."""
    try:
        guest.call('abortJob')
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            LOG.warning('The migration can not be ended: %s', error, instance_uuid=guest.uuid)


def lacks_cpu(connection: Connection, cpu: str, arch: str, machine: str | None, virt_type: str) -> str | None:
    """Why guests can't have that CPU (XML) here; None: they can, or the hypervisor can't tell."""
    try:
        connection.do(lambda raw: raw.compareHypervisorCPU(
            None, arch, machine, virt_type, cpu, libvirt.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE))
    except libvirt.libvirtError as error:
        # A model that is newer than this libvirt is an error, too.
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            return str(error)
        LOG.info('The hypervisor does not compare CPUs: %s', error)
    return None


# -- what the other side gets ---------------------------------------------------------------------------------------
def xml(guest: Guest, inactive: bool = False) -> str:
    """What another libvirt makes the guest from; ``inactive``: and keeps of it for its next start."""
    flags = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
    return str(guest.call('XMLDesc', flags | (libvirt.VIR_DOMAIN_XML_INACTIVE if inactive else 0)))


def rewritten(text: str, path: str, there: str, offer: PlacedOffer) -> str:
    """A domain whose files of directory ``path`` are in ``there``; which files its disks read from besides is what
    those at the destination say. Its screens listen, and its CPUs, its memory, its devices and its volumes are, where
    ``offer`` says. MigrationError: a device or a volume has no counterpart there."""
    domain = ElementTree.fromstring(text)
    below = path + os.sep
    for element in domain.iter():
        for name, value in element.attrib.items():
            if value.startswith(below):
                element.set(name, os.path.join(there, value.removeprefix(below)))
        if element.text and element.text.strip().startswith(below):
            element.text = os.path.join(there, element.text.strip().removeprefix(below))
    for one in domain.iterfind('devices/graphics'):
        address = offer['listen'].get(one.get('type', ''))
        if address:
            one.set('listen', address)
            for element in one.findall("listen[@type='address']"):
                element.set('address', address)
    for one in domain.iterfind('devices/disk'):
        for name in ('backingStore', 'mirror'):
            for found in one.findall(name):
                one.remove(found)
    _put(domain, offer['place'])
    _exchange(domain, offer.get('hostdevs', {}))
    _reconnect(domain, offer.get('volumes', {}))
    return ElementTree.tostring(domain, encoding='unicode')


def _put(domain: ElementTree.Element, place: LivePlace) -> None:
    """What the guest sees of its CPUs and cells stays as it is."""
    for vcpu in domain.iterfind('vcpu'):
        vcpu.attrib.pop('cpuset', None)
        if place['cpuset'] is not None:
            vcpu.set('cpuset', place['cpuset'])
    for name, text in (('cputune', place['cputune']), ('numatune', place['numatune'])):
        for one in domain.findall(name):
            domain.remove(one)
        if text is not None:
            domain.append(ElementTree.fromstring(text))


def _exchange(domain: ElementTree.Element, hostdevs: Mapping[str, str]) -> None:
    """What the guest sees of its devices, and where, stays as it is."""
    for old, element in of_host(domain).items():
        if old not in hostdevs:
            raise errors.MigrationError(reason=f'the destination has no device in place of {old}')
        address, new = element.find('source/address'), hostdevs[old]
        assert address is not None
        if element.get('type') == 'mdev':
            address.set('uuid', new)
        else:
            for name, value in zip(('domain', 'bus', 'slot', 'function'), re.split('[:.]', new), strict=True):
                address.set(name, f'0x{value}')


def _reconnect(domain: ElementTree.Element, volumes: Mapping[str, str]) -> None:
    """What the guest sees of its volumes, and where, stays as it is."""
    for disk in domain.iterfind('devices/disk'):
        volume_id = VOLUMES.name(disk)
        if volume_id is None:
            continue
        if volume_id not in volumes:
            raise errors.MigrationError(reason=f'the destination has not connected volume {volume_id}')
        there = ElementTree.fromstring(volumes[volume_id])
        disk.set('type', there.get('type', ''))
        for name in ('auth', 'source'):
            for one in disk.findall(name):
                disk.remove(one)
            disk.extend(there.findall(name))


def copied_disks(text: str, path: str) -> list[str]:
    """What the guest calls its disks whose files are in ``path`` and change: 'vda' …"""
    found = []
    for one in ElementTree.fromstring(text).iterfind('devices/disk'):
        source, target = one.find('source'), one.find('target')
        if (one.get('device', 'disk') == 'disk' and source is not None and target is not None
                and source.get('file', '').startswith(path + os.sep)):
            found.append(target.get('dev', ''))
    return found
