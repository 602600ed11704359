"""Process the driver's own messages about guests and the hypervisor (``virt.parts.host.Listener``).

    hypervisor = Hypervisor(host, guests, follow, get_admin_context, stopping)
    driver.host.listen(hypervisor)
    …
    hypervisor.start(service)             # once the service record and the node's record exist

- A guest that stopped or started is compared with its server's row within a second. Several messages about a guest lead
  to one comparison, and guests are compared one after the other. If a step of an operation on this host made the
  change, no call to the conductor is made.
- A host whose hypervisor does not answer counts as disabled and gets no servers. Its service record is set to disabled,
  with a reason that begins with AUTO. The record is enabled again when the hypervisor is back, unless an administrator
  has disabled the host.

A thread runs only while a guest must be compared or the service record must be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from oslo_log import log as logging

from kilonova import concurrency, errors, objects
from kilonova.compute import records
from kilonova.compute.guests import HostGuests
from kilonova.compute.host import PAUSES, ComputeHost
from kilonova.context import RequestContext
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)

# First characters of ``disabled_reason`` if this service, and not an administrator, has disabled the host.
AUTO = 'AUTO: '
# Seconds from a message about a guest to the guest's check, so that several messages about a change lead to one check.
SETTLE = 0.2
# Seconds until the next try to compare a guest with its server, if a step for the server runs on this host.
ORDER_LOOK = 0.5
# Pauses in seconds between the tries to compare a guest with its server, if the server is in an operation.
# After the last pause of BUSY_LOOKS, the guest is compared only by the periodic comparison of all guests.
BUSY_LOOKS = (1, 2, 5, 10, 20, 30, 60)


@dataclass
class _PendingCheck:
    """A planned comparison of a guest with its server, after a message about a change of the guest.

    ``due`` is the time of the comparison. ``tries`` counts how often it was postponed because the server was in an
    operation.

    ``during_order`` is True if all messages about the guest came while a step of this host held the server's lock. The
    change is then a part of the step, so no comparison is needed unless the step wrote another power state.
    """

    due: float
    tries: int
    during_order: bool


class Hypervisor:
    """The receiver of the driver's messages on one host.

    ``follow()`` copies the enabled or disabled state of the service record to Placement. ``pauses`` are the seconds
    between two tries to write the service record.
    """

    def __init__(
        self,
        host: ComputeHost,
        guests: HostGuests,
        follow: Callable[[], None],
        ctxt: Callable[[], RequestContext],
        stopping: threading.Event,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._host, self._guests, self._follow = host, guests, follow
        self._ctxt, self._stopping, self._pauses = ctxt, stopping, pauses
        self._lock = threading.Lock()
        self._looks: dict[str, _PendingCheck] = {}
        self._looking = False
        self._reason: str | None = None
        self._started = self._changed = self._missed = self._telling = False

    # -- methods that the driver calls ---------------------------------------------------------------------------------
    def guest_changed(self, uuid: str) -> None:
        """Schedule a comparison of a changed guest with its server's row."""
        look = _PendingCheck(self._host.clock() + SETTLE, 0, self._host.locks.is_held(uuid))
        with self._lock:
            known = self._looks.setdefault(uuid, look)
            known.during_order = known.during_order and look.during_order
            if self._looking:
                return
            self._looking = True
        concurrency.spawn(self._look, name='guests that changed')

    def hypervisor_lost(self, reason: str) -> None:
        """Disable the service, because the hypervisor does not answer."""
        self._reason = reason
        self._tell(missed=False)

    def hypervisor_back(self) -> None:
        """Enable the service again and compare all guests, because the hypervisor answers again."""
        self._reason = None
        self._tell(missed=True)

    # -- methods that the manager calls --------------------------------------------------------------------------------
    def start(self, service: objects.Service) -> None:
        """Begin to write the service record. Called when the record exists.

        A host that an earlier process disabled automatically is enabled again if its hypervisor answers.
        """
        self._started = True
        if self._reason is not None or _is_auto(service):
            self._tell(missed=False)

    def look_again(self) -> None:
        """Disable the service again if a user has enabled it although the hypervisor does not answer."""
        if self._reason is not None:
            self._tell(missed=False)

    # -- comparison of guests with their servers -----------------------------------------------------------------------
    def _look(self) -> None:
        """Compare each changed guest with its server's row, at the time for which this comparison is scheduled.

        Returns when no comparison is scheduled any more.
        """
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
                LOG.info('The guest is compared with its server later, not now: %s', error, instance_uuid=uuid)
                pause = self._later(look)
            except Exception:
                LOG.exception(
                    'Could not compare the state of the guest with the state of its server', instance_uuid=uuid
                )
                continue
            if pause is not None:
                look.due = self._host.clock() + pause
                with self._lock:
                    newer = self._looks.setdefault(uuid, look)
                    newer.during_order = newer.during_order and look.during_order

    def _look_at(self, uuid: str, check: _PendingCheck) -> float | None:
        """Compare one guest with its server's row. Return None when that is done, or the seconds until the next try."""
        host = self._host
        if not host.tracker.sides(uuid):
            return None  # Nothing to compare: no server on this host has this guest, or the server was deleted.
        if host.locks.is_held(uuid):
            return ORDER_LOOK
        try:
            state = host.driver.guests.get_info(objects.Instance(uuid=uuid))
        except HypervisorUnavailable:
            return None  # The hypervisor does not answer. All guests are compared when it answers again.
        told = host.upcalls.power_states.get(uuid)
        if told == state or (told is None and check.during_order):
            return None
        return None if self._guests.sync_one(uuid) else self._later(check)

    def _later(self, check: _PendingCheck) -> float | None:
        check.tries += 1
        return BUSY_LOOKS[check.tries - 1] if check.tries <= len(BUSY_LOOKS) else None

    # -- writing of the service record ---------------------------------------------------------------------------------
    def _tell(self, *, missed: bool) -> None:
        with self._lock:
            self._changed, self._missed = True, self._missed or missed
            if self._telling or not self._started:
                return
            self._telling = True
        concurrency.spawn(self._keep_telling, name='hypervisor')

    def _keep_telling(self) -> None:
        """Write the hypervisor's state to the service record, until the record has the latest state.

        A failed write is repeated after a pause. If messages of the driver about guests were missed, also compare all
        guests with their servers.
        """
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
                LOG.info('The service record no longer exists; the state of the hypervisor is not recorded')
            except Exception as error:  # noqa: BLE001 - a host without hypervisor that takes servers is worse
                pause = self._pauses[min(failed, len(self._pauses) - 1)]
                failed += 1
                LOG.warning(
                    'Could not mark the hypervisor as %s in the service record of this host: %s; trying again in %s s',
                    'available' if self._reason is None else 'unavailable',
                    error,
                    pause,
                )
                with self._lock:
                    self._changed, self._missed = True, self._missed or missed
                self._stopping.wait(pause)

    def _write(self) -> None:
        """Write to the service record whether the host is disabled because its hypervisor does not answer.

        If an administrator has disabled the host, it stays disabled.
        """
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
    """Return whether the host was disabled by its own service, not by an administrator."""
    return bool(service.disabled) and (service.disabled_reason or '').startswith(AUTO.strip())
