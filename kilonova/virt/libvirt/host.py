"""One connection to libvirt, and what is asked of it as a whole.

    host = Host('qemu:///system', 'gpu1')
    host.listen(listener)                  # guests that change, and a hypervisor that goes and comes
    guest = host.find(uuid)                # None: no such domain

A daemon may be restarted at any time: each call looks whether its connection is alive, and one that loses it is made
again on a new one. So what is called here must be fine to repeat. A daemon that is hung is noticed by keepalive: all
calls that wait for it fail then, and later ones fail at once until it answers. A test:/// connection is never lost.
"""
from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import libvirt

from kilonova import concurrency
from kilonova.virt import driver
from kilonova.virt.libvirt import events
from kilonova.virt.libvirt.guest import Guest

LOG = logging.getLogger(__name__)

_LOST = {libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_NO_CONNECT,
         libvirt.VIR_ERR_INVALID_CONN}
_FROM_WIRE = {libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC}

# Seconds until a daemon that doesn't answer is left; a restarted one may be silent for that long. A loss that lasts no
# longer than PATIENCE is told to nobody. RETRY: seconds between two tries to get a connection back.
OPEN_WAIT, PATIENCE, RETRY = 10.0, 3.0, 2.0
# Silent keepalives until the connection is given up.
KEEPALIVES = 3
# Calls under way at once, fewer than the threads that eventlet has for all; seconds that one more waits for its turn.
CALLS, TURN_WAIT = 16, 120.0

# libvirt prints each error to stderr unless told not to; ours are raised.
libvirt.registerErrorHandler(lambda context, error: None, None)


class _Opening:
    """A connection on its way, in a thread of its own: a daemon that is hung holds up nobody else, and one thread."""

    def __init__(self, uri: str, keepalive: int, watcher: weakref.ReferenceType[Any] | None) -> None:
        self.connection: Any = None
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


def _is_alive(connection: Any) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


