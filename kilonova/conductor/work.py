"""``Work``: one operation row in the hands of this conductor.

Each write compares owner, lease, position and attempt (zero rows: LeaseLost, or Cancelled), is committed before it is
acted on, and a database that doesn't answer raises Unanswered. Messages and undos are compared in the same way.
``Step`` is one step of a flow (``flow.Flow``).
"""
from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import objects
from kilonova.conductor.environment import Environment, HostsSilent, silence
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries import claims, instances, metadata, operations
from kilonova.errors import (
    Cancelled,
    HostRejected,
    KeyGone,
    KilonovaError,
    LeaseLost,
    Unanswered,
    Unsent,
    without_paths,
)

LOG = logging.getLogger(__name__)

# Seconds until a row that met silence is taken again; doubled for each try of a forward-only step, up to the last.
PAUSE, LONGEST_PAUSE = 2.0, 30.0
# How often a host that is there is asked for an undo that fails, before it becomes a pending release.
UNDO_TRIES = 3


class HostGone(HostRejected):
    """The host's service is down: asking ends, an alternate may take the server."""

    msg_fmt = 'compute service of host %(host)s is down'


class GuestMayRun(Unanswered):
    """A host that is down may still run the guest: nobody else starts it until that host is back or forced down."""

    msg_fmt = ('compute service of host %(host)s is down, and its hypervisor may still run the server: start the '
               'service again, or make sure that the host is off and force the service down')


@dataclass(frozen=True)
class Step:
    """One step. ``again_from`` names the step that chooses the next alternate when this one's host refuses.

    ``saved``: its output and the position after it must survive a crash (the next step leaves this process); True,
    False, or a function of the work.
    """

    name: str
    do: Callable[[Work], Any]
    undo: Callable[[Work], Any] | None = None
    again_from: str | None = None
    saved: bool | Callable[[Work], bool] = True


class Parked(Exception):
    """The operation waits for a slot of a host; its holder keeps it and goes on when there is one."""


