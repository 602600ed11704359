"""``Host``: what every operation on this host works with, given to it as its first argument."""
from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from oslo_config import cfg

from kilonova import objects, states
from kilonova.compute.events import Event
from kilonova.compute.keys import Work
from kilonova.compute.locks import Locks
from kilonova.compute.tracker import Tracker
from kilonova.compute.upcalls import Upcalls
from kilonova.rpc.notify import OFF, Notifications
from kilonova.virt.driver import ComputeDriver

# How often somebody who waits for a build slot looks whether the build was cancelled, in seconds.
SLOT_LOOK = 0.5


class BuildSlots:
    """At most ``limit`` builds (or snapshots) at once; 0 = no limit."""

    def __init__(self, limit: int) -> None:
        self._slots = threading.Semaphore(limit) if limit else None

    @contextlib.contextmanager
    def hold(self, work: Work) -> Iterator[None]:
        """Wait for a slot; work that is cancelled stops waiting."""
        if self._slots is None:
            yield
            return
        while not self._slots.acquire(timeout=SLOT_LOOK):
            work.check()
        try:
            yield
        finally:
            self._slots.release()


@dataclass
class Host:
    """One compute service. ``name`` is the service's host, the node's name is the tracker's."""

    name: str
    conf: cfg.ConfigOpts
    driver: ComputeDriver
    upcalls: Upcalls
    tracker: Tracker
    build_slots: BuildSlots
    snapshot_slots: BuildSlots = field(default_factory=lambda: BuildSlots(0))
    locks: Locks = field(default_factory=Locks)
    clock: Callable[[], float] = time.monotonic
    notify: Notifications = OFF

    @contextlib.contextmanager
    def turn(self, work: Work, instance_uuid: str) -> Iterator[None]:
        """The server is this work's alone for the block. Asked behind the lock: does the operation still stand?

        An order that waited here, or came late, may find its operation over; it ends with KeyGone and has done nothing.
        """
        with self.locks.hold(instance_uuid):
            work.check()
            if work.verify is not None:
                work.verify()
            self.upcalls.power_states.pop(instance_uuid, None)
            yield

    def event(self, name: str) -> Event:
        """An action event of this host that begins now."""
        return Event(name, self.name)

    def shutdown_wait(self, instance: objects.Instance, clean: bool = True) -> tuple[int, int]:
        """(seconds to wait for the guest, seconds between requests) of a power-off."""
        if not clean:
            return 0, 0
        asked = metadata(instance).get('image_os_shutdown_timeout')
        timeout = int(asked) if asked and str(asked).isdigit() else self.conf.shutdown_timeout
        return timeout, self.conf.compute.shutdown_retry_interval


def metadata(instance: objects.Instance) -> dict[str, Any]:
    """The server's system metadata, {} when it didn't come with it."""
    return (instance.system_metadata or {}) if 'system_metadata' in instance else {}


def image_of(instance: objects.Instance, image: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plain image dict for the driver: as given, or what the server keeps of its image."""
    if image:
        return image
    return objects.ImageMeta.from_system_metadata(metadata(instance), instance.image_ref).to_dict()


def was_active(instance: objects.Instance) -> bool:
    """Whether a server in a move was running before it, and is to run after it: not one that somebody deletes."""
    return ((metadata(instance).get('old_vm_state') or instance.vm_state) == 'active'
            and instance.task_state not in states.ENDING)
