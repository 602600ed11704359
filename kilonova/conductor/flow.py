"""``Flow``, which runs the steps of an operation (contributor/operations.md describes the rules).

The progress of an operation is stored in its operation row, so another conductor can continue the operation if it takes
the row. The flows are in ``conductor.flows``:

    class Stop(Flow[Outputs]):
        name, outputs = 'stop', Outputs
        steps = (Step('stop_instance', stop_instance),)

``work.Step`` describes the attributes of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from oslo_log import log as logging

from kilonova.conductor.row import OutputsT, SelectOutputs
from kilonova.conductor.work import Step, WaitingForHostSlot, Work
from kilonova.errors import Cancelled, HostRejected, KeyGone, KilonovaError, LeaseLost, Unanswered

LOG = logging.getLogger(__name__)


def reasons(uuid: str, refusals: Iterable[str]) -> str:
    """Return one text with the error messages of the hosts that refused a server, for the message of a fault.

    ``uuid`` is the uuid of the server. It is removed from each message to make the text shorter, because the fault
    names the server anyway. Equal messages of several hosts appear once.
    """
    return '; '.join(
        dict.fromkeys(
            refusal.replace(f'Build of instance {uuid} was re-scheduled: ', '').replace(f' {uuid}', '')
            for refusal in refusals
        )
    )


class Flow(Generic[OutputsT]):
    """The steps of one kind of operation, with an undo function for each step that needs one (a saga).

    The steps are listed as data, so that tests can make each step fail.

    Attributes:
        name: Kind of the operation.
        outputs: Class of the stored results of the steps.
        steps: Steps in their order.
        forward_only: True if a failed step is retried until it succeeds, and no step is ever undone.
    """

    name: str
    outputs: type[OutputsT]
    steps: tuple[Step[OutputsT], ...]
    forward_only = False

    def begin_together(self, works: Sequence[Work[OutputsT]]) -> None:
        """Do common work for several new operations of one create request. Afterwards each operation runs alone.

        ``Boot`` calls the scheduler once here for all the servers. Other flows do nothing.
        """

    def index(self, name: str) -> int:
        """Return the position of the step with this name in ``steps``."""
        return next(i for i, step in enumerate(self.steps) if step.name == name)

    def run(self, work: Work[OutputsT]) -> None:
        """Run the operation from the position in its row to its end, or undo it.

        Returns when the operation has ended, when it must be retried later, or when another conductor owns its row.
        Raises WaitingForHostSlot if the host to be called already has the maximum number of simultaneous calls.
        """
        try:
            if work.cancelled and not work.failed:
                self._cancelled(work)
            while not work.failed and work.position < len(self.steps):
                if work.undoing:
                    self._undo_attempt(work)
                work.check()
                step = self.steps[work.position]
                work.at(work.position, step)
                try:
                    step.do(work)
                    work.done(step)
                except HostRejected as error:
                    if not self.next_attempt(work, step, error):
                        raise self.exhausted(work, error) from error
            if work.failed:
                self.unwind(work)
            else:
                work.close()
        except LeaseLost:
            LOG.info(
                'Operation %s (%s): another conductor has taken it over; stopping here',
                work.uuid,
                self.name,
                instance_uuid=work.instance_uuid,
            )
            work.lost()
        except WaitingForHostSlot:
            raise
        except Unanswered as error:
            work.give_back(error)
        except KeyGone as error:
            self._gone(work, error)
        except Exception as error:  # noqa: BLE001 - the one place where a step's failure is decided upon
            self._failed(work, error)

    def _gone(self, work: Work[OutputsT], error: KeyGone) -> None:
        """Handle the error KeyGone: a host refused a call because the operation is no longer at the step of the call.

        The operation row is read. If another conductor owns the row, this process stops the operation. Otherwise, for
        example if the operation was cancelled, it is undone.
        """
        try:
            became = work.standing()
        except Unanswered as silent:
            work.give_back(silent)
            return
        if isinstance(became, LeaseLost):
            work.lost()
        else:
            self._failed(work, became or error)

    def _failed(self, work: Work[OutputsT], error: Exception) -> None:
        """Record in the operation row that a step has failed and is not retried, and undo the operation.

        The failure is committed before any step is undone. If an error was recorded before, that error is kept. A flow
        with ``forward_only`` is retried instead, unless ``may_end`` returns True.
        """
        if self.forward_only and not self.may_end(work, error):
            LOG.error(
                'Operation %s (%s) failed; it will be retried',
                work.uuid,
                self.name,
                exc_info=error,
                instance_uuid=work.instance_uuid,
            )
            work.give_back(error)
            return
        if isinstance(error, KilonovaError):
            LOG.info('Operation %s (%s) failed: %s', work.uuid, self.name, error, instance_uuid=work.instance_uuid)
        else:
            LOG.error(
                'Operation %s (%s) failed', work.uuid, self.name, exc_info=error, instance_uuid=work.instance_uuid
            )
        try:
            work.fail(error)
            self.unwind(work)
        except LeaseLost:
            work.lost()
        except Unanswered as silent:
            work.give_back(silent)

    def may_end(self, work: Work[OutputsT], error: Exception) -> bool:
        """Return whether a ``forward_only`` flow ends with this error instead of being retried."""
        return isinstance(error, Cancelled)

    def _cancelled(self, work: Work[OutputsT]) -> None:
        raise Cancelled(key=work.uuid)

    def unwind(self, work: Work[OutputsT]) -> None:
        """Undo the failed step and the steps before it, newest first, and write the server's state after the failure.

        A ``forward_only`` flow undoes nothing. If an undo or the last write fails, the operation is retried later.
        """
        if not self.forward_only:
            for position, step in reversed(list(enumerate(self.steps[: work.position + 1]))):
                if step.undo is None:
                    continue
                work.at(position, step)
                try:
                    work.compare()
                    step.undo(work)
                except (LeaseLost, Unanswered, WaitingForHostSlot):
                    raise
                except Exception as error:
                    LOG.exception(
                        'Operation %s (%s): the undo of step %s failed; it will be retried',
                        work.uuid,
                        self.name,
                        step.name,
                        instance_uuid=work.instance_uuid,
                    )
                    work.give_back(error)
                    return
        try:
            self.ended_badly(work)
        except (LeaseLost, Unanswered):
            raise
        except Exception as error:
            LOG.exception(
                'Operation %s (%s): could not write the final state of its server; it will be retried',
                work.uuid,
                self.name,
                instance_uuid=work.instance_uuid,
            )
            work.give_back(error)
        else:
            work.close()

    def next_attempt(self, work: Work[OutputsT], step: Step[OutputsT], error: HostRejected) -> bool:
        """Undo the steps back to ``step.again_from`` and begin the next attempt, on the next host that was chosen.

        Returns False, without an undo, if no other host is left. The decision to undo is committed first, so that
        another conductor that takes the row continues the undo.
        """
        if step.again_from is None or not self.more_attempts(work):
            return False
        LOG.info(
            'Operation %s (%s): attempt %s failed (%s); trying the next host',
            work.uuid,
            self.name,
            work.attempt,
            error,
            instance_uuid=work.instance_uuid,
        )
        work.undo_attempt(self.index(step.again_from), error)
        self._undo_attempt(work)
        return True

    def _undo_attempt(self, work: Work[OutputsT]) -> None:
        for position in range(work.position, (work.outputs.back_to or 0) - 1, -1):
            done = self.steps[position]
            if done.undo is not None:
                work.at(position, done)
                work.compare()
                done.undo(work)
        work.again()

    def more_attempts(self, work: Work[OutputsT]) -> bool:
        """Return whether the operation may be tried on another alternate host that the scheduler has chosen.

        Returns False if the scheduler chooses no hosts for this kind of operation.
        """
        hosts = work.outputs.hosts if isinstance(work.outputs, SelectOutputs) else []
        return work.attempt < min(len(hosts), work.env.max_attempts)

    def exhausted(self, work: Work[OutputsT], error: HostRejected) -> Exception:
        """Return the error with which the operation fails, after a host refused and no other host is left to try.

        The result is ``error``, the refusal of the last host. Subclasses return an error that names all refusals.
        """
        return error

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """Write the server's state after a failed or cancelled operation, and delete the operation row.

        This is done in one transaction. By default the server is not changed.
        """
        work.end()