class Work:
    """A view of one operation row. ``db`` is the database that the row lives in now, ``owner`` the owner (a lease of
    this process in that database) as which it was taken."""

    def __init__(self, row: operations.Operation, db: Any, env: Environment, owner: str) -> None:
        self.owner = owner
        self.uuid, self.kind, self.instance_uuid = row.uuid, row.kind, row.instance_uuid
        self.args, self.outputs = row.args, row.outputs
        self.position, self.attempt = row.position, row.attempt
        self.failed, self.cancelled, self.error = row.failed, row.cancelled, row.error
        self.undoing = row.undoing
        # Where the row stands in the database: steps that aren't saved go on without it.
        self._place = (self.position, self.attempt)
        # Whether nothing was sent since a statement compared the row with this.
        self._compared = True
        self.request_id, self.slot = row.request_id, row.slot
        self.db, self.env = db, env
        self.ctxt = RequestContext.from_dict(row.context)
        self.ctxt.cell = db
        self.created_at = row.created_at
        self.held_host: str | None = None
        # Whether its slot of a host is one of those for urgent work.
        self.slot_urgent = False
        self._at = (self.position, self.kind)
        self.tries = 0
        # False: the scheduler may still work on a question about this server (ours, or of whoever had the row before).
        self.select_answered = False
        self._instance: dict[str, Any] | None = None
        self._ended = False

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
            with silence(), self.db.read() as conn:
                self._instance = operations.instance_or_404(conn, self.instance_uuid)
        return self._instance

    def instance(self, fresh: bool = False) -> objects.Instance:
        """The server as an object, with its system metadata."""
        row = self.instance_row(fresh)
        if 'system_metadata' not in row:
            with silence(), self.db.read() as conn:
                row['system_metadata'] = instances.get_system_metadata(conn, self.instance_uuid)
        if self.env.notify.enabled and 'metadata' not in row:
            # Nothing but notifications tells them.
            with silence(), self.db.read() as conn:
                row['metadata'] = metadata.get(conn, self.instance_uuid)
        apart = ('system_metadata', 'metadata')
        values, extra = instances.split({name: value for name, value in row.items() if name not in apart})
        return objects.Instance.from_row(self.ctxt, values, extra, system_metadata=row['system_metadata'],
                                         metadata=row.get('metadata'))

    def changed(self) -> None:
        """A host changed the server: read it again when it is next needed."""
        self._instance = None

    def ask(self, host: str, method: str, **kwargs: Any) -> Any:
        """A long call to a host under this step's key. Silence means ask again (Unanswered), until its service is down
        (HostGone); a host that is known to be down isn't sent anything."""
        with silence():
            if self.env.known_down(self.db, host):
                raise HostGone(host=host)
        self._hold(host)
        self.before_sending()
        kwargs.setdefault('key', self.key())
        try:
            answer = getattr(self.env.compute, method)(self.ctxt, server=host, **kwargs)
        except Unsent:
            self.env.hearing.cut_off()
            raise
        except Unanswered:
            self.env.runner.host_is_silent(host)
            with silence():
                if not self.env.given_up(self.db, host):
                    raise
            LOG.warning('%s of %s: host %s does not answer and its service is down', method, self.instance_uuid, host)
            raise HostGone(host=host) from None
        except KilonovaError:
            self.env.runner.host_answers(host)
            raise
        self.env.runner.host_answers(host)
        return answer

    def _hold(self, host: str) -> None:
        if self.held_host != host:
            self.release_host()
            # What waited is compared again: it may have waited for long.
            if not self.env.runner.take_host(host, self):
                raise Parked
            self.held_host = host

    def release_host(self) -> None:
        """Give the host's slot back; the next operation that waits for it goes on."""
        if self.held_host is not None:
            host, self.held_host = self.held_host, None
            self.env.runner.release_host(host, self)

    def pend(self, host: str, method: str, write: Callable[[Any], object] | None = None, **kwargs: Any) -> None:
        """What a dead host must still give back becomes a pending release: a row of its own that waits for the host.
        ``write(conn)``: what the host would have written of the server, in the same transaction."""
        serializer = objects.base.Serializer()
        args = {'host': host, 'method': method,
                'kwargs': {name: serializer.serialize_entity(self.ctxt, value) for name, value in kwargs.items()
                           if name != 'key'}}
        self.add_release(args, ('host', 'method'), host=host, write=write)

    def add_release(self, args: dict[str, Any], same: Sequence[str], *, host: str | None = None, delay: float = 0,
                    write: Callable[[Any], object] | None = None) -> None:
        """A row of its own for something that is to be given back later, ``delay`` seconds from now at the earliest,
        unless there is one whose args of the names in ``same`` are these. Written together with a look whether we still
        own this row."""
        release = operations.Operation.new(self.ctxt, 'release', self.instance_uuid, args, beside=True, host=host)
        release.request_id = self.request_id
        with silence():
            ours = self._add_release(release, same, delay, write)
        if not ours:
            raise self.standing() or LeaseLost(operation=self.uuid)

    @engine.retried
    def _add_release(self, release: operations.Operation, same: Sequence[str], delay: float,
                     write: Callable[[Any], object] | None) -> bool:
        with self.db.write() as conn:
            if not operations.decide(conn, self.uuid, self.owner, {'owner': self.owner}, at=self._place,
                                     cancelled=True):
                return False
            if write is not None:
                write(conn)
            if not any(row.kind == 'release' and all(row.args.get(name) == release.args[name] for name in same)
                       for row in operations.of_instance(conn, self.instance_uuid)):
                release.not_before = engine.now(conn) + delay if delay else 0.0
                operations.insert(conn, [release])
        return True

    def ask_to_undo(self, host: str, method: str, write: Callable[[Any], object] | None = None,
                    may_run: Callable[[str], Exception | None] = lambda host: None, **kwargs: Any) -> None:
        """Ask a host to give back. A host that is down gets a pending release; so does one that can't do it (its
        hypervisor is away), for another host waits for the server, or whoever unwinds has tried often enough.
        ``write``: see ``pend``. ``may_run(host)``: what to raise in place of that where the host may still run the
        guest and what follows would start it elsewhere as well."""
        try:
            self.ask(host, method, **kwargs)
        except HostGone:
            second = may_run(host)
            if second is not None:
                raise second from None
            self.pend(host, method, write, **kwargs)
        except (Unanswered, LeaseLost, KeyGone, Cancelled):
            raise
        except KilonovaError as error:
            if not self.undoing and int(self.outputs.get('tries', 0)) < UNDO_TRIES:
                raise
            LOG.warning('%s of %s on host %s failed, it is left to a pending release: %s', method, self.instance_uuid,
                        host, error)
            self.pend(host, method, write, **kwargs)

    # -- decisions ------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Before each step: a process that couldn't renew its lease starts none."""
        self.env.runner.check_lease(self.db, self.owner)

    def compare(self) -> None:
        """Before each message and each undo: the row is still ours and stands where we think. No statement, where
        nothing was sent since the last one that compared it. LeaseLost, Cancelled: it isn't."""
        self.check()
        if self._compared:
            return
        with silence(), self.db.read() as conn:
            stands = operations.stands(conn, self.uuid, self.owner, self._place)
        if not stands:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._compared = True

    def compare_now(self) -> None:
        """``compare`` by a statement in any case: between reading and writing at a service that knows no owners."""
        self._compared = False
        self.compare()

    def before_sending(self) -> None:
        """``compare``, and from now on something is sent."""
        self.compare()
        self._compared = False

    def resumed(self) -> None:
        """The work waited for a slot: what became of its row meanwhile? LeaseLost: it isn't ours any more."""
        self._compared = False
        became = self.standing()
        if became is not None and not isinstance(became, Cancelled):
            raise became

    def handed_over(self, db: Any, owner: str, position: int) -> None:
        """The row lives in the database of a cell from now on, as ``owner``'s."""
        self.db = self.ctxt.cell = db
        self.owner, self._place, self._compared = owner, (position, self.attempt), True

    def row_of(self, owner: str, position: int) -> operations.Operation:
        """This row as ``owner``'s at a position, for another database."""
        return operations.Operation(
            uuid=self.uuid, kind=self.kind, instance_uuid=self.instance_uuid, args=self.args,
            context=self.ctxt.stored(), request_id=self.request_id, position=position, attempt=self.attempt,
            outputs=self.outputs, owner=owner)

    def _decide(self, values: dict[str, Any], cancelled: bool = False) -> None:
        after = (values.get('position', self._place[0]), values.get('attempt', self._place[1]))
        with silence():
            written = self._write(values, cancelled, after)
        if not written:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._place, self._compared = after, True

    @engine.retried
    def _write(self, values: dict[str, Any], cancelled: bool, after: operations.Place) -> bool:
        with self.db.write() as conn:
            if operations.decide(conn, self.uuid, self.owner, values, at=self._place, cancelled=cancelled):
                return True
            # Perhaps written, and only the answer to its COMMIT was lost.
            return engine.repeated() and operations.decide(conn, self.uuid, self.owner, values, at=after,
                                                           cancelled=cancelled)

    def standing(self) -> Exception | None:
        """What became of our row: LeaseLost, Cancelled, or None when it stands as we know it."""
        with silence(), self.db.read() as conn:
            row = operations.get(conn, self.uuid)
            ours = row is not None and row.owner == self.owner and operations.lives(conn, self.owner)
        if row is None or not ours or (row.position, row.attempt) != self._place:
            return LeaseLost(operation=self.uuid)
        if row.cancelled and not self.failed:
            self.cancelled = True
            return Cancelled(key=self.uuid)
        return None

    def done(self, step: Step, result: Any) -> None:
        """A step is done; its output is kept in the row when it must survive a crash."""
        self.tries = 0
        if result is not None:
            self.outputs[step.name] = result
        self.position += 1
        saved = step.saved(self) if callable(step.saved) else step.saved
        if saved and not self._ended:
            self._decide({'position': self.position, 'outputs': self.outputs})

    def undo_attempt(self, back_to: int, error: Exception) -> None:
        """Decide to undo the steps of this attempt down to ``back_to``: committed before any of them is undone."""
        self.outputs.setdefault('refusals', []).append(str(error))
        self.outputs['back_to'] = back_to
        self.undoing = True
        self._decide({'undoing': True, 'position': self.position, 'outputs': self.outputs})

    def again(self) -> None:
        """What was to be undone is; the next attempt starts there."""
        self.attempt += 1
        self.position = self.outputs.pop('back_to')
        self._decide({'position': self.position, 'attempt': self.attempt, 'outputs': self.outputs, 'written': '',
                      'undoing': False})
        self.undoing = False
        self.changed()

    def fail(self, error: Exception) -> None:
        """Decide to unwind: committed before any undo; the first reason stays."""
        if self.failed:
            return
        self.failed = True
        self.error = {'class': type(error).__name__, 'message': readable(error), 'code': getattr(error, 'code', 500),
                      'details': ''.join(traceback.format_exception(error))[-8000:]}
        self._decide({'failed': True, 'error': self.error, 'position': self.position, 'outputs': self.outputs},
                     cancelled=True)

    def give_back(self, error: Exception | None = None) -> None:
        """Leave the row to a later try: no owner, not before a pause."""
        self.release_host()
        self.tries = int(self.outputs.get('tries', 0)) + 1
        self.outputs['tries'] = self.tries
        # Hosts that come back do so within a known time.
        longest = 2 * PAUSE if isinstance(error, HostsSilent) else LONGEST_PAUSE
        pause = min(PAUSE * 2 ** min(self.tries - 1, 5), longest)
        LOG.info('Operation %s (%s) of %s waits %.0f s: %s', self.uuid, self.kind, self.instance_uuid, pause, error)
        try:
            with self.db.write() as conn:
                operations.give_back(conn, self.uuid, self.owner, self._place, pause, self.outputs)
        except Exception:  # noqa: BLE001 - the row stays ours then, the sweep takes what is in no runner
            LOG.warning('Operation %s could not be given back now', self.uuid)
        self.env.runner.finished(self, retry_in=pause)

    # -- ends -----------------------------------------------------------------------------------------------------
    def ended_by_host(self) -> None:
        """The host's save wrote the end state and deleted the row."""
        self._ended = True

    def end(self, write: Callable[[Any], object] | None = None) -> None:
        """Write the end state with ``write(conn)`` and end the row in the same transaction; wake who waited behind
        it."""
        with silence():
            ours, waiting = self._end(write)
        if not ours:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._ended = True
        if waiting:
            self.env.runner.wake(self.db, [waiting], urgent=True)

    @engine.retried
    def _end(self, write: Callable[[Any], object] | None) -> tuple[bool, str | None]:
        # A row that was cancelled behind our back is not ended as a success: its holder unwinds it.
        unwinding = self.failed or self.cancelled
        with self.db.write() as conn:
            if not operations.end_owned(conn, self.uuid, self.owner, cancelled=unwinding, at=self._place):
                # Ended, perhaps, and only the answer to its COMMIT was lost.
                return engine.repeated() and operations.get(conn, self.uuid) is None, None
            if write is not None:
                write(conn)
            return True, operations.promote(conn, self.instance_uuid) if unwinding else None

    def close(self) -> None:
        """The last step is done: end the row unless a host or a step did."""
        if not self._ended:
            self.end()
        self.release_host()
        self.env.runner.finished(self)

    def lost(self) -> None:
        """Another conductor owns it: forget it."""
        self.release_host()
        self.env.runner.finished(self)

    def fault(self) -> dict[str, Any]:
        """The first error as a fault row."""
        error = self.error or {}
        return {'code': error.get('code', 500), 'message': error.get('message', 'Unknown error'),
                'details': error.get('details'), 'host': self.held_host}


def readable(error: Exception) -> str:
    """What a user may read: our own texts, without paths of hosts; of anything else only the class (its text may hold
    internals). The fault's details, which are for administrators, have all of it."""
    return without_paths(str(error)) if isinstance(error, KilonovaError) else type(error).__name__
