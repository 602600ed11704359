"""``OwnedRow``: an operation row that this process owns, and decisions about it. ``Outputs``: what its steps came to.

    class ResizeOutputs(Chosen):
        prep_resize: dict[str, Any] | None = None

    outputs = ResizeOutputs.read(row.outputs)       # names that it doesn't have are left out
    outputs.stored()                                # what isn't as at the beginning

A flow names the class of its outputs (``Flow.outputs``). Their names are those of the row's JSON: rows of the release
before are read, too.

Each write of a row compares owner, lease, position and attempt (zero rows: LeaseLost, or Cancelled), is committed
before it is acted on, and a database that doesn't answer raises Unanswered. Messages and undos are compared in the same
way.
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
    """The core's own. ``tries``: how often the row was given back without getting on; ``reason``: why it was given back
    the last time; ``back_to``: the position down to which an attempt is being undone; ``refusals``: what each host that
    refused said."""

    tries: int = 0
    reason: str = ''
    back_to: int | None = None
    refusals: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """From a row's JSON."""
        return cls(**_known(cls, stored))

    def stored(self) -> dict[str, Any]:
        """As JSON."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != (
            one.default_factory() if one.default_factory is not MISSING else one.default)}


def _known(cls: Any, stored: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in stored.items() if name in names}


@dataclass(frozen=True)
class Choice:
    """A host that the scheduler chose. ``allocations`` and ``mappings`` are Placement's; ``limits``: see
    ``scheduler_limits``."""

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
        """From the scheduler's answer about one server."""
        made = []
        for selection in found:
            request = selection.allocation()
            made.append(cls(
                host=selection.service_host, node=selection.nodename, compute_node_uuid=selection.compute_node_uuid,
                cell_uuid=selection.cell_uuid, allocations=request.get('allocations', {}),
                mappings=request.get('mappings') or {},
                availability_zone=selection.availability_zone if 'availability_zone' in selection else None,
                limits=selection.limits.obj_to_primitive() if selection.limits is not None else None))
        return made

    @property
    def scheduler_limits(self) -> objects.SchedulerLimits | None:
        """How far the claim on the host may go, where a filter said so."""
        return objects.SchedulerLimits.obj_from_primitive(self.limits) if self.limits else None


@dataclass
class Chosen(Outputs):
    """Of flows that let the scheduler choose. ``select``: the first host and its alternates, one an attempt; None until
    it answered. ``port_groups``: by which ports that are functions of devices asked Placement then, {port: groups}."""

    select: list[Choice] | None = None
    port_groups: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        outputs = super().read(stored)
        if outputs.select is not None:
            outputs.select = [Choice(**_known(Choice, one)) for one in stored['select']]
        return outputs

    def stored(self) -> dict[str, Any]:
        found = super().stored()
        if self.select is not None:
            found['select'] = [asdict(choice) for choice in self.select]
        return found

    @property
    def hosts(self) -> list[Choice]:
        """``select``, empty until it answered."""
        return self.select or []


OutputsT = TypeVar('OutputsT', bound=Outputs)


