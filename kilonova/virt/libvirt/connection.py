"""libvirt on one host: its connections, used as if they were one, and what is asked of the hypervisor as a whole.

    connection = Connection('qemu:///system', 'gpu1')
    connection.listen(listener)            # guests that change, and a hypervisor that goes and comes
    guest = connection.find(uuid)          # None: no such domain

Each call has a connection to itself while it lasts, out of a few that are kept open. Several on one would come to harm:
when keepalive gives a connection up libvirt wakes only one of those that wait on it (seen with 9.0), and libvirtd reads
no keepalive from a client that has five calls under way. One connection more tells what happens; nobody except
the watchdog asks it anything.

A daemon may be restarted at any time: a call that loses its connection is made again on a new one, so what is called
here must be fine to repeat. A daemon that is hung is noticed by keepalive: calls that wait for it fail then, and later
ones fail at once until it answers. A daemon that answers keepalives and no calls is noticed by ``watchdog``: later
calls fail at once until it answers one; those under way stay, because libvirt can't end them. Libvirt's test driver has
one connection for all, which is never lost.
"""
from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import libvirt

from kilonova import concurrency
from kilonova.virt.libvirt import causes, events
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.watchdog import Watchdog, is_alive
from kilonova.virt.parts.host import DriverMisconfigured, HypervisorUnavailable, Listener

LOG = logging.getLogger(__name__)
P = ParamSpec('P')
T = TypeVar('T')

_LOST = {libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_NO_CONNECT,
         libvirt.VIR_ERR_INVALID_CONN}
_FROM_WIRE = {libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC}

# Seconds until a daemon that doesn't answer is left; a loss that lasts no longer than PATIENCE is waited for and told
# to nobody; RETRY: between two tries to get a connection back.
OPEN_WAIT, PATIENCE, RETRY = 10.0, 3.0, 2.0
# Silent keepalives until a connection is given up.
KEEPALIVES = 3
# Keepalive intervals between two calls of the watchdog, and until one is hung. More than the KEEPALIVES + 1
# after which a connection to a daemon that is silent is closed: such a daemon has another reason.
HUNG_AFTER = KEEPALIVES + 2
# Calls under way at once, fewer than the threads that eventlet has for all; seconds that one more waits for its turn.
CALLS, TURN_WAIT = 16, 120.0

# libvirt prints each error to stderr unless told not to; ours are raised.
libvirt.registerErrorHandler(lambda context, error: None, None)


class _Opening:
    """A connection on its way, in a thread of its own: a daemon that is hung holds up nobody else, and one thread."""

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
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self.error = error
        finally:
            self.done = True

    def wait(self) -> bool:
        """Whether it ended until its deadline."""
        pause = 0.001
        while not self.done and time.monotonic() < self._deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return self.done


