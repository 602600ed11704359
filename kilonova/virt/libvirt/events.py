"""libvirt's event loop, one a process: what connections tell by themselves, brought to whoever has them.

    start()                                    # before the first connection is opened
    watch(connection, weakref.ref(host))       # from now on: host.guest_changed(uuid),
                                               # host.closed(connection, reason)

libvirt runs its loop in a thread of the operating system's; what it tells is read by one (green) thread. Keepalive
works only while that loop runs.
"""
from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import libvirt

from kilonova import concurrency

LOG = logging.getLogger(__name__)

# The rest of what libvirt tells of a guest's life: it was defined or forgotten.
_STATES = {libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_RESUMED,
           libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_SHUTDOWN, libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED,
           libvirt.VIR_DOMAIN_EVENT_CRASHED}


class Watcher(Protocol):
    """Who has a connection. Both return at once."""

    def guest_changed(self, uuid: str) -> None:
        """A guest started, stopped, was paused or went on."""

    def closed(self, connection: libvirt.virConnect, reason: int) -> None:
        """The connection is gone; VIR_CONNECT_CLOSE_REASON_*."""


class _Loop:
    """The loop and its reader, started once. Who reads does nothing that takes long."""

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
                    LOG.exception('What libvirt told was not taken in: %s %s', method, args)


_LOOP = _Loop()


def start() -> None:
    """Run the loop; libvirt wants it before the first connection."""
    _LOOP.start()


def watch(connection: libvirt.virConnect, watcher: weakref.ReferenceType[Watcher]) -> None:
    """Tell ``watcher`` (a ``Watcher``) of this connection's guests and of its end. Runs in a native thread: it asks the
    daemon. A hypervisor that tells nothing is fine."""
    def changed(_connection: libvirt.virConnect, domain: libvirt.virDomain, event: int, _detail: int,
                _opaque: object) -> None:
        if event in _STATES:
            _LOOP.mail.put((watcher, 'guest_changed', (domain.UUIDString(),)))

    def closed(ended: libvirt.virConnect, reason: int, _opaque: object) -> None:
        _LOOP.mail.put((watcher, 'closed', (ended, reason)))
    for register in (lambda: connection.registerCloseCallback(closed, None),
                     lambda: connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed,
                                                               None)):
        unless_unsupported(register)


def unless_unsupported(act: Callable[..., object], *args: int) -> None:
    """Call it, unless this kind of hypervisor doesn't know it."""
    try:
        act(*args)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
