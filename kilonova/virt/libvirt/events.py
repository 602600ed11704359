"""libvirt's event loop, one per process. The loop passes events of connections to the objects that own the connections.

    start()                                    # before the first connection is opened
    watch(connection, weakref.ref(host))       # from now on: host.guest_changed(uuid),
                                               # host.closed(connection, reason)

libvirt runs the loop in a native thread, and another (green) thread reads the events from it. libvirt sends and checks
keepalive messages only while the loop runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import libvirt
from oslo_log import log as logging

from kilonova import concurrency

LOG = logging.getLogger(__name__)

# The lifecycle events that change a guest's power state. Other events, such as 'defined', are ignored.
_STATES = {
    libvirt.VIR_DOMAIN_EVENT_STARTED,
    libvirt.VIR_DOMAIN_EVENT_SUSPENDED,
    libvirt.VIR_DOMAIN_EVENT_RESUMED,
    libvirt.VIR_DOMAIN_EVENT_STOPPED,
    libvirt.VIR_DOMAIN_EVENT_SHUTDOWN,
    libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED,
    libvirt.VIR_DOMAIN_EVENT_CRASHED,
}


class Watcher(Protocol):
    """An object that receives the events of a libvirt connection. Its methods must return quickly.

    All events of this process are delivered by one thread, one after the other.
    """

    def guest_changed(self, uuid: str) -> None:
        """React to the start, stop, pause or resume of a guest."""

    def closed(self, connection: libvirt.virConnect, reason: int) -> None:
        """React to the end of the connection. ``reason`` is a VIR_CONNECT_CLOSE_REASON_* value."""


class _EventThread:
    """The event loop and the thread that reads its events, started once per process.

    The reading thread must not block, so the methods that it calls must return quickly.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False
        self.mail: concurrency.Mailbox

    def start(self) -> None:
        with self._lock:
            if self._started:
                return
            libvirt.virEventRegisterDefaultImpl()
            self.mail = concurrency.Mailbox()
            concurrency.native_thread(self._run, name='libvirt events')
            concurrency.spawn(self._read, name='libvirt events, read')
            self._started = True

    def _run(self) -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    def _read(self) -> None:
        while True:
            for watcher, method, args in self.mail.take():
                host = watcher()
                try:
                    if host is not None:
                        getattr(host, method)(*args)
                except Exception:
                    LOG.exception('Error while handling libvirt event %s %s', method, args)


_LOOP = _EventThread()


def start() -> None:
    """Start the event loop, if it is not running. libvirt requires this before the first connection is opened."""
    _LOOP.start()


def watch(connection: libvirt.virConnect, watcher: weakref.ReferenceType[Watcher]) -> None:
    """Register ``watcher`` (a ``Watcher``) for events of this connection's guests and for the end of the connection.

    Must run in a native thread, because the registration calls libvirtd. If the hypervisor does not support events,
    no error is raised.
    """

    def changed(
        _connection: libvirt.virConnect, domain: libvirt.virDomain, event: int, _detail: int, _opaque: object
    ) -> None:
        if event in _STATES:
            _LOOP.mail.put((watcher, 'guest_changed', (domain.UUIDString(),)))

    def closed(ended: libvirt.virConnect, reason: int, _opaque: object) -> None:
        _LOOP.mail.put((watcher, 'closed', (ended, reason)))

    for register in (
        lambda: connection.registerCloseCallback(closed, None),
        lambda: connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed, None),
    ):
        unless_unsupported(register)


def unless_unsupported(act: Callable[..., object], *args: int) -> None:
    """Call ``act``. Ignore the error if this kind of hypervisor does not support the call."""
    try:
        act(*args)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
