"""``LeasedOperation``, an operation row that this process owns, and ``Outputs``, the stored results of its steps.

``work.Work`` is based on ``LeasedOperation``. Each flow names the class of its outputs (``Flow.outputs``):

    class ResizeOutputs(Chosen):
        prep_resize: dict[str, Any] | None = None

    outputs = ResizeOutputs.read(row.outputs)       # unknown names are ignored
    outputs.stored()                                # only values that differ from their defaults

The attributes have the names of the JSON in the row, and rows written by the previous release are read, too.

Each UPDATE of a row checks owner, lease, position and attempt. If it matches no row, LeaseLost or Cancelled is raised.
A decision is committed before it is acted on. A database that doesn't answer raises Unanswered. The same check precedes
each message to another daemon and each undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

from kilonova import objects
from kilonova.conductor.environment import Environment
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import Cancelled, LeaseLost


@dataclass
class Outputs:
    """Results of an operation's steps that every flow has.

    Attributes:
        tries: Number of times that the row was released for a retry.
        reason: Why it was released the last time.
        back_to: Position down to which an attempt is being undone, else None.
        refusals: Message of each host that refused.
    """

    tries: int = 0
    reason: str = ''
    back_to: int | None = None
    refusals: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """Return the outputs from the JSON of a row, without names that this class doesn't have."""
        return cls(**_known(cls, stored))

    def stored(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, as JSON for the row."""
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name))
            != (one.default_factory() if one.default_factory is not MISSING else one.default)
        }


def _known(cls: Any, stored: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in stored.items() if name in names}


@dataclass(frozen=True)
class ChosenHost:
    """A host that the scheduler chose.

    ``allocations`` and ``mappings`` have Placement's format. ``limits`` are described at ``scheduler_limits``.
    """

    host: str
    node: str = ''
    compute_node_uuid: str = ''
    cell_uuid: str = ''
    allocations: dict[str, Any] = field(default_factory=dict)
    mappings: dict[str, list[str]] = field(default_factory=dict)
    availability_zone: str | None = None
    limits: dict[str, Any] | None = None

    @classmethod
    def all_of(cls, found: Iterable[objects.Selection]) -> list[Self]:
        """Return the choices of the scheduler's reply for one server."""
        made = []
        for selection in found:
            request = selection.allocation()
            made.append(
                cls(
                    host=selection.service_host,
                    node=selection.nodename,
                    compute_node_uuid=selection.compute_node_uuid,
                    cell_uuid=selection.cell_uuid,
                    allocations=request.get('allocations', {}),
                    mappings=request.get('mappings') or {},
                    availability_zone=selection.availability_zone if 'availability_zone' in selection else None,
                    limits=selection.limits.obj_to_primitive() if selection.limits is not None else None,
                )
            )
        return made

    @property
    def scheduler_limits(self) -> objects.SchedulerLimits | None:
        """The upper limits for the claim on the host, or None if no filter set any."""
        return objects.SchedulerLimits.obj_from_primitive(self.limits) if self.limits else None


@dataclass
class SelectOutputs(Outputs):
    """Outputs of flows for which the scheduler chooses the host.

    Attributes:
        select: The first host and its alternates, one for each attempt; None until the scheduler has replied.
        port_groups: Request groups by which Placement was asked for the ports that are device functions, as a dict from
            port id to groups.
    """

    select: list[ChosenHost] | None = None
    port_groups: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """Return the outputs from the JSON of a row, with ``select`` as ChosenHost objects."""
        outputs = super().read(stored)
        if outputs.select is not None:
            outputs.select = [ChosenHost(**_known(ChosenHost, one)) for one in stored['select']]
        return outputs

    def stored(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, as JSON for the row, with each choice as a dict."""
        found = super().stored()
        if self.select is not None:
            found['select'] = [asdict(choice) for choice in self.select]
        return found

    @property
    def hosts(self) -> list[ChosenHost]:
        """The chosen hosts, or an empty list until the scheduler has replied."""
        return self.select or []


OutputsT = TypeVar('OutputsT', bound=Outputs)


class LeasedOperation(Generic[OutputsT]):
    """An operation row that this process owns, with the writes and checks that an owner may do.

    Attributes:
        db: Database that holds the row now.
        owner: Owner as which this process took the row: the id of its lease in that database.
        outputs: Results of the flow's steps.
    """

    def __init__(
        self, row: operations.OperationRow, db: engine.Database, env: Environment, owner: str, outputs: type[OutputsT]
    ) -> None:
        self.db, self.env, self.owner = db, env, owner
        self.uuid, self.kind, self.instance_uuid, self.args = row.uuid, row.kind, row.instance_uuid, row.args
        self.outputs: OutputsT = outputs.read(row.outputs)
        self.position, self.attempt, self.undoing = row.position, row.attempt, row.undoing
        self.failed, self.cancelled, self.error = row.failed, row.cancelled, row.error
        self.request_id, self.created_at = row.request_id, row.created_at
        self.ctxt = RequestContext.from_dict(row.context)
        self.ctxt.cell = db
        # Position and attempt as the database has them; steps that aren't saved advance only in memory.
        self._place = (row.position, row.attempt)
        # True if nothing was sent to another process since a statement last compared the row with this object.
        self._compared = True
        self._ended = False

    # -- comparing ------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Check before a step that this process still has a lease.

        Raises LeaseLost if the lease could not be renewed for too long.
        """
        self.env.leases.check(self.db, self.owner)

    def compare(self) -> None:
        """Check before a message or an undo that this process owns the row, at the expected position and attempt.

        Runs one SQL statement, or none if nothing was sent since the last comparison. Raises LeaseLost if the row has
        another owner, position or attempt, and Cancelled if the operation was cancelled.
        """
        self.check()
        if self._compared:
            return
        with engine.silence(), self.db.read() as conn:
            stands = operation_leases.stands(conn, self.uuid, self.owner, self._place)
        if not stands:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._compared = True

    def compare_now(self) -> None:
        """Compare the row by a statement in any case, even if nothing was sent since the last comparison.

        Call this between reading from and writing to a service that doesn't check who owns the operation.
        """
        self._compared = False
        self.compare()

    def before_sending(self) -> None:
        """Compare the row before a message is sent, and require a new comparison before the next message."""
        self.compare()
        self._compared = False

    def resumed(self) -> None:
        """Check the row after the operation waited for a slot of a host.

        Raises LeaseLost if this process owns it no longer. A cancelled row raises nothing here.
        """
        self._compared = False
        became = self.standing()
        if became is not None and not isinstance(became, Cancelled):
            raise became

    def standing(self) -> Exception | None:
        """Read the row, and return the reason why the operation must not go on.

        The reason is a LeaseLost or a Cancelled error. Returns None if the row is as this object has it.
        """
        with engine.silence(), self.db.read() as conn:
            row = operations.get(conn, self.uuid)
            ours = row is not None and row.owner == self.owner and operation_leases.lives(conn, self.owner)
        if row is None or not ours or (row.position, row.attempt) != self._place:
            return LeaseLost(operation=self.uuid)
        if row.cancelled and not self.failed:
            self.cancelled, self.error = True, row.error
            return Cancelled(key=self.uuid)
        return None

    # -- writing --------------------------------------------------------------------------------------------------
    def decide(
        self,
        values: dict[str, Any],
        cancelled: bool = False,
        write: Callable[[engine.Connection], object] | None = None,
    ) -> None:
        """Write columns and the outputs, in one transaction with what ``write(conn)`` writes.

        ``cancelled`` True writes them even if the operation was cancelled in the meantime.

        Raises LeaseLost if this process doesn't own the row any more, and Cancelled if the operation was cancelled.
        """
        after = (values.get('position', self._place[0]), values.get('attempt', self._place[1]))
        with engine.silence():
            written = self._write({**values, 'outputs': self.outputs.stored()}, cancelled, after, write)
        if not written:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._place, self._compared = after, True

    @engine.retried
    def _write(
        self,
        values: dict[str, Any],
        cancelled: bool,
        after: operation_leases.Place,
        write: Callable[[engine.Connection], object] | None,
    ) -> bool:
        with self.db.write() as conn:
            if operation_leases.decide(conn, self.uuid, self.owner, values, at=self._place, cancelled=cancelled):
                if write is not None:
                    write(conn)
                return True
            # It may have been written by the first try, if only the reply to its COMMIT was lost.
            return engine.repeated() and operation_leases.decide(
                conn, self.uuid, self.owner, values, at=after, cancelled=cancelled
            )

    @engine.retried
    def add(
        self,
        row: operations.OperationRow,
        same: Callable[[operations.OperationRow], bool],
        delay: float,
        write: Callable[[engine.Connection], object] | None,
    ) -> bool:
        """Insert another operation row of the server, which may be taken after ``delay`` seconds at the earliest.

        Nothing is inserted if ``same(other)`` is True for a row that the server has. What ``write(conn)`` writes
        belongs to the same transaction, and is written in any case. Returns False, and writes nothing, if this process
        doesn't own its row any more.
        """
        with self.db.write() as conn:
            if not operation_leases.decide(
                conn, self.uuid, self.owner, {'owner': self.owner}, at=self._place, cancelled=True
            ):
                return False
            if write is not None:
                write(conn)
            if not any(same(other) for other in operations.of_instance(conn, self.instance_uuid)):
                row.not_before = engine.now(conn) + delay if delay else 0.0
                operations.insert(conn, [row])
        return True

    def copy_for(self, owner: str, position: int) -> operations.OperationRow:
        """Return this row as it is inserted into another database, with another owner and position."""
        return operations.OperationRow(
            uuid=self.uuid,
            kind=self.kind,
            instance_uuid=self.instance_uuid,
            args=self.args,
            context=self.ctxt.to_dict(),
            request_id=self.request_id,
            position=position,
            attempt=self.attempt,
            outputs=self.outputs.stored(),
            owner=owner,
        )

    def handed_over(self, db: engine.Database, owner: str, position: int) -> None:
        """Continue with the copy of the row in the database of a cell, as ``owner``."""
        self.db = self.ctxt.cell = db
        self.owner, self._place, self._compared = owner, (position, self.attempt), True

    def release(self, pause: float) -> None:
        """Remove the owner from the row, which may be taken again after ``pause`` seconds at the earliest."""
        with self.db.write() as conn:
            operation_leases.give_back(conn, self.uuid, self.owner, self._place, pause, self.outputs.stored())

    def ended_by_host(self) -> None:
        """Note that the host has written the end state and deleted the row in the same transaction."""
        self._ended = True

    def end(self, write: Callable[[engine.Connection], object] | None = None) -> None:
        """Write the end state with ``write(conn)``, and delete the row in the same transaction.

        If a delete waits for this operation, it may run from now on, and the runner is woken for it. Raises LeaseLost
        if this process doesn't own the row any more, and Cancelled if the operation was cancelled.
        """
        with engine.silence():
            ours, waiting = self._end(write)
        if not ours:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._ended = True
        if waiting:
            self.env.runner.wake(self.db, [waiting], urgent=True)

    @engine.retried
    def _end(self, write: Callable[[engine.Connection], object] | None) -> tuple[bool, str | None]:
        # A row that was cancelled without the knowledge of this process is not ended as a success: its owner undoes it.
        unwinding = self.failed or self.cancelled
        with self.db.write() as conn:
            if not operation_leases.end_owned(conn, self.uuid, self.owner, cancelled=unwinding, at=self._place):
                # It may have been ended by the first try, if only the reply to its COMMIT was lost.
                return engine.repeated() and operations.get(conn, self.uuid) is None, None
            if write is not None:
                write(conn)
            return True, operations.promote(conn, self.instance_uuid) if unwinding else None
