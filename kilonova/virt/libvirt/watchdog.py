"""Detection of a libvirtd whose calls hang although it answers keepalive messages. ``connection.Connection`` uses it.

    watchdog = ConnectionWatchdog(25.0)         # seconds between two calls, and until a call counts as hung
    watchdog.watch(connection, listener)        # from now on: listener.hypervisor_lost(reason), hypervisor_back()
    watchdog.reason                             # why libvirt counts as lost, or None
    watchdog.leave()                            # stop, when the connection is closed

libvirtd's main loop answers keepalive messages, but other threads of libvirtd execute calls. A lock or a dead file
system can block these threads. The watchdog calls getCapabilities, because this call changes nothing, is executed by an
ordinary thread, and is answered by the driver that also starts guests. Long calls such as a save or a migration do not
disturb the watchdog. They use other connections, and libvirtd has more threads than there can be calls in progress.
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
    """One call of getCapabilities, by which the watchdog tests whether libvirtd answers.

    The call has a native thread of its own. If libvirtd hangs, only this thread is blocked.
    """

    def __init__(self, connection: libvirt.virConnect) -> None:
        self.done = False
        self._connection = connection
        concurrency.native_thread(self._ask, name='libvirt watchdog')

    def _ask(self) -> None:
        try:
            # Ignore an error of libvirt, because an error is an answer, too, and shows that libvirtd does not hang.
            with contextlib.suppress(libvirt.libvirtError):
                self._connection.getCapabilities()
        finally:
            self.done = True


class ConnectionWatchdog:
    """The supervisor of one libvirt connection, which calls getCapabilities on the connection at regular intervals.

    ``limit`` is the number of seconds between two calls. A call without an answer after ``limit`` seconds counts as
    hung. If ``limit`` is 0, the connection is not supervised.
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
        """Stop the supervision and reset ``reason``. After that, the listener is no longer called."""
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
