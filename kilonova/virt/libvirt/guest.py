"""One domain of libvirt: its state, its XML, and the acts on it, each fine to repeat."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.states import PowerState
from kilonova.virt.libvirt import causes
from kilonova.virt.libvirt.devices.elements import of_host
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)
T = TypeVar('T')

# Seconds that the agent in a guest has to answer.
_AGENT_WAIT = 60

POWER_STATES = {
    libvirt.VIR_DOMAIN_NOSTATE: PowerState.NOSTATE,
    libvirt.VIR_DOMAIN_RUNNING: PowerState.RUNNING,
    # A guest that waits for a CPU or for I/O runs.
    libvirt.VIR_DOMAIN_BLOCKED: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: PowerState.PAUSED,
    # Shutting down isn't down, but the field shows it so.
    libvirt.VIR_DOMAIN_SHUTDOWN: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_SHUTOFF: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_CRASHED: PowerState.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: PowerState.SUSPENDED,
}


class Connected(Protocol):
    """What a guest asks of libvirt (``connection.Connection``)."""

    # Whether libvirt's test driver plays the host.
    is_test: bool

    def do(self, act: Callable[[libvirt.virConnect], T], again: bool = True) -> T:
        """``act(connection)``, once more when the connection was lost, unless ``again`` is False."""


class Guest:
    """A domain that libvirt knew when it was looked up."""

    def __init__(self, host: Connected, domain: libvirt.virDomain) -> None:
        self._host, self._domain = host, domain
        self.uuid: str = domain.UUIDString()
        self.name: str = domain.name()

    def call(self, method: str, *args: str | int | None) -> Any:
        """Call a method of the domain; once more when the connection was lost."""
        return self._host.do(lambda connection: getattr(self._on(connection), method)(*args))

    def call_once(self, method: str, *args: str | int | dict[str, Any] | None) -> Any:
        """The same once: HypervisorUnavailable when nobody knows whether it was done."""
        return self._host.do(lambda connection: getattr(self._on(connection), method)(*args), again=False)

    def _on(self, connection: libvirt.virConnect) -> libvirt.virDomain:
        """The domain, as this connection knows it."""
        domain = self._domain
        if domain.connect() is not connection:
            self._domain = domain = connection.lookupByUUIDString(self.uuid)
        return domain

    def _gone(self, error: libvirt.libvirtError) -> bool:
        return error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)

    def power_state(self) -> PowerState:
        """SHUTDOWN too when the domain has gone meanwhile; SUSPENDED when its memory is saved."""
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
        """Whether its next start goes on from saved memory: [libvirt's save directory]/<domain>.save."""
        return bool(self.call('hasManagedSaveImage', 0))

    def save(self) -> None:
        """Save its memory while it runs, and stop it: it ``is_saved`` then. Raises GuestFailed; it runs on then."""
        try:
            self.call('managedSave', 0)
        except libvirt.libvirtError as error:
            # Asked again after the connection was lost, it may be saved already.
            if self.is_active() or not self.is_saved():
                raise GuestFailed(act='save', uuid=self.uuid, reason=str(error)) from error

    def forget_saved(self) -> None:
        """Its next start begins anew. Fine if nothing is saved."""
        if self.is_saved():
            self.call('managedSaveRemove', 0)

    def is_active(self) -> bool:
        """Whether it holds its devices: running, paused or on its way down."""
        try:
            return bool(self.call('isActive'))
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise
            return False

    def xml(self) -> str:
        """What libvirt holds of it now."""
        return str(self.call('XMLDesc', 0))

    def measured(self, method: str, *args: str | int) -> Any:
        """What a method of the domain counts; None where this hypervisor doesn't count that."""
        try:
            return self.call(method, *args)
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
                                              libvirt.VIR_ERR_INVALID_ARG):
                raise
            return None

    def start(self, *, paused: bool = False) -> None:
        """Start it. ``paused``: its CPUs stand still until it may ``go_on``.

        Raises errors.DevicesFailed where devices that it has are at fault, else GuestFailed with its cause.
        """
        # libvirt's test driver can't start it so.
        by_flag = paused and not self._host.is_test
        create = ('createWithFlags', libvirt.VIR_DOMAIN_START_PAUSED) if by_flag else ('create',)
        try:
            try:
                self.call_once(*create)
            except HypervisorUnavailable:
                # Nobody knows whether the daemon came so far.
                if not self.is_active():
                    self.call_once(*create)
        except libvirt.libvirtError as error:
            xml = self.xml()
            LOG.error('Error launching a defined domain with XML: %s', xml)
            raise causes.failed('start', self.uuid, error, of_host(ElementTree.fromstring(xml))) from error
        if paused and not by_flag:
            self.hold()

    def destroy(self) -> None:
        """Cut its power."""
        try:
            self.call('destroy')
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise GuestFailed(act='stop', uuid=self.uuid, reason=str(error)) from error

    def undefine(self) -> None:
        """Forget it; it must not be active."""
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        if not self._host.is_test:
            flags |= libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
        try:
            self.call('undefineFlags', flags)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise GuestFailed(act='undefine', uuid=self.uuid, reason=str(error)) from error

    def hold(self) -> None:
        """Stop its CPUs; QEMU writes out what it holds of the disks. Raises GuestFailed."""
        try:
            self.call('suspend')
        except libvirt.libvirtError as error:
            if self.power_state() != PowerState.PAUSED:
                raise GuestFailed(act='hold', uuid=self.uuid, reason=str(error)) from error

    def go_on(self) -> None:
        """Let a held guest run again; one that is off or runs stays so."""
        if self.power_state() == PowerState.PAUSED:
            try:
                self.call('resume')
            except libvirt.libvirtError as error:
                if not self._gone(error):
                    raise GuestFailed(act='resume', uuid=self.uuid, reason=str(error)) from error

    # -- the agent in it ----------------------------------------------------------------------------------------------

    def set_password(self, user: str, password: str) -> None:
        """The agent sets it; libvirt's errors, whose text may hold what the agent says."""
        self.bound_agent()
        self.call('setUserPassword', user, password, 0)

    def bound_agent(self) -> None:
        """libvirt would wait without end for an agent that took a command and doesn't answer."""
        self.measured('agentSetResponseTimeout', _AGENT_WAIT, 0)

    # -- a copy of a disk while it runs: QEMU keeps what the guest overwrites meanwhile, the disk stays as it is ------

    def begin_copy(self, disk: str, target: str) -> bool:
        """Let QEMU copy the disk of that file as it is now to ``target``, one new qcow2; False: it won't."""
        try:
            self.call('backupBegin', _backup(ElementTree.fromstring(self.xml()), disk, target), None, 0)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                LOG.warning('The disk can not be copied while the guest runs: %s', error, instance_uuid=self.uuid)
            # Asked again after the connection was lost, it refuses a second copy.
            return self.is_copying(target)
        return True

    def is_copying(self, target: str) -> bool:
        """Whether a copy to that file is being made."""
        try:
            targets = ElementTree.fromstring(self.call('backupGetXMLDesc', 0)).iterfind('disks/disk/target')
        except libvirt.libvirtError as error:
            if not self._gone(error) and error.get_error_code() not in (
                    libvirt.VIR_ERR_NO_DOMAIN_BACKUP, libvirt.VIR_ERR_NO_SUPPORT):
                raise
            return False
        return any(found.get('file') == target for found in targets)

    def has_copied(self) -> bool:
        """Whether the last copy came to its end."""
        try:
            return bool(self.call('jobStats', libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED).get('success'))
        except libvirt.libvirtError as error:
            if not self._gone(error):
                raise
            return False

    def end_copy(self, target: str) -> None:
        """Stop a copy to that file; returns when it has ended. Fine if there is none."""
        while self.is_copying(target):
            try:
                self.call('abortJob')
            except libvirt.libvirtError as error:
                if not self._gone(error):       # it came to its end just now
                    raise GuestFailed(act='end the copy of', uuid=self.uuid, reason=str(error)) from error
            time.sleep(0.1)

    def shut_down(self, timeout: int, retry_interval: int = 0) -> bool:
        """Ask it to go down and wait up to ``timeout`` seconds; asked again each ``retry_interval`` seconds."""
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
        LOG.info('Instance shutdown successfully after %d seconds.', time.monotonic() - begun,
                 instance_uuid=self.uuid)
        return True

    def _ask_to_go(self) -> None:
        try:
            self.call('shutdown')
        except libvirt.libvirtError as error:
            # A guest without ACPI can't be asked; its time runs out and the power is cut.
            LOG.debug('Guest %s did not take the shutdown request: %s', self.uuid, error)


def _backup(domain: ElementTree.Element, disk: str, target: str) -> str:
    """What libvirt wants to know: one disk of a domain takes part, to a file of our choice."""
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