class Host:
    """The hypervisor of one host, by libvirt. ``keepalive``: seconds between two looks whether the daemon answers."""

    def __init__(self, uri: str, name: str, keepalive: int = 5) -> None:
        self.uri, self.name = uri, name
        self._keepalive = keepalive
        self._connection: Any = None
        self._opening: _Opening | None = None
        self._lock = threading.Lock()
        self._calls = threading.Semaphore(CALLS)
        self._listener: driver.Listener | None = None
        # The connection that was lost last, why (VIR_CONNECT_CLOSE_REASON_*) and when; who gets it back.
        self._lost: Any = None
        self._reason = libvirt.VIR_CONNECT_CLOSE_REASON_ERROR
        self._lost_at = float('-inf')
        self._regaining = False

    @property
    def is_test(self) -> bool:
        """Whether libvirt's test driver plays the host."""
        return self.uri.startswith('test:')

    def listen(self, listener: driver.Listener) -> None:
        """Tell it what happens by itself, from the next connection on."""
        self._listener = listener

    # -- the connection ------------------------------------------------------------------------------

    def connect(self) -> Any:
        """A connection that is alive, opened if need be; raises HypervisorUnavailable or DriverMisconfigured."""
        connection = self._connection
        if connection is not None:
            # Asks nobody: the event loop notes when the daemon has gone or is silent.
            if _is_alive(connection):
                return connection
            self._drop(connection)
        while True:
            try:
                return self._open()
            except driver.HypervisorUnavailable:
                # It is being restarted, perhaps.
                if time.monotonic() - self._lost_at >= PATIENCE:
                    raise
                time.sleep(0.1)

    def _open(self) -> Any:
        while True:
            with self._lock:
                if self._connection is not None:
                    return self._connection
                if self._opening is None:
                    LOG.debug('Connecting to libvirt: %s', self.uri)
                    self._opening = _Opening(self.uri, self._keepalive, weakref.ref(self) if self._listener else None)
                opening = self._opening
            if not opening.wait():
                raise driver.HypervisorUnavailable(host=self.name, reason=f'libvirt has not answered for {OPEN_WAIT:g} '
                                                                          'seconds')
            with self._lock:
                if self._opening is opening:
                    self._opening, self._connection = None, opening.connection
                    if opening.connection is not None:
                        LOG.info('Connected to libvirt: %s', self.uri)
                        return opening.connection
            if opening.error is not None:
                raise self._not_opened(opening.error) from opening.error

    def _not_opened(self, error: Exception) -> Exception:
        if isinstance(error, libvirt.libvirtError) and error.get_error_domain() not in _FROM_WIRE:
            return driver.DriverMisconfigured(reason=f'libvirt can not be reached by {self.uri}: {error}')
        return driver.HypervisorUnavailable(host=self.name, reason=str(error))

    def call(self, thing: Any, method: str, *args: Any) -> Any:
        """Call a method of a connection, domain or device, once, without stopping other threads.

        A lost connection raises HypervisorUnavailable, and nobody knows whether the daemon did it.
        """
        with self._turn():
            try:
                return concurrency.native(getattr(thing, method), *args)
            except libvirt.libvirtError as error:
                connection = thing if isinstance(thing, libvirt.virConnect) else thing.connect()
                if self.is_test or (_is_alive(connection) and (error.get_error_code() not in _LOST
                                                               or error.get_error_domain() not in _FROM_WIRE)):
                    raise
                self._drop(connection)
                raise driver.HypervisorUnavailable(host=self.name, reason=str(error)) from error

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._calls.acquire(timeout=TURN_WAIT):
            raise driver.HypervisorUnavailable(host=self.name, reason=f'{CALLS} calls wait for libvirt already')
        try:
            yield
        finally:
            self._calls.release()

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the connection; once more on a new one when that was lost under it."""
        connection = self.connect()
        try:
            return self.call(connection, method, *args)
        except driver.HypervisorUnavailable:
            if self._connection is connection:      # it got no turn
                raise
            return self.call(self.connect(), method, *args)

    # -- a connection that is lost -------------------------------------------------------------------

    def guest_changed(self, uuid: str) -> None:
        """Told by the event loop."""
        if self._listener is not None:
            self._listener.guest_changed(uuid)

    def closed(self, connection: Any, reason: int) -> None:
        """Told by the event loop, sometimes after a call met it."""
        with self._lock:
            if connection in (self._connection, self._lost):
                self._reason = reason
        self._drop(connection)

    def _drop(self, connection: Any) -> None:
        """Give up this connection, whoever noticed, and nobody's newer one."""
        with self._lock:
            if self._connection is not connection:
                return
            self._connection, self._lost = None, connection
            self._lost_at = time.monotonic()
            listener = self._listener if not self._regaining else None
            self._regaining = self._listener is not None
        LOG.warning('The connection to libvirt was lost: %s', self.uri)
        if listener is not None:
            concurrency.spawn(self._regain, listener, name='libvirt, regain')

    def _regain(self, listener: driver.Listener) -> None:
        """Get the connection back: without it there are no events. A loss that lasts is told, and its end."""
        told, since = False, self._lost_at
        while self._regaining:
            try:
                self._open()
                with self._lock:
                    # It may be lost again already.
                    self._regaining = self._connection is None
            except (driver.HypervisorUnavailable, driver.DriverMisconfigured) as error:
                if not told and time.monotonic() - since >= PATIENCE:
                    told = True
                    LOG.warning('libvirt is away: %s', error)
                    listener.hypervisor_lost(f'Connection to libvirt lost: {self._reason}')
                time.sleep(RETRY if told else 0.1)
        listener.hypervisor_back()

    # -- domains -------------------------------------------------------------------------------------

    def find(self, uuid: str) -> Guest | None:
        """The domain of that uuid, running or not."""
        try:
            return Guest(self, self.ask('lookupByUUIDString', uuid))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def guests(self) -> list[Guest]:
        """All domains, running or not."""
        return [Guest(self, domain) for domain in self.ask('listAllDomains')]

    def define(self, xml: str, uuid: str) -> Guest:
        """Keep a domain; one of the same uuid gets this as its next start's XML."""
        try:
            return Guest(self, self.ask('defineXML', xml))
        except libvirt.libvirtError as error:
            LOG.error('Error defining a guest with XML: %s', xml)
            raise driver.GuestFailed(act='define', uuid=uuid, reason=str(error)) from error

    # -- the machine ---------------------------------------------------------------------------------

    def info(self) -> list[Any]:
        """[model, memory MiB, CPUs, MHz, NUMA nodes, sockets a node, cores a socket, threads a core]"""
        return self.ask('getInfo')

    def capabilities_xml(self) -> str:
        return self.ask('getCapabilities')

    def kind(self) -> str:
        """QEMU, TEST …"""
        return self.ask('getType')

    def version(self) -> int:
        """The hypervisor's version as major * 1000000 + minor * 1000 + micro."""
        return self.ask('getVersion')

    def libvirt_version(self) -> int:
        return self.ask('getLibVersion')

    def has_node_device(self, name: str) -> bool:
        """Whether the machine has the device that libvirt calls so now."""
        try:
            self.ask('nodeDeviceLookupByName', name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            return False
        return True

    def node_devices(self) -> list[str]:
        """XML of all PCI functions, network devices and vDPA devices."""
        flags = (libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_NET
                 | libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_VDPA)
        try:
            devices = self.ask('listAllDevices', flags)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            LOG.warning('libvirt lists no devices of this host: %s', error)
            return []
        found = []
        for device in devices:
            try:
                found.append(self.call(device, 'XMLDesc', 0))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_NODE_DEVICE:    # unplugged since the list was made
                    raise
        return found