class Connection:
    """The hypervisor of one host, by libvirt. ``keepalive``: seconds between two looks whether the daemon answers."""

    def __init__(self, uri: str, name: str, keepalive: int = 5) -> None:
        self.uri, self.name = uri, name
        # Whether libvirt's test driver plays the host.
        self.is_test = uri.startswith('test:')
        self._keepalive = keepalive
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(CALLS)
        # Connections that nobody uses, the last used last; the one that is being opened.
        self._idle: list[libvirt.virConnect] = []
        self._opening: _Opening | None = None
        self._lost_at = float('-inf')
        # The connection that tells, and to whom.
        self._listener: Listener | None = None
        self._telling: libvirt.virConnect | None = None
        self._watchdog = Watchdog(keepalive * HUNG_AFTER)

    # -- calls ---------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Be connected; raises HypervisorUnavailable or DriverMisconfigured."""
        with self._borrowed():
            pass
        if self._listener is not None and self._telling is None and not self.is_test:
            self._telling = self._opened(_Opening(self.uri, self._keepalive, self._watcher()))
            self._watchdog.watch(self._telling, self._listener)

    def do(self, act: Callable[[libvirt.virConnect], T], again: bool = True) -> T:
        """``act(connection)`` without stopping other threads; once more on a new one when its connection was lost.

        ``again`` False: a lost connection raises HypervisorUnavailable at once, whether the daemon did it isn't known.
        """
        lost_at = self._lost_at
        try:
            with self._borrowed() as connection:
                try:
                    found: T = concurrency.native(act, connection)
                    return found
                except libvirt.libvirtError as error:
                    if self.is_test or (is_alive(connection) and (error.get_error_code() not in _LOST
                                                                   or error.get_error_domain() not in _FROM_WIRE)):
                        raise
                    self._lost_at = time.monotonic()
                    raise HypervisorUnavailable(host=self.name, reason=str(error)) from error
        except HypervisorUnavailable:
            if not again or self._lost_at == lost_at:      # it never had one
                raise
            return self.do(act, again=False)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[libvirt.virConnect]:
        if self._watchdog.reason is not None:
            raise HypervisorUnavailable(host=self.name, reason=self._watchdog.reason)
        if not self._turns.acquire(timeout=TURN_WAIT):
            raise HypervisorUnavailable(host=self.name, reason=f'{CALLS} calls wait for libvirt already')
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
                # It is being restarted, perhaps.
                if time.monotonic() - self._lost_at >= PATIENCE:
                    raise
                time.sleep(0.1)

    def _open(self) -> libvirt.virConnect:
        """One is opened at a time, whoever needs it."""
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
            raise HypervisorUnavailable(host=self.name,
                                        reason=f'libvirt has not answered for {OPEN_WAIT:g} seconds')
        error = opening.error
        if error is None:
            LOG.debug('Connected to libvirt: %s', self.uri)
            return opening.connection
        if isinstance(error, libvirt.libvirtError) and error.get_error_domain() not in _FROM_WIRE:
            raise DriverMisconfigured(reason=f'libvirt can not be reached by {self.uri}: {error}') from error
        raise HypervisorUnavailable(host=self.name, reason=str(error)) from error

    # -- what it tells -------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Tell it what happens by itself, from ``connect`` on."""
        self._listener = listener

    def _watcher(self) -> weakref.ReferenceType[events.Watcher] | None:
        return weakref.ref(self) if self._listener is not None else None

    def guest_changed(self, uuid: str) -> None:
        """Told by the event loop."""
        if self._listener is not None:
            self._listener.guest_changed(uuid)

    def closed(self, connection: libvirt.virConnect, reason: int) -> None:
        """Told by the event loop."""
        if connection is not self._telling or self._listener is None:
            return
        self._telling, self._lost_at = None, time.monotonic()
        self._watchdog.leave()
        LOG.warning('The connection to libvirt was lost (%s): %s', reason, self.uri)
        concurrency.spawn(self._regain, self._listener, reason, name='libvirt, regain')

    def _regain(self, listener: Listener, reason: int) -> None:
        """Be told again what happens. A loss that lasts is told, and its end."""
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

    # -- domains -------------------------------------------------------------------------------------

    def find(self, uuid: str) -> Guest | None:
        """The domain of that uuid, running or not."""
        try:
            return Guest(self, self.do(lambda connection: connection.lookupByUUIDString(uuid)))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def guests(self) -> list[Guest]:
        """All domains, running or not."""
        return [Guest(self, domain) for domain in self.do(lambda connection: connection.listAllDomains())]

    def define(self, xml: str, uuid: str) -> Guest:
        """Keep a domain; one of the same uuid gets this as its next start's XML."""
        try:
            return Guest(self, self.do(lambda connection: connection.defineXML(xml)))
        except libvirt.libvirtError as error:
            LOG.error('Error defining a guest with XML: %s', xml)
            raise causes.failed('define', uuid, error) from error

    # -- the machine ---------------------------------------------------------------------------------

    def info(self) -> list[int]:
        """[model (a text), memory MiB, CPUs, MHz, NUMA nodes, sockets a node, cores a socket, threads a core]"""
        return self.do(lambda connection: connection.getInfo())

    def capabilities_xml(self) -> str:
        return str(self.do(lambda connection: connection.getCapabilities()))

    def kind(self) -> str:
        """QEMU, TEST …"""
        return str(self.do(lambda connection: connection.getType()))

    def version(self) -> int:
        """The hypervisor's version as major * 1000000 + minor * 1000 + micro."""
        return int(self.do(lambda connection: connection.getVersion()))

    def domain_capabilities(self, arch: str, machine: str, virt_type: str) -> str:
        """What guests of that machine type can have, as XML."""
        return str(self.do(lambda connection: connection.getDomainCapabilities(None, arch, machine, virt_type, 0)))

    def libvirt_version(self) -> int:
        return int(self.do(lambda connection: connection.getLibVersion()))

    def has_node_device(self, name: str) -> bool:
        """Whether the machine has the device that libvirt calls so now."""
        try:
            self.do(lambda connection: connection.nodeDeviceLookupByName(name))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return False
        return True

    def node_device(self, name: str) -> str | None:
        """XML of the device that libvirt calls so; None: the machine has none now."""
        try:
            return str(self.do(lambda connection: connection.nodeDeviceLookupByName(name).XMLDesc(0)))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return None

    def mediated_devices(self) -> list[str]:
        """libvirt's names of all mediated devices, those too that are defined and not active."""
        def names(connection: libvirt.virConnect) -> list[str]:
            return [str(device.name()) for device in connection.listAllDevices(
                libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)]
        try:
            return self.do(names)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            return []

    def node_devices(self) -> list[str]:
        """XML of all PCI functions, network devices, vDPA devices and mediated devices. Without a flag that asks for
        active or inactive ones libvirt lists both."""
        flags = (libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
                 | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)

        def describe(connection: libvirt.virConnect) -> list[str]:
            found = []
            for device in connection.listAllDevices(flags):
                try:
                    found.append(device.XMLDesc(0))
                except libvirt.libvirtError as error:
                    if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:    # unplugged since it was listed
                        raise
            return found
        try:
            return self.do(describe)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            LOG.warning('libvirt lists no devices of this host: %s', error)
            return []


class Part(Protocol):
    """A part of the driver that speaks to libvirt."""

    _libvirt: Connection


S = TypeVar('S', bound=Part)


def translated(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """libvirt's errors end here: whoever calls a driver doesn't know the library. A call for a guest raises
    GuestFailed, any other HypervisorUnavailable."""
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
