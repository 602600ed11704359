"""``Work``: one operation in the hands of this conductor, as its flow's steps see it. ``Step`` is one of these.

    def stop_instance(work: Work[Outputs]) -> None:
        work.ask(work.instance_row()['host'], 'stop_instance', instance=work.instance(), clean_shutdown=True)
        work.ended_by_host()
"""
from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from kilonova import objects
from kilonova.conductor.environment import Environment, HostsSilent
from kilonova.conductor.row import OutputsT, OwnedRow
from kilonova.db import engine
from kilonova.db.queries import claims, instances, metadata, operations
from kilonova.errors import Cancelled, HostRejected, KilonovaError, Unanswered, Unsent, shortened, without_paths
from kilonova.objects.vif import Vif

LOG = logging.getLogger(__name__)

# Seconds until a row that met silence is taken again; doubled for each try of a forward-only step, up to the last.
PAUSE, LONGEST_PAUSE = 2.0, 30.0
# Characters of the reason why a row waits, as operators read it.
LONGEST_REASON = 1000
# Characters of what a row keeps of an error. A fault's column is shorter; an action's event has them all.
MOST_TEXT = 4096
# Of these kinds, and of whatever is being undone, work goes before the rest.
URGENT_KINDS = frozenset(('delete', 'soft_delete', 'release', 'confirm', 'revert'))


class HostGone(HostRejected):
    """The host's service is down: asking ends, an alternate may take the server."""

    msg_fmt = 'compute service of host %(host)s is down'


class GuestMayRun(Unanswered):
    """A host that is down may still run the guest: nobody else starts it until that host is back or forced down."""

    msg_fmt = ('compute service of host %(host)s is down, and its hypervisor may still run the server: start the '
               'service again, or make sure that the host is off and force the service down')


class NotYet(Unanswered):
    """Somebody else is still at work on what the operation needs: it is tried again after ``pause`` seconds."""

    def __init__(self, who: str, reason: str, pause: float) -> None:
        super().__init__(who=who, reason=reason)
        self.pause = pause


class Parked(Exception):
    """The operation waits for a slot of a host; its holder keeps it and goes on when there is one."""


