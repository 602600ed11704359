"""``Work``, an operation that a worker of this conductor runs, and ``Step``, one step of its flow.

The steps of all flows (``conductor.flows``) receive the operation as a ``Work``:

    def pause_instance(work: Work[Outputs]) -> None:
        work.call_host(work.instance_row()['host'], Compute.pause_instance, instance=work.instance())
        work.ended_by_host()
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from oslo_log import log as logging

from kilonova import objects
from kilonova.conductor.environment import Environment, HostsNotReporting
from kilonova.conductor.row import ChosenHost, LeasedOperation, OutputsT, SelectOutputsT
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments.base import Envelope, SpecArguments
from kilonova.db.queries import claims, instances, metadata, operations
from kilonova.errors import Cancelled, HostRejected, KilonovaError, Unanswered, Unsent, shortened, without_paths
from kilonova.objects.vif import Vif

LOG = logging.getLogger(__name__)
P = ParamSpec('P')
Reply = TypeVar('Reply')
# An RPC method of ``Compute``. Its first two parameters are ``self`` and the request context.
HostMethod = Callable[Concatenate[Any, RequestContext, P], Reply]

# Seconds until the first retry of an operation, and the maximum. Each retry without progress doubles the pause.
PAUSE, LONGEST_PAUSE = 2.0, 30.0
# Maximum length of the text that tells operators why an operation is retried later, in characters.
LONGEST_REASON = 1000
# Maximum number of characters of an error message in the operation row and in the event of the instance action.
MOST_TEXT = 4096
# Kinds of operations that are urgent: workers run them before others. Operations that are being undone are urgent, too.
URGENT_KINDS = frozenset(('delete', 'soft_delete', 'release', 'confirm', 'revert'))


class HostDown(HostRejected):
    """The compute service of a host is down. The conductor no longer calls the host, and may try another one."""

    msg_fmt = 'compute service of host %(host)s is down'


class HostNotFenced(Unanswered):
    """The operation must wait, because a host that is down may still run the guest.

    No other host may start the guest until the host is back, or until an operator has forced its service down.
    """

    msg_fmt = (
        'compute service of host %(host)s is down, and its hypervisor may still run the server: start the '
        'service again, or make sure that the host is off and force the service down'
    )


class RetryLater(Unanswered):
    """The operation is retried after ``pause`` seconds, because it waits, for example until a volume is created."""

    msg_fmt = 'Waiting for %(who)s: %(reason)s'

    def __init__(self, who: str, reason: str, pause: float) -> None:
        super().__init__(who=who, reason=reason)
        self.pause = pause


class WaitingForHostSlot(Exception):
    """The operation waits to call a host, because the maximum number of operations (slots) are calling that host now.

    Meanwhile the worker thread runs other operations. This operation continues when a slot of the host is free.
    """


class Work(LeasedOperation[OutputsT]):
    """An operation row that this process owns and that one of its workers runs.

    Adds methods to ``LeasedOperation`` that read the server, call hosts, and record the progress of the flow in the
    row.
    """

    def __init__(
        self, row: operations.OperationRow, db: engine.Database, env: Environment, owner: str, outputs: type[OutputsT]
    ) -> None:
        super().__init__(row, db, env, owner, outputs)
        self.held_host: str | None = None
        # Whether the held slot is one of the slots for urgent operations.
        self.slot_urgent = False
        # False if a call to the scheduler for this server may have got no reply.
        # A scheduler whose reply did not arrive may still claim resources for the server in Placement.
        self.select_answered = False
        # True if this process created the server's accelerator requests and has not tried to bind any of them yet.
        self.unbound = False
        # True if this process has just inserted the server into its cell.
        # A server that was just inserted has no ports in Neutron yet, so the next step need not search for ports.
        self.just_handed_over = False
        self._together: Callable[[engine.Connection], object] | None = None
        self._at = (self.position, self.kind)
        self._instance: dict[str, Any] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether workers run the operation before others: its kind is in URGENT_KINDS, or it is being undone."""
        return self.kind in URGENT_KINDS or self.failed

    # -- values and calls for the steps ---------------------------------------------------------------------------
    def at(self, position: int, step: Step[OutputsT]) -> None:
        """Set the current step, which is being done or undone, and its position in the flow, counted from 0.

        The step keys that ``key`` returns contain the position and the name of the step.
        """
        self._at = (position, step.key_name)

    def key(self) -> str:
        """Return the step key of the current step in this attempt.

        A step key is ``<operation uuid>/<position>.<step name>/<attempt>``, with the step's ``key_name``. Hosts
        recognise a repeated call by its step key.
        """
        return claims.make_key(self.uuid, *self._at, self.attempt)

    def instance_row(self, fresh: bool = False) -> dict[str, Any]:
        """Return the server's row with its columns of instance_extra.

        The row is cached. It is read again if ``fresh`` is True or ``changed`` was called. Raises InstanceNotFound if
        there is no such server, and Unanswered if the database does not answer.
        """
        if self._instance is None or fresh:
            with engine.silence(), self.db.read() as conn:
                self._instance = operations.instance_or_404(conn, self.instance_uuid)
        return self._instance

    def instance(self, fresh: bool = False) -> objects.Instance:
        """Return the server as an object with its system metadata.

        The server's row is cached. If ``fresh`` is True, the row is read again. The user's metadata are loaded only if
        notifications are enabled.

        Raises ServerUnreadable if a stored JSON text of the server cannot be parsed. Urgent operations (``is_urgent``)
        do not raise it, so a server with an unreadable text can still be deleted.
        """
        row = self.instance_row(fresh)
        if 'system_metadata' not in row:
            with engine.silence(), self.db.read() as conn:
                row['system_metadata'] = instances.get_system_metadata(conn, self.instance_uuid)
        if self.env.notify.enabled and 'metadata' not in row:
            # Read the user's metadata, because notifications contain them.
            with engine.silence(), self.db.read() as conn:
                row['metadata'] = metadata.get(conn, self.instance_uuid)
        apart = ('system_metadata', 'metadata')
        values, extra = instances.split({name: value for name, value in row.items() if name not in apart})
        return objects.Instance.from_row(
            self.ctxt,
            values,
            extra,
            system_metadata=row['system_metadata'],
            metadata=row.get('metadata'),
            lenient=self.is_urgent,
        )

    def vifs(self, fresh: bool = False) -> list[Vif]:
        """Return the server's network interfaces in the guest's order. If ``fresh`` is True, read the row again."""
        return [Vif.read(stored) for stored in json.loads(self.instance_row(fresh)['extra_network_info'] or '[]')]

    def request_spec(self, stored: Envelope | None = None) -> objects.RequestSpec:
        """Return a request spec from its serialized form ``stored``.

        If ``stored`` is None, it is the request spec in the arguments of the operation (``SpecArguments``).
        """
        envelope = stored if stored is not None else self.arguments(SpecArguments).request_spec
        found: objects.RequestSpec = objects.base.Serializer().deserialize_entity(self.ctxt, envelope)
        return found

    def chosen(self: Work[SelectOutputsT]) -> ChosenHost:
        """Return the host that the scheduler chose and that is tried in this attempt."""
        return self.outputs.hosts[self.attempt - 1]

    def changed(self) -> None:
        """Discard the cached row of the server, because a host or a step has changed the row in the database."""
        self._instance = None

    def query_host(self, host: str, method: HostMethod[P, Reply], *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Call a host's method that changes nothing on the host and so needs no step key, and return the reply.

        Raises:
            HostDown: The compute service of the host is down.
            Unanswered: The host did not reply.
            LeaseLost: Another conductor owns the operation.
            Cancelled: The operation was cancelled.
            KilonovaError: The error that the host replied.
        """
        self._check_known(host)
        self.before_sending()
        try:
            return getattr(self.env.compute, method.__name__)(self.ctxt, *args, server=host, **kwargs)  # type: ignore[no-any-return]
        except Unsent:
            self.env.liveness.cut_off()
            raise
        except Unanswered:
            self._check_alive(method.__name__, host)
            raise

    def _check_known(self, host: str) -> None:
        """Raise HostDown if the host is down.

        If the last periodic check found the host up, the database is normally not read. It is read to check the host
        again in three cases: the last check found the host down, the host did not answer this process's last call, or
        this operation is a retry.
        """
        liveness, doubtful = self.env.liveness, self.outputs.tries or self.env.slots.is_silent(host)
        with engine.silence():
            if liveness.is_down(self.db, host) if doubtful else liveness.known_down(self.db, host):
                raise HostDown(host=host)

    def _check_alive(self, method: str, host: str) -> None:
        """Raise HostDown if the host, which did not answer the call ``method``, is considered down."""
        with engine.silence():
            if not self.env.liveness.is_down(self.db, host):
                return
        LOG.warning(
            'Host %s did not answer %s, and its compute service is down', host, method, instance_uuid=self.instance_uuid
        )
        raise HostDown(host=host) from None

    def call_host(self, host: str, method: HostMethod[P, Reply], *args: P.args, **kwargs: P.kwargs) -> Reply:
        """Call a declared method of a host with the key of the current step, and return its reply.

        A call may take long, so the number of operations that call a host at the same time is limited: each needs a
        slot of the host. A host that is known to be down is not called.

        Raises:
            HostDown: The compute service of the host is down.
            Unanswered: The host did not reply, so it is unknown whether the host did the step. The step is repeated
                with the same key.
            WaitingForHostSlot: All slots of the host are taken.
            LeaseLost: Another conductor owns the operation.
            Cancelled: The operation was cancelled.
            KilonovaError: The error that the host replied.
        """
        self._check_known(host)
        if self.held_host != host:
            self.release_host()
            # The wait for a slot may be long. So the operation reads its row again (``resumed``) when it gets a slot.
            if not self.env.slots.take(host, self):
                raise WaitingForHostSlot
            self.held_host = host
        self.before_sending()
        try:
            answer: Reply = getattr(self.env.compute, method.__name__)(
                self.ctxt, *args, server=host, key=self.key(), **kwargs
            )
        except Unsent:
            self.env.liveness.cut_off()
            raise
        except Unanswered:
            self.env.slots.silent(host)
            self._check_alive(method.__name__, host)
            raise
        except KilonovaError:
            self.env.slots.answers(host)
            raise
        self.env.slots.answers(host)
        return answer

    def release_host(self) -> None:
        """Give up the operation's permit to call a host (slot), if it has one, for the next waiting operation."""
        if self.held_host is not None:
            host, self.held_host = self.held_host, None
            self.env.slots.release(host, self)

    # -- progress of the flow -------------------------------------------------------------------------------------
    def done(self, step: Step[OutputsT]) -> None:
        """Advance to the next position after the step ``step`` was done.

        The position and the outputs are written to the operation row only if ``step.saved`` is true.
        """
        self.position += 1
        saved = step.saved(self) if callable(step.saved) else step.saved
        write, self._together = self._together, None
        if saved and not self._ended:
            self.decide({'position': self.position}, write=write)

    def write_with_checkpoint(self, write: Callable[[engine.Connection], object]) -> None:
        """Register a function that writes in the same transaction in which the current step is recorded as done.

        The current step must be saved (``Step.saved``), because otherwise there is no such transaction.
        """
        self._together = write

    def undo_attempt(self, back_to: int, error: Exception) -> None:
        """Record in the operation row that the steps of this attempt will be undone, down to the position ``back_to``.

        ``error`` is the refusal of the host, which is kept in the outputs. Returns after the COMMIT, so that no step is
        undone before it.
        """
        self.outputs.refusals.append(shortened(str(error), MOST_TEXT))
        self.outputs.back_to = back_to
        self.undoing = True
        self.decide({'undoing': True, 'position': self.position})

    def again(self) -> None:
        """Start the next attempt, with the next chosen host, after the steps of the last attempt were undone.

        The attempt begins at the step ``again_from``, down to which the last attempt was undone.
        """
        self.attempt += 1
        self.position, self.outputs.back_to = self.outputs.back_to or 0, None
        self.decide({'position': self.position, 'attempt': self.attempt, 'written': '', 'undoing': False})
        self.undoing = False
        self.changed()

    def fail(self, error: Exception) -> None:
        """Record in the operation row that the operation has failed with this error and will be undone.

        If the row already has an error, for example the reason of a cancel, this error is kept instead. Does nothing if
        the operation is already recorded as failed. Returns after the COMMIT, so that no step is undone before it.
        """
        if self.failed:
            return
        if isinstance(error, Cancelled) and self.error is None:
            # A host reported that the operation was cancelled.
            # ``standing`` reads the operation row, and sets ``self.error`` to the row's reason of the cancel, if any.
            self.standing()
        self.failed = True
        self.error = self.error or {
            'class': type(error).__name__,
            'message': shortened(readable(error), MOST_TEXT),
            'code': getattr(error, 'code', 500),
            'details': ''.join(traceback.format_exception(error))[-8000:],
        }
        self.decide({'failed': True, 'error': self.error, 'position': self.position}, cancelled=True)

    def give_back(self, error: Exception | None = None) -> None:
        """Stop the operation here, so that a conductor retries it after a pause.

        The owner is removed from the operation row. The pause is ``PAUSE`` seconds at first, and doubles with each
        retry without progress. If ``error`` is a RetryLater error, its attribute ``pause`` is used instead.
        """
        self.release_host()
        self.outputs.reason = shortened(readable(error), LONGEST_REASON) if error is not None else ''
        if isinstance(error, RetryLater):
            pause = error.pause
        else:
            self.outputs.tries += 1
            # If no host reports, messaging is interrupted. The pause stays short, because hosts report again soon.
            longest = 2 * PAUSE if isinstance(error, HostsNotReporting) else LONGEST_PAUSE
            pause = min(PAUSE * 2 ** min(self.outputs.tries - 1, 5), longest)
        LOG.info(
            'Operation %s (%s) will be retried in %.0f s: %s',
            self.uuid,
            self.kind,
            pause,
            error,
            instance_uuid=self.instance_uuid,
        )
        try:
            self.release(pause)
        except Exception:  # noqa: BLE001 - the row stays ours then, the sweep takes what is in no runner
            LOG.warning(
                'Could not remove the owner of operation %s from its row; the next periodic search '
                '([conductor]sweep_interval) continues the operation',
                self.uuid,
                instance_uuid=self.instance_uuid,
            )
        self.env.runner.finished(self, retry_in=pause)

    # -- end of the operation -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Delete the operation row after the last step, and remove the operation from this process.

        If a host or a step has already deleted the row, the database is not changed.
        """
        if not self._ended:
            self.end()
        self.lost()

    def lost(self) -> None:
        """Remove the operation from this process, because it has ended or another conductor owns it."""
        self.release_host()
        self.env.runner.finished(self)

    def fault(self) -> dict[str, Any]:
        """Return the first error of the operation as a dict of the columns of a fault row."""
        error = self.error or {}
        return {
            'code': error.get('code', 500),
            'message': error.get('message', 'Unknown error'),
            'details': error.get('details'),
            'host': self.held_host,
        }

    def event(self, name: str, result: str = 'Success', host: str | None = None) -> dict[str, Any]:
        """Return the columns of an event of the instance action as a dict, for the transaction that ends the operation.

        ``result`` is 'Success' or 'Error'. The event contains the first error of the operation, if there was one.
        """
        error = self.error or {}
        return {
            'event': name,
            'result': result,
            'start_time': self.created_at,
            'finish_time': instances.utcnow(),
            'host': host,
            'details': error.get('message'),
            'traceback': error.get('details'),
        }


@dataclass(frozen=True)
class Step(Generic[OutputsT]):
    """One step of a flow: a function and, if needed, the function that undoes it.

    Attributes:
        name: Name of the step: what it does.
        do: Function that does the step. It must be safe to call repeatedly. It stores results for later steps in
            ``work.outputs``.
        undo: Function that undoes the step. It must be safe to call repeatedly, and also if ``do`` was never called.
        again_from: Name of the step at which the next attempt begins, with the next host, if the host of this step
            refuses. None if no other host is tried.
        saved: Whether the outputs and the next position are written to the operation row after the step, because they
            must survive a crash. May be a function of the work. Nothing is written after a step that ended the row.
        formerly: Name of the step in the previous release, or '' if it is the same. The step keys contain this name, so
            that hosts and rows that know the step by its former name recognise it.
    """

    name: str
    do: Callable[[Work[OutputsT]], None]
    undo: Callable[[Work[OutputsT]], None] | None = None
    again_from: str | None = None
    saved: bool | Callable[[Work[OutputsT]], bool] = True
    formerly: str = ''

    @property
    def key_name(self) -> str:
        """The name of the step in its step keys: its name in the previous release, if the step was renamed since."""
        return self.formerly or self.name


def readable(error: Exception) -> str:
    """Return the text of an error that users may read.

    For Kilonova's own errors the text is the message without file paths of hosts. For all other errors it is only the
    name of the class, because their messages may contain internal details. Administrators see the whole message in the
    details of the fault.
    """
    return without_paths(str(error)) if isinstance(error, KilonovaError) else type(error).__name__
