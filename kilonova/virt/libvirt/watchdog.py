"""Detection of a libvirtd whose calls hang although it answers keepalive messages. ``connection.Connection`` uses it.

    watchdog = ConnectionWatchdog(25.0)         # seconds between two calls, and until a call counts as hung
    watchdog.watch(connection, listener)        # from now on: listener.hypervisor_lost(reason), hypervisor_back()
    watchdog.reason                             # why libvirt counts as lost, or None
    watchdog.leave()                            # the connection is closed

libvirtd's main loop answers keepalive messages. Calls are executed by its threads, which a lock or a dead file system
can block. The watchdog calls getCapabilities for three reasons: the call changes nothing; libvirtd executes it in an
ordinary thread and not in the threads that it reserves for calls that never wait; and the driver that starts guests
answers it. Saves, migrations and block copies may take as long as they need, because they use other connections and do
not occupy all threads of libvirtd: ``connection.CALLS`` is smaller than the number of these threads.
"""

from __future__ import annotations

import contextlib
import threading
import time

import libvirt
from oslo_log import log as logging

from kilonova import concurrency
from kilonova.virt.parts.host import Listener

LOG = logging.getLogger(__name__)

# Seconds between two checks whether the watchdog's call has ended.
LOOK = 0.1


def is_alive(connection: libvirt.virConnect) -> bool:
    """Return True if the event loop considers the connection open. Makes no call to libvirtd."""
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


class _Call:
    """One call of getCapabilities in a native thread of its own.

    If the call hangs, it blocks no thread that other code needs.
    """

    def __init__(self, connection: libvirt.virConnect) -> None:
        self.done = False
        self._connection = connection
        concurrency.native_thread(self._ask, name='libvirt watchdog')

    def _ask(self) -> None:
        try:
            # An error is ignored, because an error also shows that libvirtd answers.
            with contextlib.suppress(libvirt.libvirtError):
                self._connection.getCapabilities()
        finally:
            self.done = True


class ConnectionWatchdog:
    """The supervisor of one libvirt connection, which calls getCapabilities on the connection at regular intervals.

    ``limit`` is the number of seconds between two calls. A call that has no answer after the same time counts as hung.
    With 0 the watchdog is off.
    """

    def __init__(self, limit: float) -> None:
        self.reason: str | None = None
        self._limit = limit
        self._lock = threading.Lock()
        self._watched: libvirt.virConnect | None = None

    def watch(self, connection: libvirt.virConnect, listener: Listener) -> None:
        """Supervise a connection until ``leave`` is called or the connection is closed.

        If a call hangs, ``listener.hypervisor_lost(reason)`` is called. When libvirtd answers the call after all,
        ``listener.hypervisor_back()`` is called. Only the connection of the last ``watch`` is supervised.
        """
        if self._limit:
            self._watched = connection
            concurrency.spawn(self._watch, connection, listener, name='libvirt watchdog')

    def leave(self) -> None:
        """Stop the supervision and reset ``reason``. The listener receives no call after this method has returned."""
        with self._lock:
            self._watched = self.reason = None

    def _watch(self, connection: libvirt.virConnect, listener: Listener) -> None:
        while True:
            time.sleep(self._limit)
            if self._watched is not connection or not is_alive(connection):
                return
            call, since = _Call(connection), time.monotonic()
            while not call.done and self._watched is connection:
                if self.reason is None and time.monotonic() - since >= self._limit:
                    self._lost(connection, listener)
                time.sleep(min(LOOK, self._limit))
            if is_alive(connection):
                self._back(connection, listener)

    def _lost(self, connection: libvirt.virConnect, listener: Listener) -> None:
        with self._lock:
            if self._watched is connection:
                self.reason = (
                    f'libvirt has not answered getCapabilities for {self._limit:g} s, though it answers keepalives'
                )
                LOG.warning(
                    'The hypervisor counts as unavailable until libvirtd answers or is restarted: %s', self.reason
                )
                listener.hypervisor_lost(self.reason)

    def _back(self, connection: libvirt.virConnect, listener: Listener) -> None:
        with self._lock:
            if self._watched is connection and self.reason is not None:
                self.reason = None
                LOG.info('The hypervisor answers again')
                listener.hypervisor_back()