class Work(OwnedRow[OutputsT]):
    """A row that a worker of this process is at."""

    def __init__(self, row: operations.Operation, db: engine.Database, env: Environment, owner: str,
                 outputs: type[OutputsT]) -> None:
        super().__init__(row, db, env, owner, outputs)
        self.held_host: str | None = None
        # Whether its slot of a host is one of those for urgent work.
        self.slot_urgent = False
        # False: the scheduler may still work on a question about this server (ours, or of whoever had the row before).
        self.select_answered = False
        # True: this process made the accelerator requests, and no binding was tried yet.
        self.unbound = False
        # True: this process has just handed the server over, and nothing was asked of the network service for it.
        self.just_handed_over = False
        self._together: Callable[[engine.Connection], object] | None = None
        self._at = (self.position, self.kind)
        self._instance: dict[str, Any] | None = None

    @property
    def is_urgent(self) -> bool:
        """Deletes, undos and releases."""
        return self.kind in URGENT_KINDS or self.failed

    # -- what the steps need --------------------------------------------------------------------------------------
    def at(self, position: int, step: str) -> None:
        """The step that is being done or undone."""
        self._at = (position, step)

    def key(self) -> str:
        """The key of the current step in this attempt."""
        return claims.make_key(self.uuid, *self._at, self.attempt)

    def instance_row(self, fresh: bool = False) -> dict[str, Any]:
        """The server's row with its extra columns; read once, again when a step changed it."""
        if self._instance is None or fresh:
            with engine.silence(), self.db.read() as conn:
                self._instance = operations.instance_or_404(conn, self.instance_uuid)
        return self._instance

    def instance(self, fresh: bool = False) -> objects.Instance:
        """Return the server as an object, with its system metadata.

        Raises ServerUnreadable for a text that cannot be read, if the operation is no removal and no undo.
        """
        row = self.instance_row(fresh)
        if 'system_metadata' not in row:
            with engine.silence(), self.db.read() as conn:
                row['system_metadata'] = instances.get_system_metadata(conn, self.instance_uuid)
        if self.env.notify.enabled and 'metadata' not in row:
            # Nothing but notifications tells them.
            with engine.silence(), self.db.read() as conn:
                row['metadata'] = metadata.get(conn, self.instance_uuid)
        apart = ('system_metadata', 'metadata')
        values, extra = instances.split({name: value for name, value in row.items() if name not in apart})
        return objects.Instance.from_row(self.ctxt, values, extra, system_metadata=row['system_metadata'],
                                         metadata=row.get('metadata'), lenient=self.is_urgent)

    def vifs(self, fresh: bool = False) -> list[Vif]:
        """The server's interfaces, in the order in which its guest has them."""
        return [Vif.read(stored) for stored in json.loads(self.instance_row(fresh)['extra_network_info'] or '[]')]

    def changed(self) -> None:
        """A host changed the server: read it again when it is next needed."""
        self._instance = None

    def inquire(self, host: str, method: str, **kwargs: Any) -> Any:
        """A question to a host, which changes nothing there and needs no key. Errors as ``ask`` has them."""
        self._check_known(host)
        self.before_sending()
        try:
            return getattr(self.env.compute, method)(self.ctxt, server=host, **kwargs)
        except Unsent:
            self.env.hearing.cut_off()
            raise
        except Unanswered:
            self._check_alive(method, host)
            raise

    def _check_known(self, host: str) -> None:
        """Raise HostGone if the host is down. Costs a statement only where the last look found it down, where its last
        call was not answered, or where this operation was given back before: it may have been forced down since."""
        hearing, doubtful = self.env.hearing, self.outputs.tries or self.env.slots.is_silent(host)
        with engine.silence():
            if hearing.is_down(self.db, host) if doubtful else hearing.known_down(self.db, host):
                raise HostGone(host=host)

    def _check_alive(self, method: str, host: str) -> None:
        """A host didn't answer. HostGone: its service is down."""
        with engine.silence():
            if not self.env.hearing.is_down(self.db, host):
                return
        LOG.warning('%s of %s: host %s does not answer and its service is down', method, self.instance_uuid, host)
        raise HostGone(host=host) from None

    def ask(self, host: str, method: str, **kwargs: Any) -> Any:
        """A long call to a host under this step's key. Silence means ask again (Unanswered), until its service is down
        (HostGone); a host that is known to be down isn't sent anything."""
        self._check_known(host)
        if self.held_host != host:
            self.release_host()
            # What waited is compared again: it may have waited for long.
            if not self.env.slots.take(host, self):
                raise Parked
            self.held_host = host
        self.before_sending()
        kwargs.setdefault('key', self.key())
        try:
            answer = getattr(self.env.compute, method)(self.ctxt, server=host, **kwargs)
        except Unsent:
            self.env.hearing.cut_off()
            raise
        except Unanswered:
            self.env.slots.silent(host)
            self._check_alive(method, host)
            raise
        except KilonovaError:
            self.env.slots.answers(host)
            raise
        self.env.slots.answers(host)
        return answer

    def release_host(self) -> None:
        """Give the host's slot back; the next operation that waits for it goes on."""
        if self.held_host is not None:
            host, self.held_host = self.held_host, None
            self.env.slots.release(host, self)

    # -- decisions ------------------------------------------------------------------------------------------------
    def done(self, step: Step[OutputsT]) -> None:
        """A step is done; the outputs are kept in the row when they must survive a crash."""
        self.position += 1
        saved = step.saved(self) if callable(step.saved) else step.saved
        write, self._together = self._together, None
        if saved and not self._ended:
            self.decide({'position': self.position}, write=write)

    def together(self, write: Callable[[engine.Connection], object]) -> None:
        """What the current step, a saved one, wants written in the transaction that says that it is done."""
        self._together = write

    def undo_attempt(self, back_to: int, error: Exception) -> None:
        """Decide to undo the steps of this attempt down to ``back_to``: committed before any of them is undone."""
        self.outputs.refusals.append(shortened(str(error), MOST_TEXT))
        self.outputs.back_to = back_to
        self.undoing = True
        self.decide({'undoing': True, 'position': self.position})

    def again(self) -> None:
        """What was to be undone is; the next attempt starts there."""
        self.attempt += 1
        self.position, self.outputs.back_to = self.outputs.back_to or 0, None
        self.decide({'position': self.position, 'attempt': self.attempt, 'written': '', 'undoing': False})
        self.undoing = False
        self.changed()

    def fail(self, error: Exception) -> None:
        """Decide to unwind: committed before any undo; the first reason stays."""
        if self.failed:
            return
        if isinstance(error, Cancelled) and self.error is None:
            # A host heard of it first: whoever cancelled the row may have written why.
            self.standing()
        self.failed = True
        self.error = self.error or {
            'class': type(error).__name__, 'message': shortened(readable(error), MOST_TEXT),
            'code': getattr(error, 'code', 500), 'details': ''.join(traceback.format_exception(error))[-8000:]}
        self.decide({'failed': True, 'error': self.error, 'position': self.position}, cancelled=True)

    def give_back(self, error: Exception | None = None) -> None:
        """Leave the row to a later try: no owner, not before a pause."""
        self.release_host()
        self.outputs.reason = shortened(readable(error), LONGEST_REASON) if error is not None else ''
        if isinstance(error, NotYet):
            pause = error.pause
        else:
            self.outputs.tries += 1
            # Hosts that come back do so within a known time.
            longest = 2 * PAUSE if isinstance(error, HostsSilent) else LONGEST_PAUSE
            pause = min(PAUSE * 2 ** min(self.outputs.tries - 1, 5), longest)
        LOG.info('Operation %s (%s) of %s waits %.0f s: %s', self.uuid, self.kind, self.instance_uuid, pause, error)
        try:
            self.release(pause)
        except Exception:  # noqa: BLE001 - the row stays ours then, the sweep takes what is in no runner
            LOG.warning('Operation %s could not be given back now', self.uuid)
        self.env.runner.finished(self, retry_in=pause)

    # -- ends -----------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """The last step is done: end the row unless a host or a step did."""
        if not self._ended:
            self.end()
        self.lost()

    def lost(self) -> None:
        """It is over, or another conductor owns it: forget it."""
        self.release_host()
        self.env.runner.finished(self)

    def fault(self) -> dict[str, Any]:
        """The first error as a fault row."""
        error = self.error or {}
        return {'code': error.get('code', 500), 'message': error.get('message', 'Unknown error'),
                'details': error.get('details'), 'host': self.held_host}

    def event(self, name: str, result: str = 'Success', host: str | None = None) -> dict[str, Any]:
        """An event that is written with the end state; with the first error, if there was one."""
        error = self.error or {}
        return {'event': name, 'result': result, 'start_time': self.created_at, 'finish_time': instances.utcnow(),
                'host': host, 'details': error.get('message'), 'traceback': error.get('details')}


@dataclass(frozen=True)
class Step(Generic[OutputsT]):
    """One step. ``again_from`` names the step that chooses the next alternate when this one's host refuses.

    ``do(work)`` may be repeated; it puts what later steps need into ``work.outputs``. ``undo(work)`` is idempotent and
    safe when ``do`` never happened. ``saved``: the outputs and the position after it must survive a crash (the next
    step leaves this process); True, False, or a function of the work. Nothing is saved behind a step that ended the
    row.
    """

    name: str
    do: Callable[[Work[OutputsT]], None]
    undo: Callable[[Work[OutputsT]], None] | None = None
    again_from: str | None = None
    saved: bool | Callable[[Work[OutputsT]], bool] = True


def readable(error: Exception) -> str:
    """What a user may read: our own texts, without paths of hosts; of anything else only the class (its text may hold
    internals). The fault's details, which are for administrators, have all of it."""
    return without_paths(str(error)) if isinstance(error, KilonovaError) else type(error).__name__
