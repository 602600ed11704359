"""A flow runs an operation's steps from its row, so that whoever holds the lease can go on (operations.md).

    class Stop(Flow[Outputs]):
        name, outputs = 'stop', Outputs
        steps = (Step('stop_instance', stop_instance),)

What a step is, and what it may do: ``work.Step``.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Generic

from kilonova.conductor.row import Chosen, OutputsT
from kilonova.conductor.work import Parked, Step, Work
from kilonova.errors import Cancelled, HostRejected, KeyGone, KilonovaError, LeaseLost, Unanswered

LOG = logging.getLogger(__name__)


def reasons(uuid: str, refusals: Iterable[str]) -> str:
    """Return what hosts said of a server, for a fault that names the server itself: without its uuid, which would take
    the room of the reasons, and what several hosts said once."""
    return '; '.join(dict.fromkeys(refusal.replace(f'Build of instance {uuid} was re-scheduled: ', '')
                                   .replace(f' {uuid}', '') for refusal in refusals))


class Flow(Generic[OutputsT]):
    """A saga: its steps are data, so tests can fail each one in turn. ``outputs``: the type of what they come to."""

    name: str
    outputs: type[OutputsT]
    steps: tuple[Step[OutputsT], ...]
    forward_only = False

    def begin_together(self, works: Sequence[Work[OutputsT]]) -> None:
        """What several rows of one request, none of which was begun, do at once before each goes alone."""

    def index(self, name: str) -> int:
        """The position of a step."""
        return next(i for i, step in enumerate(self.steps) if step.name == name)

    def run(self, work: Work[OutputsT]) -> None:
        """Work from the row's position to the end, or back. Returns when the row is ended, given back or lost."""
        try:
            if work.cancelled and not work.failed:
                self._cancelled(work)
            while not work.failed and work.position < len(self.steps):
                if work.undoing:
                    self._undo_attempt(work)
                work.check()
                step = self.steps[work.position]
                work.at(work.position, step.name)
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
            LOG.info('Operation %s (%s) went on elsewhere.', work.uuid, self.name)
            work.lost()
        except Parked:
            raise
        except Unanswered as error:
            work.give_back(error)
        except KeyGone as error:
            self._gone(work, error)
        except Exception as error:  # noqa: BLE001 - the one place where a step's failure is decided upon
            self._failed(work, error)

    def _gone(self, work: Work[OutputsT], error: KeyGone) -> None:
        """A host found our row gone, cancelled or elsewhere: look what became of it."""
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
        """A step failed for good: decide to unwind, committed before any undo; the first reason stays."""
        if self.forward_only and not self.may_end(work, error):
            LOG.error('%s of %s will be tried again', self.name, work.instance_uuid, exc_info=error)
            work.give_back(error)
            return
        if isinstance(error, KilonovaError):
            LOG.info('%s of %s failed: %s', self.name, work.instance_uuid, error)
        else:
            LOG.error('%s of %s failed', self.name, work.instance_uuid, exc_info=error)
        try:
            work.fail(error)
            self.unwind(work)
        except LeaseLost:
            work.lost()
        except Unanswered as silent:
            work.give_back(silent)

    def may_end(self, work: Work[OutputsT], error: Exception) -> bool:
        """Whether a flow that only goes forward ends with this failure."""
        return isinstance(error, Cancelled)

    def _cancelled(self, work: Work[OutputsT]) -> None:
        raise Cancelled(key=work.uuid)

    def unwind(self, work: Work[OutputsT]) -> None:
        """Undo the finished steps and the one that failed, newest first; then write how it ended."""
        if not self.forward_only:
            for position, step in reversed(list(enumerate(self.steps[:work.position + 1]))):
                if step.undo is None:
                    continue
                work.at(position, step.name)
                try:
                    work.compare()
                    step.undo(work)
                except (LeaseLost, Unanswered, Parked):
                    raise
                except Exception as error:
                    LOG.exception('%s: undo of %s failed for %s', self.name, step.name, work.instance_uuid)
                    work.give_back(error)
                    return
        try:
            self.ended_badly(work)
        except (LeaseLost, Unanswered):
            raise
        except Exception as error:
            LOG.exception('%s: the end of %s could not be written', self.name, work.instance_uuid)
            work.give_back(error)
        else:
            work.close()

    def next_attempt(self, work: Work[OutputsT], step: Step[OutputsT], error: HostRejected) -> bool:
        """Undo back to ``step.again_from`` and take the next alternate; False when there is none. That it is being
        undone is written first: whoever takes the row over goes on with that."""
        if step.again_from is None or not self.more_attempts(work):
            return False
        LOG.info('%s of %s: attempt %s failed (%s); trying the next host', self.name, work.instance_uuid,
                 work.attempt, error)
        work.undo_attempt(self.index(step.again_from), error)
        self._undo_attempt(work)
        return True

    def _undo_attempt(self, work: Work[OutputsT]) -> None:
        for position in range(work.position, (work.outputs.back_to or 0) - 1, -1):
            done = self.steps[position]
            if done.undo is not None:
                work.at(position, done.name)
                work.compare()
                done.undo(work)
        work.again()

    def more_attempts(self, work: Work[OutputsT]) -> bool:
        """Whether an alternate is left; without a ``select`` there is none."""
        hosts = work.outputs.hosts if isinstance(work.outputs, Chosen) else []
        return work.attempt < min(len(hosts), work.env.max_attempts)

    def exhausted(self, work: Work[OutputsT], error: HostRejected) -> Exception:
        """What the last host's refusal becomes when no alternate is left."""
        return error

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """Write the end state of a failed or cancelled operation, together with the end of its row."""
        work.end()
