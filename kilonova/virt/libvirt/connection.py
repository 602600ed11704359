"""The connection to libvirt on one host, and queries to the hypervisor.

    connection = Connection('qemu:///system', 'gpu1')
    connection.listen(listener)            # calls it for events of guests, and if libvirt is lost or back
    guest = connection.find(uuid)          # None if there is no such domain

A ``Connection`` object has a pool of libvirt connections. Each call takes one of them and uses it alone, for two
reasons. When keepalive closes a libvirt connection, libvirt wakes only one of the calls that wait on it (observed with
9.0). And libvirtd reads no keepalive messages from a client that has five calls in progress. One more libvirt
connection receives events. Only the watchdog makes calls on this connection.

The daemon may be restarted at any time. A call that loses its connection is repeated on a new one, so all calls must be
safe to repeat. Keepalive detects a daemon that hangs completely: the calls in progress fail, and later calls fail at
once until the daemon answers. ``watchdog`` detects a daemon that answers keepalive messages but no calls. In this case
later calls fail at once, too, but the calls in progress continue to wait, because libvirt cannot end them. With
libvirt's test driver, all calls use one connection, which is never lost.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import libvirt
from oslo_log import log as logging

from kilonova import concurrency
from kilonova.virt.libvirt import causes, events
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.watchdog import ConnectionWatchdog, is_alive
from kilonova.virt.parts.host import DriverMisconfigured, HypervisorUnavailable, Listener

LOG = logging.getLogger(__name__)
P = ParamSpec('P')
T = TypeVar('T')

_LOST = {
    libvirt.VIR_ERR_SYSTEM_ERROR,
    libvirt.VIR_ERR_INTERNAL_ERROR,
    libvirt.VIR_ERR_NO_CONNECT,
    libvirt.VIR_ERR_INVALID_CONN,
}
_FROM_WIRE = {libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC}

# Time limit in seconds for opening a connection.
OPEN_WAIT = 10.0
# Seconds for which a lost connection is not reported, because the daemon may just be restarting.
PATIENCE = 3.0
# Seconds between two attempts to reconnect.
RETRY = 2.0
# Number of unanswered keepalive messages after which libvirt closes a connection.
KEEPALIVES = 3
# A call of the watchdog counts as hung after this number of keepalive intervals, which is more than KEEPALIVES.
# Keepalive closes a connection to a dead libvirtd before HUNG_AFTER ends. So a hung call means that libvirtd is alive.
HUNG_AFTER = KEEPALIVES + 2
# Maximum number of libvirt calls that are in progress at the same time.
# CALLS is less than eventlet's number of native threads, so that some threads are left for other code.
CALLS = 16
# Maximum number of seconds that a call waits while CALLS other calls are in progress.
TURN_WAIT = 120.0

# Do not print errors to stderr, which is libvirt's default. All errors are raised as exceptions, too.
libvirt.registerErrorHandler(lambda context, error: None, None)


class _Opening:
    """A connection that is being opened in a separate thread, so that a hung daemon blocks only this thread."""

    def __init__(self, uri: str, keepalive: int, watcher: weakref.ReferenceType[events.Watcher] | None = None) -> None:
        self.connection: libvirt.virConnect | None = None
        self.error: Exception | None = None
        self.done = False
        self._uri, self._keepalive, self._watcher = uri, keepalive, watcher
        self._deadline = time.monotonic() + OPEN_WAIT
        events.start()
        concurrency.native_thread(self._open, name='libvirt connection')

    def _open(self) -> None:
        try:
            connection = libvirt.open(self._uri)
            if self._keepalive:
                events.unless_unsupported(connection.setKeepAlive, self._keepalive, KEEPALIVES)
            if self._watcher is not None:
                events.watch(connection, self._watcher)
            self.connection = connection
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
        finally:
            self.done = True

    def wait(self) -> bool:
        """Wait until the attempt has ended or its deadline is reached. Return True if the attempt has ended."""
        pause = 0.001
        while not self.done and time.monotonic() < self._deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return self.done


class Connection:
    """The connection to the libvirt hypervisor of one host. ``keepalive`` is the interval of keepalives in seconds."""

    def __init__(self, uri: str, name: str, keepalive: int = 5) -> None:
        self.uri, self.name = uri, name
        # True if the hypervisor is libvirt's test driver.
        self.is_test = uri.startswith('test:')
        self._keepalive = keepalive
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(CALLS)
        # Connections that no call uses now. The one that was used last is at the end.
        self._idle: list[libvirt.virConnect] = []
        self._opening: _Opening | None = None
        self._lost_at = float('-inf')
        # The listener for events of guests and of the hypervisor.
        self._listener: Listener | None = None
        # The connection on which libvirt sends the events for the listener.
        self._telling: libvirt.virConnect | None = None
        self._watchdog = ConnectionWatchdog(keepalive * HUNG_AFTER)

    # -- calls to libvirt and the connections for them -----------------------------------------------

    def connect(self) -> None:
        """Connect to libvirt, and open the connection for events if there is a listener.

        Raises HypervisorUnavailable if libvirt does not answer, and DriverMisconfigured if the URI cannot be used.
        """
        with self._borrowed():
            pass
        if self._listener is not None and self._telling is None and not self.is_test:
            self._telling = self._opened(_Opening(self.uri, self._keepalive, self._watcher()))
            self._watchdog.watch(self._telling, self._listener)

    def do(self, act: Callable[[libvirt.virConnect], T], again: bool = True) -> T:
        """Call ``act(connection)`` without blocking other threads, and return its result.

        If the connection is lost, the call is repeated once on a new connection. With ``again`` False the call is not
        repeated: a lost connection raises HypervisorUnavailable at once, and it is not known whether the daemon has
        executed the call.
        """
        lost_at = self._lost_at
        try:
            with self._borrowed() as connection:
                try:
                    found: T = concurrency.native(act, connection)
                    return found
                except libvirt.libvirtError as error:
                    if self.is_test or (
                        is_alive(connection)
                        and (error.get_error_code() not in _LOST or error.get_error_domain() not in _FROM_WIRE)
                    ):
                        raise
                    self._lost_at = time.monotonic()
                    raise HypervisorUnavailable(host=self.name, reason=str(error)) from error
        except HypervisorUnavailable:
            # If ``_lost_at`` is unchanged, no connection was lost. None could be opened, so a repetition is useless.
            if not again or self._lost_at == lost_at:
                raise
            return self.do(act, again=False)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[libvirt.virConnect]:
        if self._watchdog.reason is not None:
            raise HypervisorUnavailable(host=self.name, reason=self._watchdog.reason)
        if not self._turns.acquire(timeout=TURN_WAIT):
            raise HypervisorUnavailable(
                host=self.name,
                reason=f'{CALLS} calls to libvirt are in progress, and none of '
                f'them has ended within {TURN_WAIT:g} seconds',
            )
        try:
            connection = self._take()
            is_kept = False
            try:
                yield connection
                is_kept = True
            except libvirt.libvirtError:
                is_kept = True
                raise
            finally:
                if is_kept and not self.is_test:
                    self._idle.append(connection)
        finally:
            self._turns.release()

    def _take(self) -> libvirt.virConnect:
        if self.is_test:
            with self._lock:
                if not self._idle:
                    self._idle.append(self._opened(_Opening(self.uri, 0, self._watcher())))
                return self._idle[0]
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if is_alive(connection):
                return connection
            self._lost_at = time.monotonic()
        while True:
            try:
                return self._open()
            except HypervisorUnavailable:
                # Retry for PATIENCE seconds, because libvirt's daemon may just be restarting.
                if time.monotonic() - self._lost_at >= PATIENCE:
                    raise
                time.sleep(0.1)

    def _open(self) -> libvirt.virConnect:
        """Return a new connection.

        Only one connection is opened at a time. All threads that need a connection wait for the result of the same
        attempt.
        """
        while True:
            with self._lock:
                opening = self._opening = self._opening or _Opening(self.uri, self._keepalive)
            opening.wait()
            with self._lock:
                mine = opening.done and self._opening is opening
                if mine:
                    self._opening = None
            if mine or opening.connection is None:
                return self._opened(opening)

    def _opened(self, opening: _Opening) -> libvirt.virConnect:
        if not opening.wait():
            raise HypervisorUnavailable(host=self.name, reason=f'libvirt has not answered for {OPEN_WAIT:g} seconds')
        error = opening.error
        if error is None:
            LOG.debug('Connected to libvirt: %s', self.uri)
            return opening.connection
        if isinstance(error, libvirt.libvirtError) and error.get_error_domain() not in _FROM_WIRE:
            raise DriverMisconfigured(reason=f'cannot connect to libvirt at {self.uri}: {error}') from error
        raise HypervisorUnavailable(host=self.name, reason=str(error)) from error

    # -- events of guests and of the hypervisor ------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Set the listener for events. The listener receives events after ``connect`` was called."""
        self._listener = listener

    def _watcher(self) -> weakref.ReferenceType[events.Watcher] | None:
        return weakref.ref(self) if self._listener is not None else None

    def guest_changed(self, uuid: str) -> None:
        """Report a change of a guest to the listener. Called by the event loop."""
        if self._listener is not None:
            self._listener.guest_changed(uuid)

    def closed(self, connection: libvirt.virConnect, reason: int) -> None:
        """Handle the loss of the connection for events. Called by the event loop."""
        if connection is not self._telling or self._listener is None:
            return
        self._telling, self._lost_at = None, time.monotonic()
        self._watchdog.leave()
        LOG.warning('The connection to libvirt was lost (close reason %s); reconnecting to %s', reason, self.uri)
        concurrency.spawn(self._regain, self._listener, reason, name='libvirt, regain')

    def _regain(self, listener: Listener, reason: int) -> None:
        """Open a new connection for events, and retry until libvirt answers.

        If this takes longer than PATIENCE seconds, the listener's ``hypervisor_lost`` is called. When the new
        connection is open, ``hypervisor_back`` is always called. ``reason`` is libvirt's reason for the loss.
        """
        told, since, opening = False, self._lost_at, None
        while True:
            opening = opening or _Opening(self.uri, self._keepalive, self._watcher())
            if opening.connection is not None:
                break
            if opening.done:
                opening = None
            if not told and time.monotonic() - since >= PATIENCE:
                told = True
                listener.hypervisor_lost(f'Connection to libvirt lost: {reason}')
            time.sleep(RETRY if told and opening is None else 0.1)
        connection = self._telling = opening.connection
        LOG.info('Connected to libvirt again: %s', self.uri)
        listener.hypervisor_back()
        self._watchdog.watch(connection, listener)
        if not is_alive(connection):
            self.closed(connection, reason)

    # -- finding and defining guests (libvirt domains) -----------------------------------------------

    def find(self, uuid: str) -> Guest | None:
        """Return the domain of the server ``uuid``, running or not, or None if libvirt has no such domain."""
        try:
            return Guest(self, self.do(lambda connection: connection.lookupByUUIDString(uuid)))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def guests(self) -> list[Guest]:
        """Return all domains, running or not."""
        return [Guest(self, domain) for domain in self.do(lambda connection: connection.listAllDomains())]

    def define(self, xml: str, uuid: str) -> Guest:
        """Define a domain. If the domain exists, the XML applies from its next start on.

        Raises GuestFailed or DevicesFailed if libvirt refuses the XML.
        """
        try:
            return Guest(self, self.do(lambda connection: connection.defineXML(xml)))
        except libvirt.libvirtError as error:
            LOG.error('Error defining a guest with XML: %s', xml, instance_uuid=uuid)
            raise causes.failed('define', uuid, error) from error

    # -- facts about the host ------------------------------------------------------------------------

    def info(self) -> list[int]:
        """Return libvirt's description of the host's hardware as a list.

        The values are: CPU model (text), memory in MiB, CPUs, MHz, NUMA nodes, sockets per node, cores per socket, and
        threads per core.
        """
        return self.do(lambda connection: connection.getInfo())

    def capabilities_xml(self) -> str:
        """Return libvirt's capabilities of the host as XML."""
        return str(self.do(lambda connection: connection.getCapabilities()))

    def kind(self) -> str:
        """Return the kind of hypervisor, such as 'QEMU' or 'TEST'."""
        return str(self.do(lambda connection: connection.getType()))

    def version(self) -> int:
        """Return the hypervisor's version as major * 1000000 + minor * 1000 + micro."""
        return int(self.do(lambda connection: connection.getVersion()))

    def domain_capabilities(self, arch: str, machine: str, virt_type: str) -> str:
        """Return libvirt's domain capabilities as XML, which list the hardware for guests of a machine type."""
        return str(self.do(lambda connection: connection.getDomainCapabilities(None, arch, machine, virt_type, 0)))

    def libvirt_version(self) -> int:
        """Return libvirt's version as major * 1000000 + minor * 1000 + micro."""
        return int(self.do(lambda connection: connection.getLibVersion()))

    def has_node_device(self, name: str) -> bool:
        """Return True if the host now has the node device that libvirt calls ``name``."""
        try:
            self.do(lambda connection: connection.nodeDeviceLookupByName(name))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return False
        return True

    def node_device(self, name: str) -> str | None:
        """Return the XML of the node device that libvirt calls ``name``, or None if the host does not have it now."""
        try:
            return str(self.do(lambda connection: connection.nodeDeviceLookupByName(name).XMLDesc(0)))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return None

    def mediated_devices(self) -> list[str]:
        """Return libvirt's names of all mediated devices, including those that are defined but not active."""

        def names(connection: libvirt.virConnect) -> list[str]:
            return [
                str(device.name())
                for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)
            ]

        try:
            return self.do(names)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            return []

    def node_devices(self) -> list[str]:
        """Return the XML of all PCI functions, network devices, vDPA devices and mediated devices.

        Inactive devices are included. The list is empty if this hypervisor does not support the call.
        """
        flags = (
            libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV
            | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
            | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA
            | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
        )

        def describe(connection: libvirt.virConnect) -> list[str]:
            found = []
            for device in connection.listAllDevices(flags):
                try:
                    found.append(device.XMLDesc(0))
                except libvirt.libvirtError as error:
                    # The error VIR_ERR_NO_NODE_DEVICE means that the device was unplugged after it was listed.
                    if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                        raise
            return found

        try:
            return self.do(describe)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            LOG.warning(
                'This hypervisor does not support listing the devices of the host, so none are reported: %s', error
            )
            return []


class LibvirtPart(Protocol):
    """A part of the libvirt driver, such as the power operations, that calls libvirt."""

    _libvirt: Connection


S = TypeVar('S', bound=LibvirtPart)


def translated(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a method of a ``LibvirtPart`` so that libvirt's errors are replaced by errors of the driver interface.

    Callers of the driver don't know libvirt. A libvirt error in a call for a server is raised as GuestFailed or
    DevicesFailed, any other libvirt error as HypervisorUnavailable.
    """

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except libvirt.libvirtError as error:
            uuid = next((arg.uuid for arg in args if hasattr(arg, 'uuid')), None)
            if uuid is None:
                raise HypervisorUnavailable(host=self._libvirt.name, reason=str(error)) from error
            raise causes.failed(method.__name__, uuid, error) from error

    return call
