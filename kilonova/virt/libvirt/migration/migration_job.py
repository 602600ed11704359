"""Calls of libvirt for a live migration, and the XML of the guest for the destination.

    call = MigrationCall(guest, uri, parameters, flags)  # lasts as long as the migration
    outgoing(guest)                                      # statistics of the migration; None when it is over
    has_gone(guest)                                      # True if the guest was migrated to another host

``transfer`` and ``live_migration`` use these functions.
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
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES, of_host
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.live_migrations import LivePlace, PlacedOffer

LOG = logging.getLogger(__name__)

# The (state, reason) of the guest on the source after a failed post-copy. The destination's guest may have it, too.
_BROKEN_HERE = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED
# After a failed post-copy, the guest on the destination has one of these two pairs (state, reason).
_BROKEN = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED), _BROKEN_HERE
_POST_COPIED = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
# Flag to continue a failed post-copy (VIR_MIGRATE_POSTCOPY_RESUME, since libvirt 8.5).
RESUME = 1 << 19
# Number of attempts to read a job's statistics, and seconds between two attempts.
TRIES, AGAIN = 5, 0.2

_GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)


class PostCopy(enum.Enum):
    """The result of a request to switch a live migration to post-copy."""

    BEGUN = 'begun'
    TOO_EARLY = 'too early'
    IMPOSSIBLE = 'impossible'


class PostCopyRefused(Exception):
    """The error of a migration with post-copy to a destination that does not support it.

    The migration is then started again without post-copy.
    """


class MigrationCall:
    """The libvirt call that migrates a guest, in a separate thread. The call lasts as long as the migration."""

    def __init__(self, guest: Guest, uri: str, parameters: dict[str, Any], flags: int) -> None:
        self.ended = False
        self.error: Exception | None = None
        self._guest, self._arguments = guest, (uri, parameters, flags)
        concurrency.spawn(self._run, name=f'migration of {guest.uuid}')

    def _run(self) -> None:
        try:
            self._guest.call_once('migrateToURI3', *self._arguments)
        except Exception as error:  # noqa: BLE001 - the supervising thread raises it
            self.error = error
        finally:
            self.ended = True


# -- state of the migration in libvirt ------------------------------------------------------------------------------
def state(guest: Guest) -> tuple[int, int] | None:
    """Return libvirt's numbers for the guest's state and for the reason of this state.

    Return None if the domain no longer exists.
    """
    try:
        found, reason = guest.call('state')
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            raise
        return None
    return int(found), int(reason)


def _stats(guest: Guest) -> dict[str, int]:
    """Return the statistics of the guest's job, with some retries, because QEMU may have none for a moment.

    In that case libvirt reports an internal error: "migration was active, but no RAM info was set".
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
    """Return the statistics of the guest's current job ('operation', 'memory_total' …), or None if there is no job.

    Raises libvirtError if they cannot be read.
    """
    try:
        found = _stats(guest)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_UNSUPPORTED:
            # jobStats fails with this error on the destination of a migration, because only the source has statistics.
            return {'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN}
        if error.get_error_code() not in (*_GONE, libvirt.VIR_ERR_NO_SUPPORT):
            raise
        return None
    return found if found.get('type', libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE else None


def outgoing(guest: Guest) -> dict[str, int] | None:
    """Return the statistics of a guest's migration from this host.

    Return None if no migration is running or if the post-copy of the migration failed.
    """
    job = _job(guest)
    if job is None or job.get('operation') != libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT:
        return None
    # After a failed post-copy, libvirt still lists the job, but nothing is transferred: no migration is running.
    if state(guest) == _BROKEN_HERE:
        return None
    return job


def has_arrived(guest: Guest) -> bool:
    """Return True if a guest that is being migrated to this host already runs here.

    After the switch to post-copy it runs here although a part of its memory is still missing.
    """
    if state(guest) == _POST_COPIED or is_broken(guest):
        return True
    job = _job(guest)
    if job is not None and job.get('operation') == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN:
        return False
    return state(guest) not in (None, (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION))


def has_gone(guest: Guest | None) -> bool:
    """Return True if libvirt reports that the guest is off on this host because it was migrated to another host."""
    return guest is not None and state(guest) == (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED)


def has_switched(guest: Guest) -> bool:
    """Return True if the guest already runs at the destination while a part of its memory is still on this host."""
    return state(guest) in ((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY), _BROKEN_HERE)


def is_broken(guest: Guest) -> bool:
    """Return True if the guest was migrated to this host, but its post-copy failed: a part of its memory is missing."""
    return state(guest) in _BROKEN


def switch(guest: Guest) -> PostCopy:
    """Switch the guest's migration to post-copy, so that the guest runs at the destination at once."""
    try:
        guest.call('migrateStartPostCopy', 0)
    except libvirt.libvirtError as error:
        # Two failures of a switch to post-copy have the same error code, so the texts of the errors are compared.
        # A text with VIR_MIGRATE_POSTCOPY means that the migration was begun without this flag and can never switch.
        # QEMU's text "Postcopy must be started after migration has been started" means: too early, try again later.
        # Any other text of QEMU means that this migration can never switch.
        text = str(error)
        known = error.get_error_code() in _GONE or 'must be started after migration has been started' in text
        if known and 'VIR_MIGRATE_POSTCOPY' not in text:
            return PostCopy.TOO_EARLY
        LOG.warning('Cannot switch the live migration to post-copy: %s', error, instance_uuid=guest.uuid)
        return PostCopy.IMPOSSIBLE
    return PostCopy.BEGUN


def is_unknown(error: Exception) -> bool:
    """Return True if ``error``, raised by a migration call on the source, means that the destination lost the guest.

    The destination's libvirt does not know the guest any more, because the guest's QEMU has ended there.
    """
    return isinstance(error, libvirt.libvirtError) and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN


def refuses_post_copy(error: Exception) -> bool:
    """Return True if the error's text means that the destination does not support post-copy."""
    return 'postcopy' in str(error).lower()


def allow_downtime(guest: Guest, milliseconds: int) -> None:
    """Set how many milliseconds the guest may be stopped while the rest of its memory is transferred.

    Do nothing if the guest has already been migrated.
    """
    try:
        guest.call('migrateSetMaxDowntime', milliseconds, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            raise


def is_held(guest: Guest) -> bool:
    """Return True if libvirt itself paused the guest for a migration, and the migration did not complete."""
    return state(guest) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)


def was_held(guest: Guest) -> bool:
    """Return True if a client of libvirt paused the guest, either for a user or to force its migration to complete.

    ``is_held`` is for the other case: libvirt itself paused the guest at the end of a migration.
    """
    return state(guest) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)


def abort(guest: Guest) -> None:
    """Request the end of a guest's migration. Do nothing if no migration is running. A failure is only logged."""
    try:
        guest.call('abortJob')
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _GONE:
            LOG.warning('Could not abort the live migration: %s', error, instance_uuid=guest.uuid)


def lacks_cpu(connection: Connection, cpu: str, arch: str, machine: str | None, virt_type: str) -> str | None:
    """Return why guests on this host can't have the CPU that the XML ``cpu`` describes.

    Return None if guests can have this CPU, or if the hypervisor does not support the comparison of CPUs.
    """
    try:
        connection.do(
            lambda raw: raw.compareHypervisorCPU(
                None, arch, machine, virt_type, cpu, libvirt.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE
            )
        )
    except libvirt.libvirtError as error:
        # These two codes mean that the hypervisor cannot compare CPUs. All others mean that guests cannot have the CPU.
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            return str(error)
        LOG.info('This hypervisor does not support CPU comparison; assuming that the CPU is compatible: %s', error)
    return None


# -- data that the source sends to the destination ------------------------------------------------------------------
def xml(guest: Guest, inactive: bool = False) -> str:
    """Return the running guest's XML in the form that libvirt accepts on another host (migratable XML).

    With ``inactive``, return the XML of the guest's persistent definition instead.
    """
    flags = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
    return str(guest.call('XMLDesc', flags | (libvirt.VIR_DOMAIN_XML_INACTIVE if inactive else 0)))


def rewritten(text: str, path: str, there: str, offer: PlacedOffer) -> str:
    """Return the domain's XML for the destination.

    The directory ``path`` in file names is replaced by ``there``. Backing files are left out, because libvirt reads
    their names from the disk files. ``offer`` has what the guest gets at the destination: listen addresses of consoles,
    host CPUs and memory, devices and volumes. Raises MigrationError if ``offer`` lacks a device or volume of the guest.
    """
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


def _put(domain: ElementTree.Element, placement: LivePlace) -> None:
    """Set in a domain's XML which CPUs and which memory of the destination the guest uses.

    The CPUs and NUMA cells that the guest sees are not changed.
    """
    for vcpu in domain.iterfind('vcpu'):
        vcpu.attrib.pop('cpuset', None)
        if placement['cpuset'] is not None:
            vcpu.set('cpuset', placement['cpuset'])
    for name, text in (('cputune', placement['cputune']), ('numatune', placement['numatune'])):
        for one in domain.findall(name):
            domain.remove(one)
        if text is not None:
            domain.append(ElementTree.fromstring(text))


def _exchange(domain: ElementTree.Element, hostdevs: Mapping[str, str]) -> None:
    """Replace the source host's devices in a domain's XML by devices of the destination.

    ``hostdevs`` is a dict from the address or uuid of a device to the address or uuid of its replacement. The addresses
    at which the guest sees the devices are not changed. Raises MigrationError if a device has no replacement.
    """
    for old, element in of_host(domain).items():
        if old not in hostdevs:
            raise errors.MigrationError(reason=f'the destination has no device to replace {old}')
        address, new = element.find('source/address'), hostdevs[old]
        assert address is not None
        if element.get('type') == 'mdev':
            address.set('uuid', new)
        else:
            for name, value in zip(('domain', 'bus', 'slot', 'function'), re.split('[:.]', new), strict=True):
                address.set(name, f'0x{value}')


def _reconnect(domain: ElementTree.Element, volumes: Mapping[str, str]) -> None:
    """Change a domain's XML so that each volume has the storage path or address of the destination host.

    ``volumes`` is a dict from volume id to a <disk> as XML, with the <source> at the destination. The guest sees the
    same volumes at the same addresses. Raises MigrationError if the destination has not connected a volume.
    """
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
    """Return the names of the writable disks in the guest ('vda' …) whose files are in the directory ``path``."""
    found = []
    for one in ElementTree.fromstring(text).iterfind('devices/disk'):
        source, target = one.find('source'), one.find('target')
        if (
            one.get('device', 'disk') == 'disk'
            and source is not None
            and target is not None
            and source.get('file', '').startswith(path + os.sep)
        ):
            found.append(target.get('dev', ''))
    return found
