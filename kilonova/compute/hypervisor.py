"""What the driver tells by itself, brought to where it counts: ``virt.parts.host.Listener``.

    hypervisor = Hypervisor(host, guests, follow, get_admin_context, stopping)
    driver.host.listen(hypervisor)
    …
    hypervisor.start(service)             # once the records are there

- A guest that stopped or started is compared with its server within a second. A burst is one look a guest, one guest
  after the other. What an order of this host does to its guest costs no question to the conductor.
- A host whose hypervisor is away counts as disabled and gets no servers: the service record says so, for schedulers and
  people, with a reason that begins with AUTO. It is enabled again when the hypervisor is back, unless an administrator
  disabled it meanwhile or before.

Threads are there while there is something to do.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from oslo_log import log as logging

from kilonova import concurrency, errors, objects
from kilonova.compute import records
from kilonova.compute.guests import Guests
from kilonova.compute.host import PAUSES, Host
from kilonova.context import RequestContext
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)

# How reasons begin that no administrator gave.
AUTO = 'AUTO: '
# Seconds until a guest is looked at: what belongs together has come by then. Seconds between two looks whether an order
# for it is over; and, growing, whether its operation elsewhere is, until the look at all guests is enough.
SETTLE = 0.2
ORDER_LOOK = 0.5
BUSY_LOOKS = (1, 2, 5, 10, 20, 30, 60)


@dataclass
class _Look:
    """When a guest is looked at, how often that was too early, and whether only an order's time heard of it."""

    due: float
    tries: int
    during_order: bool


class Hypervisor:
    """``follow()`` brings what the service record says to Placement; ``pauses``: seconds between tries to tell."""

    def __init__(self, host: Host, guests: Guests, follow: Callable[[], None], ctxt: Callable[[], RequestContext],
                 stopping: threading.Event, pauses: tuple[float, ...] = PAUSES) -> None:
        self._host, self._guests, self._follow = host, guests, follow
        self._ctxt, self._stopping, self._pauses = ctxt, stopping, pauses
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}
        self._looking = False
        self._reason: str | None = None
        self._started = self._changed = self._missed = self._telling = False

    # -- told by the driver --------------------------------------------------------------------------------------------
    def guest_changed(self, uuid: str) -> None:
        look = _Look(self._host.clock() + SETTLE, 0, self._host.locks.is_held(uuid))
        with self._lock:
            known = self._looks.setdefault(uuid, look)
            known.during_order = known.during_order and look.during_order
            if self._looking:
                return
            self._looking = True
        concurrency.spawn(self._look, name='guests that changed')

    def hypervisor_lost(self, reason: str) -> None:
        self._reason = reason
        self._tell(missed=False)

    def hypervisor_back(self) -> None:
        self._reason = None
        self._tell(missed=True)

    # -- told by the manager -------------------------------------------------------------------------------------------
    def start(self, service: objects.Service) -> None:
        """The records are there. A host that was disabled by an earlier process is enabled again."""
        self._started = True
        if self._reason is not None or _is_auto(service):
            self._tell(missed=False)

    def look_again(self) -> None:
        """The service was enabled or disabled by somebody: without a hypervisor it is disabled."""
        if self._reason is not None:
            self._tell(missed=False)

    # -- guests --------------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Look at each guest when it is due, until none is left."""
        while not self._stopping.is_set():
            with self._lock:
                if not self._looks:
                    self._looking = False
                    return
                uuid = min(self._looks, key=lambda name: self._looks[name].due)
                wait = self._looks[uuid].due - self._host.clock()
                look = self._looks.pop(uuid) if wait <= 0 else None
            if look is None:
                self._stopping.wait(min(wait, SETTLE))
                continue
            try:
                pause = self._look_at(uuid, look)
            except errors.Unanswered as error:
                LOG.info('Not compared with its server yet: %s', error, instance_uuid=uuid)
                pause = self._later(look)
            except Exception:
                LOG.exception('The guest changed and was not compared with its server', instance_uuid=uuid)
                continue
            if pause is not None:
                look.due = self._host.clock() + pause
                with self._lock:
                    newer = self._looks.setdefault(uuid, look)
                    newer.during_order = newer.during_order and look.during_order

    def _look_at(self, uuid: str, look: _Look) -> float | None:
        """None: done; else seconds until it is tried again."""
        host = self._host
        if not host.tracker.sides(uuid):
            return None     # not a server's, or deleted meanwhile
        if host.locks.is_held(uuid):
            return ORDER_LOOK
        try:
            state = host.driver.guests.get_info(objects.Instance(uuid=uuid))
        except HypervisorUnavailable:
            return None     # all are looked at when it is back
        told = host.upcalls.power_states.get(uuid)
        if told == state or (told is None and look.during_order):
            return None
        return None if self._guests.sync_one(uuid) else self._later(look)

    def _later(self, look: _Look) -> float | None:
        look.tries += 1
        return BUSY_LOOKS[look.tries - 1] if look.tries <= len(BUSY_LOOKS) else None

    # -- the service record --------------------------------------------------------------------------------------------
    def _tell(self, *, missed: bool) -> None:
        with self._lock:
            self._changed, self._missed = True, self._missed or missed
            if self._telling or not self._started:
                return
            self._telling = True
        concurrency.spawn(self._keep_telling, name='hypervisor')

    def _keep_telling(self) -> None:
        """Until the record says what is, and guests were looked at if something was missed."""
        failed = 0
        while not self._stopping.is_set():
            with self._lock:
                changed, self._changed = self._changed, False
                missed, self._missed = self._missed, False
                if not changed and not missed:
                    self._telling = False
                    return
            try:
                self._write()
                if missed and self._reason is None and self._host.conf.sync_power_state_interval >= 0:
                    self._guests.sync()
                failed = 0
            except errors.ServiceNotFound:
                LOG.info('The service record is gone, so it does not say how the hypervisor is')
            except Exception as error:  # noqa: BLE001 - a host without hypervisor that takes servers is worse
                pause = self._pauses[min(failed, len(self._pauses) - 1)]
                failed += 1
                LOG.warning('The service record does not say yet that the hypervisor is %s: %s; trying again in %s s',
                            'back' if self._reason is None else 'away', error, pause)
                with self._lock:
                    self._changed, self._missed = True, self._missed or missed
                self._stopping.wait(pause)

    def _write(self) -> None:
        """Compared with the record as it stands: an administrator's word stays. The database looks at that again."""
        ctxt, reason = self._ctxt(), self._reason
        service = objects.Service.get_by_args(ctxt, self._host.name, records.BINARY)
        if reason is not None and not service.disabled:
            LOG.warning('This host is disabled: %s', reason)
            service.disabled, service.disabled_reason = True, AUTO + reason
        elif reason is None and _is_auto(service):
            LOG.info('This host is enabled again')
            service.disabled, service.disabled_reason = False, None
        if service.obj_what_changed():
            service.save()
            self._host.notify.emit(ctxt, 'service.update', service=service)
        self._follow()


def _is_auto(service: objects.Service) -> bool:
    """Whether a host that is disabled was so by itself."""
    return bool(service.disabled) and (service.disabled_reason or '').startswith(AUTO.strip())