class OwnedRow(Generic[OutputsT]):
    """A view of one operation row. ``db`` is the database that the row lives in now, ``owner`` the owner (a lease of
    this process in that database) as which it was taken, ``outputs`` what its flow's steps came to."""

    def __init__(self, row: operations.Operation, db: engine.Database, env: Environment, owner: str,
                 outputs: type[OutputsT]) -> None:
        self.db, self.env, self.owner = db, env, owner
        self.uuid, self.kind, self.instance_uuid, self.args = row.uuid, row.kind, row.instance_uuid, row.args
        self.outputs: OutputsT = outputs.read(row.outputs)
        self.position, self.attempt, self.undoing = row.position, row.attempt, row.undoing
        self.failed, self.cancelled, self.error = row.failed, row.cancelled, row.error
        self.request_id, self.created_at = row.request_id, row.created_at
        self.ctxt = RequestContext.from_dict(row.context)
        self.ctxt.cell = db
        # Where the row stands in the database: steps that aren't saved go on without it.
        self._place = (row.position, row.attempt)
        # Whether nothing was sent since a statement compared the row with this.
        self._compared = True
        self._ended = False

    # -- comparing ------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Before each step: a process that couldn't renew its lease starts none."""
        self.env.leases.check(self.db, self.owner)

    def compare(self) -> None:
        """Before each message and each undo: the row is still ours and stands where we think. No statement, where
        nothing was sent since the last one that compared it. LeaseLost, Cancelled: it isn't."""
        self.check()
        if self._compared:
            return
        with engine.silence(), self.db.read() as conn:
            stands = operation_leases.stands(conn, self.uuid, self.owner, self._place)
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

    def standing(self) -> Exception | None:
        """What became of our row: LeaseLost, Cancelled, or None when it stands as we know it."""
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
    def decide(self, values: dict[str, Any], cancelled: bool = False,
               write: Callable[[engine.Connection], object] | None = None) -> None:
        """Write columns and the outputs, together with what ``write(conn)`` writes. ``cancelled``: even if somebody
        cancelled the row meanwhile."""
        after = (values.get('position', self._place[0]), values.get('attempt', self._place[1]))
        with engine.silence():
            written = self._write({**values, 'outputs': self.outputs.stored()}, cancelled, after, write)
        if not written:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._place, self._compared = after, True

    @engine.retried
    def _write(self, values: dict[str, Any], cancelled: bool, after: operation_leases.Place,
               write: Callable[[engine.Connection], object] | None) -> bool:
        with self.db.write() as conn:
            if operation_leases.decide(conn, self.uuid, self.owner, values, at=self._place, cancelled=cancelled):
                if write is not None:
                    write(conn)
                return True
            # Perhaps written, and only the answer to its COMMIT was lost.
            return engine.repeated() and operation_leases.decide(conn, self.uuid, self.owner, values, at=after,
                                                                 cancelled=cancelled)

    @engine.retried
    def add(self, row: operations.Operation, same: Callable[[operations.Operation], bool], delay: float,
            write: Callable[[engine.Connection], object] | None) -> bool:
        """Insert another row of the server, ``delay`` seconds from now at the earliest, unless there is one that is the
        ``same``; together with what ``write(conn)`` writes. False, and nothing written: this row isn't ours."""
        with self.db.write() as conn:
            if not operation_leases.decide(conn, self.uuid, self.owner, {'owner': self.owner}, at=self._place,
                                           cancelled=True):
                return False
            if write is not None:
                write(conn)
            if not any(same(other) for other in operations.of_instance(conn, self.instance_uuid)):
                row.not_before = engine.now(conn) + delay if delay else 0.0
                operations.insert(conn, [row])
        return True

    def copy_for(self, owner: str, position: int) -> operations.Operation:
        """This row as another database gets it: ``owner``'s, at a position."""
        return operations.Operation(
            uuid=self.uuid, kind=self.kind, instance_uuid=self.instance_uuid, args=self.args,
            context=self.ctxt.to_dict(), request_id=self.request_id, position=position, attempt=self.attempt,
            outputs=self.outputs.stored(), owner=owner)

    def handed_over(self, db: engine.Database, owner: str, position: int) -> None:
        """The row lives in the database of a cell from now on, as ``owner``'s."""
        self.db = self.ctxt.cell = db
        self.owner, self._place, self._compared = owner, (position, self.attempt), True

    def release(self, pause: float) -> None:
        """Nobody's row from now on, to be taken ``pause`` seconds later at the earliest."""
        with self.db.write() as conn:
            operation_leases.give_back(conn, self.uuid, self.owner, self._place, pause, self.outputs.stored())

    def ended_by_host(self) -> None:
        """The host's save wrote the end state and deleted the row."""
        self._ended = True

    def end(self, write: Callable[[engine.Connection], object] | None = None) -> None:
        """Write the end state with ``write(conn)`` and end the row in the same transaction; wake who waited behind
        it."""
        with engine.silence():
            ours, waiting = self._end(write)
        if not ours:
            raise self.standing() or LeaseLost(operation=self.uuid)
        self._ended = True
        if waiting:
            self.env.runner.wake(self.db, [waiting], urgent=True)

    @engine.retried
    def _end(self, write: Callable[[engine.Connection], object] | None) -> tuple[bool, str | None]:
        # A row that was cancelled behind our back is not ended as a success: its holder unwinds it.
        unwinding = self.failed or self.cancelled
        with self.db.write() as conn:
            if not operation_leases.end_owned(conn, self.uuid, self.owner, cancelled=unwinding, at=self._place):
                # Ended, perhaps, and only the answer to its COMMIT was lost.
                return engine.repeated() and operations.get(conn, self.uuid) is None, None
            if write is not None:
                write(conn)
            return True, operations.promote(conn, self.instance_uuid) if unwinding else None
