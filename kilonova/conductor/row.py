"""``LeasedOperation``, an operation row that this process owns, and ``Outputs``, the stored results of its steps.

``work.Work`` is based on ``LeasedOperation``. Each flow names the class of its outputs (``Flow.outputs``):

    class ResizeOutputs(SelectOutputs):
        prep_resize: dict[str, Any] | None = None

    outputs = ResizeOutputs.read(row.outputs)       # unknown names are ignored
    outputs.stored()                                # only values that differ from their defaults

The names of the attributes are the keys of the JSON in the row. Rows that the previous release wrote can be read, too.

Each UPDATE of an operation row checks its owner, lease, position and attempt. If the UPDATE changes no row, LeaseLost
or Cancelled is raised. The row is checked in the same way before each message to another daemon and before each undo.
Unanswered is raised if the database doesn't answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

from kilonova import objects
from kilonova.conductor.environment import Environment
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments import kinds as arguments_of
from kilonova.db.arguments.base import Arguments, ArgumentsT, narrowed
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import Cancelled, LeaseLost


@dataclass
class Outputs:
    """Results of the steps of an operation, which are stored in its row as JSON. Flows add attributes in subclasses.

    Attributes:
        tries: Number of times that the operation was stopped to be retried later.
        reason: Reason of the last retry, a text for operators.
        back_to: Position down to which the current attempt is being undone, or None if no attempt is being undone.
        refusals: Error messages of the hosts that refused, one for each failed attempt.
    """

    tries: int = 0
    reason: str = ''
    back_to: int | None = None
    refusals: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """Return the outputs from the JSON object of a row. Keys that this class doesn't have are ignored."""
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
    """A host that the scheduler chose for a server.

    ``allocations`` and ``mappings`` have the format of Placement's allocation requests. ``limits`` is the serialized
    form of ``scheduler_limits``.
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
        """Return a ChosenHost for each host in ``found``, the part of the scheduler's reply about one server."""
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
        select: List of the chosen host and its alternate hosts. Each attempt uses the next host of the list. None until
            the scheduler has replied.
        port_groups: For each SR-IOV port with a QoS resource request, the names of its request groups in the query to
            Placement, as a dict from port id to names.
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
        """Return the values that differ from their defaults, as JSON for the row. Each chosen host is a dict."""
        found = super().stored()
        if self.select is not None:
            found['select'] = [asdict(choice) for choice in self.select]
        return found

    @property
    def hosts(self) -> list[ChosenHost]:
        """The chosen hosts, or an empty list until the scheduler has replied."""
        return self.select or []


OutputsT = TypeVar('OutputsT', bound=Outputs)
ResultT = TypeVar('ResultT')
SelectOutputsT = TypeVar('SelectOutputsT', bound=SelectOutputs)


