"""A domain that goes to another libvirt: what is asked of one side's libvirt, and what the other side gets.

    call = Call(guest, uri, parameters, flags)       # lasts as long as the migration
    outgoing(guest)                                  # its numbers, None when it is over
    has_gone(guest)                                  # it runs elsewhere
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova import concurrency
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.guest import Guest

LOG = logging.getLogger(__name__)

_GONE = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)


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


def _job(guest: Guest) -> dict[str, int] | None:
    """libvirt's numbers of what it does with the guest now: 'operation', 'memory_total' …; None: nothing."""
    try:
        found: dict[str, int] = guest.call('jobStats', 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_UNSUPPORTED:
            # All there is to know of a guest that arrives: only its source counts.
            return {'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN}
        if error.get_error_code() not in (*_GONE, libvirt.VIR_ERR_NO_SUPPORT):
            raise
        return None
    return found if found.get('type', libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE else None


def outgoing(guest: Guest) -> dict[str, int] | None:
    """The numbers of the migration of a guest that leaves this host."""
    job = _job(guest)
    if job is None or job.get('operation') != libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT:
        return None
    return job


def has_arrived(guest: Guest) -> bool:
    """Whether it is here, and not only on its way."""
    job = _job(guest)
    if job is not None and job.get('operation') == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN:
        return False
    return state(guest) not in (None, (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION))


def has_gone(guest: Guest | None) -> bool:
    """Whether libvirt knows that a guest is off here because it runs elsewhere."""
    return guest is not None and state(guest) == (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED)


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


def runs_cpu(connection: Connection, cpu: str, arch: str, machine: str | None, virt_type: str) -> bool:
    """Whether guests can have that CPU (XML) here; True where the hypervisor can't tell."""
    try:
        found = connection.do(lambda raw: raw.compareHypervisorCPU(None, arch, machine, virt_type, cpu, 0))
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            raise
        LOG.info('The hypervisor does not compare CPUs: %s', error)
        return True
    return bool(found != libvirt.VIR_CPU_COMPARE_INCOMPATIBLE)


# -- what the other side gets ---------------------------------------------------------------------------------------
def xml(guest: Guest, inactive: bool = False) -> str:
    """What another libvirt makes the guest from; ``inactive``: and keeps of it for its next start."""
    flags = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
    return str(guest.call('XMLDesc', flags | (libvirt.VIR_DOMAIN_XML_INACTIVE if inactive else 0)))


def rewritten(text: str, path: str, there: str, listen: Mapping[str, str]) -> str:
    """A domain whose files of directory ``path`` are in ``there``; which files its disks read from besides is what
    those at the destination say. ``listen``: its address there for each type of graphics."""
    domain = ElementTree.fromstring(text)
    below = path + os.sep
    for element in domain.iter():
        for name, value in element.attrib.items():
            if value.startswith(below):
                element.set(name, os.path.join(there, value.removeprefix(below)))
        if element.text and element.text.strip().startswith(below):
            element.text = os.path.join(there, element.text.strip().removeprefix(below))
    for one in domain.iterfind('devices/graphics'):
        address = listen.get(one.get('type', ''))
        if address:
            one.set('listen', address)
            for element in one.findall("listen[@type='address']"):
                element.set('address', address)
    for one in domain.iterfind('devices/disk'):
        for name in ('backingStore', 'mirror'):
            for found in one.findall(name):
                one.remove(found)
    return ElementTree.tostring(domain, encoding='unicode')


def copied_disks(text: str, path: str) -> list[str]:
    """What the guest calls its disks whose files are in ``path`` and change: 'vda' …"""
    found = []
    for one in ElementTree.fromstring(text).iterfind('devices/disk'):
        source, target = one.find('source'), one.find('target')
        if (one.get('device', 'disk') == 'disk' and source is not None and target is not None
                and source.get('file', '').startswith(path + os.sep)):
            found.append(target.get('dev', ''))
    return found
