"""``Ending``, the changes that an operation writes when it ends.

Flows describe the end of an operation as data, and ``Ending.end`` writes it in the transaction that deletes the
operation row:

    Ending(event='snapshot.done', required=True, operations=[rotation]).end(work)

A flow that needs other statements, or another order of statements, passes a function of its own to ``Work.end``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.arguments.base import MigrationArguments
from kilonova.db.queries import instances, migrations, operations
from kilonova.db.queries.operations import OperationRow

Write = Callable[[engine.Connection], object]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The changes that an operation writes when it ends. The attributes are in the order of their statements.

    Attributes:
        before: Function ``write(conn)`` that is called first, or None.
        event: Name of the transition of the server's state (``states.TRANSITIONS``), or '' for none.
        values: Further columns of the server, which are written with the transition.
        required: True if an error is raised when the server's state does not allow the transition. If False, the server
            keeps its state in this case, and the other changes are written.
        fault: True if a fault with the operation's first error is added, provided that the transition was made.
        extra: Columns of instance_extra as {column: JSON text or None}.
        system_metadata: Changes of the system metadata as {key: value, or None to delete the key}.
        migration: New status of the migration that the operation's arguments name, or '' if it is not changed.
        operations: Operation rows to insert. The caller wakes the runner for them.
        events: Events to add to the instance action (``Work.event``).
        once: True if an event is left out when the action has an event of this name already.
        finish: True if the instance action ends.
        failed: True if the instance action ends with the result Error.
        after: Function ``write(conn)`` that is called last, or None.
    """

    before: Write | None = None
    event: str = ''
    values: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    fault: bool = False
    extra: Mapping[str, str | None] = field(default_factory=dict)
    system_metadata: Mapping[str, str | None] = field(default_factory=dict)
    migration: str = ''
    operations: Sequence[OperationRow] = ()
    events: Sequence[dict[str, Any]] = ()
    once: bool = False
    finish: bool = True
    failed: bool = False
    after: Write | None = None

    def end(self, work: Work[Any]) -> bool:
        """Write the changes of this object and delete the operation row in one transaction.

        Returns whether the server's state was changed. Raises the errors of ``Work.end`` and of ``write``.
        """
        return bool(work.end(functools.partial(self.write, work=work)))

    def write(self, conn: engine.Connection, work: Work[Any]) -> bool:
        """Write the changes of this object in the transaction of ``conn``. Return whether the server's state changed.

        Raises InstanceNotFound or InstanceInvalidState if a required transition is not allowed.
        """
        uuid = work.instance_uuid
        if self.before is not None:
            self.before(conn)
        moved = bool(self.event) and instances.transition(conn, uuid, self.event, dict(self.values))
        if self.required and not moved:
            raise instances.refuse(conn, uuid, self.event)
        if self.fault and moved:
            instances.add_fault(conn, uuid, work.fault())
        instances.update_extra(conn, uuid, dict(self.extra))
        instances.set_system_metadata(conn, uuid, dict(self.system_metadata))
        if self.migration:
            migrations.update(conn, work.arguments(MigrationArguments).migration_uuid, {'status': self.migration})
        if self.operations:
            operations.insert(conn, self.operations)
        if self.once:
            for event in self.events:
                instances.add_event_once(conn, uuid, work.request_id, event)
        else:
            instances.add_events(conn, uuid, work.request_id, self.events)
        if self.finish:
            instances.finish_action(conn, uuid, work.request_id, 'Error' if self.failed else None)
        if self.after is not None:
            self.after(conn)
        return moved