class LeasedOperation(Generic[OutputsT]):
    """An operation row that this process owns, with the checks and writes that only its owner may do.

    Attributes:
        args: Arguments of the operation. Steps call ``arguments``, which returns them with their class.
        db: Database that holds the row now. The row of a boot moves from the API database to a cell.
        owner: Id of this process, which the row has in its column ``owner``.
        outputs: Results of the flow's steps.
    """

    def __init__(
        self, row: operations.OperationRow, db: engine.Database, env: Environment, owner: str, outputs: type[OutputsT]
    ) -> None:
        self.db, self.env, self.owner = db, env, owner
        self.uuid, self.kind, self.instance_uuid = row.uuid, row.kind, row.instance_uuid
        self.args: Arguments = arguments_of.read(row.kind, row.args)
        # The arguments in the JSON form of the row, which a copy of the row needs.
        # ``self.args`` lacks arguments that a newer release of Kilonova has written and this release does not know.
        self._stored_args = row.args
        self.outputs: OutputsT = outputs.read(row.outputs)
        self.position, self.attempt, self.undoing = row.position, row.attempt, row.undoing
        self.failed, self.cancelled, self.error = row.failed, row.cancelled, row.error
        self.request_id, self.created_at = row.request_id, row.created_at
        self.ctxt = RequestContext.from_dict(row.context)
        self.ctxt.cell = db
        # Position and attempt that are stored in the operation row.
        # The stored position may be lower than ``self.position``, because some steps are not saved (``Step.saved``).
        self._place = (row.position, row.attempt)
        # True if the row was read or written after the last message to another process, and this process owned it then.
        # ``compare`` then needs no SQL statement.
        self._compared = True
        self._ended = False
        # Result of the function ``write`` that was passed to ``end``.
        # The result is kept, because a repeated transaction does not call ``write`` if the first try was committed.
        self._written: Any = None

    def arguments(self, cls: type[ArgumentsT]) -> ArgumentsT:
        """Return the arguments of the operation, as an object of the class ``cls``.

        Raises TypeError if this kind of operation has another class of arguments.
        """
        return narrowed(self.args, cls)

    # -- checks of the row ----------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise LeaseLost if this process no longer has a valid lease in the row's database.

        The flow calls this before each step. Usually no SQL statement is needed (see ``Leases.check``).
        """
        self.env.leases.check(self.db, self.owner)

    def compare(self) -> None:
        """Check that this process owns the operation row, and that the row has the expected position and attempt.

        Call this before each undo; ``before_sending`` calls it before each message. Runs one SQL statement, or none if
        no message was sent since the last comparison. Raises LeaseLost if the row has another owner, position or
        attempt, and Cancelled if the operation was cancelled.
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
        """Check in the database that this process still owns the operation row, even if it was checked before.

        Call this after a read from an external service and before the write that depends on the read. Such a service
        doesn't know which conductor owns the operation, so it can't refuse the write of a former owner. Raises the
        errors of ``compare``.
        """
        self._compared = False
        self.compare()

    def before_sending(self) -> None:
        """Check that this process still owns the operation row. Call this before each message to another process.

        Raises the errors of ``compare``. The next check reads the row again, because the reply to the message may take
        long.
        """
        self.compare()
        self._compared = False

    def resumed(self) -> None:
        """Check that this process still owns the row, after the operation has waited for a slot of a host.

        Raises LeaseLost if it does not. Raises no error if the operation was cancelled: the check before the next call
        to the host raises Cancelled.
        """
        self._compared = False
        became = self.standing()
        if became is not None and not isinstance(became, Cancelled):
            raise became

    def standing(self) -> Exception | None:
        """Read the row, and return the error that stops the operation in this process. Return None if it may continue.

        The error is LeaseLost if the row is deleted, or if another conductor owns it or has changed its position. It is
        Cancelled if the operation was cancelled and is not recorded as failed yet.
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

    # -- writes to the row ----------------------------------------------------------------------------------------
    def decide(
        self,
        values: dict[str, Any],
        cancelled: bool = False,
        write: Callable[[engine.Connection], object] | None = None,
    ) -> None:
        """Write the columns in ``values`` and the outputs to the row, and call ``write(conn)`` in the transaction.

        If ``cancelled`` is True, the columns are written even if the operation was cancelled in the meantime.

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
            # The first try of this transaction may have been committed although its reply was lost.
            # After a committed first try, the row has the new position and attempt, ``after``.
            # A repeated try accepts a row that has ``after``, and writes the same values.
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
        """Insert ``row``, another operation of the same server, which conductors may take after ``delay`` seconds.

        ``row`` is not inserted if the server already has an operation ``other`` for which ``same(other)`` is True. Even
        then ``write(conn)`` is called in the transaction. Returns True in both cases. Returns False, and writes
        nothing, if this process no longer owns the row of its own operation.
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
        """Return a copy of this row with another owner and position, to be inserted into another database."""
        return operations.OperationRow(
            uuid=self.uuid,
            kind=self.kind,
            instance_uuid=self.instance_uuid,
            args=self._stored_args,
            context=self.ctxt.to_dict(),
            request_id=self.request_id,
            position=position,
            attempt=self.attempt,
            outputs=self.outputs.stored(),
            owner=owner,
        )

    def handed_over(self, db: engine.Database, owner: str, position: int) -> None:
        """Continue with the copy of the row in the cell database ``db``, at the step with the number ``position``.

        ``owner`` is this process's owner id in that database.
        """
        self.db = self.ctxt.cell = db
        self.owner, self._place, self._compared = owner, (position, self.attempt), True

    def release(self, pause: float) -> None:
        """Remove the owner from the row, so that any conductor may take the row after ``pause`` seconds or later."""
        with self.db.write() as conn:
            operation_leases.give_back(conn, self.uuid, self.owner, self._place, pause, self.outputs.stored())

    def ended_by_host(self) -> None:
        """Remember that the host ended the operation: it saved the server's new state and deleted the operation row."""
        self._ended = True

    def end(self, write: Callable[[engine.Connection], ResultT] | None = None) -> ResultT | None:
        """Delete the operation row, and call ``write(conn)`` in the same transaction to write the server's new state.

        If a delete of the server waits for the end of this failed or cancelled operation, the delete is started.
        Returns what ``write`` returned. Raises LeaseLost if this process doesn't own the row any more, and Cancelled if
        the operation was cancelled.
        """
        with engine.silence():
            ours, waiting = self._end(write)
        if not ours:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._ended = True
        if waiting:
            self.env.runner.wake(self.db, [waiting], urgent=True)
        found: ResultT | None = self._written
        return found

    @engine.retried
    def _end(self, write: Callable[[engine.Connection], object] | None) -> tuple[bool, str | None]:
        # ``end_owned`` does not delete the row of a cancelled operation if ``unwinding`` is False.
        # A process that has not noticed the cancel yet must undo the operation before it deletes the row.
        unwinding = self.failed or self.cancelled
        with self.db.write() as conn:
            if not operation_leases.end_owned(conn, self.uuid, self.owner, cancelled=unwinding, at=self._place):
                # No row was deleted. A repeated try returns True if the row no longer exists: the operation is ended.
                # The row no longer exists if the first try of this transaction was committed, but its reply lost.
                return engine.repeated() and operations.get(conn, self.uuid) is None, None
            if write is not None:
                self._written = write(conn)
            return True, operations.promote(conn, self.instance_uuid) if unwinding else None
