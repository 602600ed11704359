"""One libvirt domain: its state, its XML, and operations such as start and stop. Each operation is safe to repeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.states import PowerState
from kilonova.virt.libvirt import causes
from kilonova.virt.libvirt.devices.hotplug_xml import of_host
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)
T = TypeVar('T')

# Time limit in seconds for an answer of the guest's agent.
_AGENT_WAIT = 60

POWER_STATES = {
    libvirt.VIR_DOMAIN_NOSTATE: PowerState.NOSTATE,
    libvirt.VIR_DOMAIN_RUNNING: PowerState.RUNNING,
    # A guest that waits for a CPU or for I/O is running.
    libvirt.VIR_DOMAIN_BLOCKED: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: PowerState.PAUSED,
    # A guest that is just shutting down is still on, but Nova reports it as SHUTDOWN.
    libvirt.VIR_DOMAIN_SHUTDOWN: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_SHUTOFF: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_CRASHED: PowerState.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: PowerState.SUSPENDED,
}


class Connected(Protocol):
    """The methods of ``connection.Connection`` that a guest uses."""

    # True if the hypervisor is libvirt's test driver.
    is_test: bool

    def do(self, act: Callable[[libvirt.virConnect], T], again: bool = True) -> T:
        """Call ``act(connection)``, and repeat it once if the connection was lost, unless ``again`` is False."""


class Guest:
    """A domain of libvirt. It existed when it was looked up, and may have been deleted since."""

    def __init__(self, host: Connected, domain: libvirt.virDomain) -> None:
        self._host, self._domain = host, domain
        self.uuid: str = domain.UUIDString()
        self.name: str = domain.name()

    def call(self, method: str, *args: str | int | None) -> Any:
        """Call a method of the domain. Repeat the call once if the connection was lost."""
        return self._host.do(lambda connection: getattr(self._on(connection), method)(*args))

    def call_once(self, method: str, *args: str | int | dict[str, Any] | None) -> Any:
        """Call a method of the domain and do not repeat it.

        Raises HypervisorUnavailable if the connection was lost and it is not known whether the call was executed.
        """
        return self._host.do(lambda connection: getattr(self._on(connection), method)(*args), again=False)

    def _on(self, connection: libvirt.virConnect) -> libvirt.virDomain:
        """Return the domain as an object of ``connection``.

        The domain is looked up again if its current object belongs to another connection.
        """
        domain = self._domain
        if domain.connect() is not connection:
            self._domain = domain = connection.lookupByUUIDString(self.uuid)
        return domain

    def _gone(self, error: libvirt.libvirtError) -> bool:
        return error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)

    def power_state(self) -> PowerState:
        """Return the guest's power state.

        The state is SHUTDOWN if the domain no longer exists, and SUSPENDED if the guest is off and its memory is saved.
        """
        try:
            state, _reason = self.call('state')
            if state == libvirt.VIR_DOMAIN_SHUTOFF and self.is_saved():
                return PowerState.SUSPENDED
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise
            return PowerState.SHUTDOWN
        return POWER_STATES[state]

    def is_saved(self) -> bool:
        """Return True if libvirt has the guest's saved memory, from which its next start continues."""
        return bool(self.call('hasManagedSaveImage', 0))

    def save(self) -> None:
        """Save the memory of the running guest and stop the guest.

        Raises GuestFailed if the memory cannot be saved. The guest is still running after this error.
        """
        try:
            self.call('managedSave', 0)
        except libvirt.libvirtError as error:
            # Ignore the error if the memory is saved: the first call's answer was lost, and only its repetition failed.
            if self.is_active() or not self.is_saved():
                raise GuestFailed(act='save', uuid=self.uuid, reason=str(error)) from error

    def forget_saved(self) -> None:
        """Delete the saved memory, so that the next start is a normal boot. Do nothing if there is none."""
        if self.is_saved():
            self.call('managedSaveRemove', 0)

    def is_active(self) -> bool:
        """Return True if the guest is running, paused or shutting down. In these states it uses its devices."""
        try:
            return bool(self.call('isActive'))
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise
            return False

    def xml(self) -> str:
        """Return the domain's current XML."""
        return str(self.call('XMLDesc', 0))

    def measured(self, method: str, *args: str | int) -> Any:
        """Call a method of the domain that returns statistics, and return its result.

        Return None if this hypervisor does not support the method.
        """
        try:
            return self.call(method, *args)
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (
                libvirt.VIR_ERR_NO_SUPPORT,
                libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
                libvirt.VIR_ERR_INVALID_ARG,
            ):
                raise
            return None

    def start(self, *, paused: bool = False) -> None:
        """Start the guest. With ``paused`` its CPUs are stopped until ``go_on`` is called.

        If the start fails, raises errors.DevicesFailed if the cause is a device of the guest, otherwise GuestFailed.
        """
        # libvirt's test driver cannot start a guest paused, so the guest is started and then paused.
        by_flag = paused and not self._host.is_test
        create = ('createWithFlags', libvirt.VIR_DOMAIN_START_PAUSED) if by_flag else ('create',)
        try:
            try:
                self.call_once(*create)
            except HypervisorUnavailable:
                # The guest may have been started before the connection was lost, so try again only if it is off.
                if not self.is_active():
                    self.call_once(*create)
        except libvirt.libvirtError as error:
            xml = self.xml()
            LOG.error('Error launching a defined domain with XML: %s', xml, instance_uuid=self.uuid)
            raise causes.failed('start', self.uuid, error, of_host(ElementTree.fromstring(xml))) from error
        if paused and not by_flag:
            self.hold()

    def destroy(self) -> None:
        """Power the guest off.

        Do nothing if the guest is off already. Raises GuestFailed if libvirt cannot power it off.
        """
        try:
            self.call('destroy')
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise GuestFailed(act='stop', uuid=self.uuid, reason=str(error)) from error

    def undefine(self) -> None:
        """Undefine the domain, which must not be active. Raises GuestFailed if libvirt refuses."""
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        if not self._host.is_test:
            flags |= libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
        try:
            self.call('undefineFlags', flags)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise GuestFailed(act='undefine', uuid=self.uuid, reason=str(error)) from error

    def hold(self) -> None:
        """Pause the guest: stop its CPUs.

        QEMU also flushes its writes to the disks. Raises GuestFailed if the guest is not paused afterwards.
        """
        try:
            self.call('suspend')
        except libvirt.libvirtError as error:
            if self.power_state() != PowerState.PAUSED:
                raise GuestFailed(act='pause', uuid=self.uuid, reason=str(error)) from error

    def go_on(self) -> None:
        """Resume a paused guest. Do nothing if it is off or running."""
        if self.power_state() == PowerState.PAUSED:
            try:
                self.call('resume')
            except libvirt.libvirtError as error:
                if not self._gone(error):
                    raise GuestFailed(act='resume', uuid=self.uuid, reason=str(error)) from error

    # -- calls to the agent in the guest ------------------------------------------------------------------------------

    def set_password(self, user: str, password: str) -> None:
        """Set a user's password in the guest, with the guest agent.

        Raises libvirt's errors, whose text may contain output of the agent.
        """
        self.bound_agent()
        self.call('setUserPassword', user, password, 0)

    def bound_agent(self) -> None:
        """Set a time limit for answers of the guest agent.

        Without this limit, libvirt waits forever for an agent that has received a command and does not answer.
        """
        self.measured('agentSetResponseTimeout', _AGENT_WAIT, 0)

    # -- copying a disk while the guest runs ---------------------------------------------------------------------------

    def begin_copy(self, disk: str, target: str) -> bool:
        """Start to copy a running guest's disk to the new qcow2 file ``target``. Return False if QEMU refuses.

        ``disk`` is the path of the disk's file. The copy has the content that the disk has at the start, because QEMU
        keeps a copy of each block that the guest overwrites in the meantime.
        """
        try:
            self.call('backupBegin', _backup(ElementTree.fromstring(self.xml()), disk, target), None, 0)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                LOG.warning('The disk cannot be copied while the guest runs: %s', error, instance_uuid=self.uuid)
            # If the copy is running, the first call has started it: its answer was lost, only its repetition failed.
            return self.is_copying(target)
        return True

    def is_copying(self, target: str) -> bool:
        """Return True if a copy of a disk to the file ``target`` is in progress."""
        try:
            targets = ElementTree.fromstring(self.call('backupGetXMLDesc', 0)).iterfind('disks/disk/target')
        except libvirt.libvirtError as error:
            if not self._gone(error) and error.get_error_code() not in (
                libvirt.VIR_ERR_NO_DOMAIN_BACKUP,
                libvirt.VIR_ERR_NO_SUPPORT,
            ):
                raise
            return False
        return any(found.get('file') == target for found in targets)

    def has_copied(self) -> bool:
        """Return True if the most recent disk copy of the guest has ended and was successful."""
        try:
            return bool(self.call('jobStats', libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED).get('success'))
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise
            return False

    def end_copy(self, target: str) -> None:
        """Stop the copy of a disk to the file ``target`` and wait until it has ended. Do nothing if there is none."""
        while self.is_copying(target):
            try:
                self.call('abortJob')
            except libvirt.libvirtError as error:
                # Ignore the error if it means that there is no job to abort: the copy has just ended.
                if not self._gone(error):
                    raise GuestFailed(act='end the disk copy of', uuid=self.uuid, reason=str(error)) from error
            time.sleep(0.1)

    def shut_down(self, timeout: int, retry_interval: int = 0) -> bool:
        """Request a shutdown of the guest and wait up to ``timeout`` seconds. Return True if the guest is off.

        The request is repeated every ``retry_interval`` seconds. With 0 it is sent only once.
        """
        begun = time.monotonic()
        asked, pause = begun, 0.05
        self._ask_to_go()
        while self.is_active():
            now = time.monotonic()
            if now - begun >= timeout:
                LOG.info('Instance failed to shutdown in %d seconds.', timeout, instance_uuid=self.uuid)
                return False
            if retry_interval and now - asked >= retry_interval:
                self._ask_to_go()
                asked = now
            time.sleep(min(pause, 1.0, begun + timeout - now))
            pause *= 2
        LOG.info('Instance shutdown successfully after %d seconds.', time.monotonic() - begun, instance_uuid=self.uuid)
        return True

    def _ask_to_go(self) -> None:
        try:
            self.call('shutdown')
        except libvirt.libvirtError as error:
            # A guest without ACPI cannot receive the request. It stays on, and ``shut_down`` will return False.
            LOG.debug('Guest %s did not accept the shutdown request: %s', self.uuid, error, instance_uuid=self.uuid)


def _backup(domain: ElementTree.Element, disk: str, target: str) -> str:
    """Return the XML that requests a backup from libvirt: a copy of the disk with the file ``disk`` to ``target``."""
    backup = ElementTree.Element('domainbackup', mode='push')
    disks = ElementTree.SubElement(backup, 'disks')
    for found in domain.iterfind('devices/disk'):
        source, place = found.find('source'), found.find('target')
        if place is None:
            continue
        if source is None or source.get('file') != disk:
            ElementTree.SubElement(disks, 'disk', name=place.get('dev', ''), backup='no')
            continue
        wanted = ElementTree.SubElement(disks, 'disk', name=place.get('dev', ''), backup='yes', type='file')
        ElementTree.SubElement(wanted, 'driver', type='qcow2')
        ElementTree.SubElement(wanted, 'target', file=target)
    return ElementTree.tostring(backup, encoding='unicode')
