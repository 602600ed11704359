"""Send a notification instance.update for each committed change of a server's states.

The option [notifications]notify_on_state_change selects the changes that are reported.

    updates.follow(notify)          # call this in each process that writes states: the API and the conductors
"""

from __future__ import annotations

from typing import Any

from oslo_context import context as oslo_context

from kilonova.context import RequestContext, get_admin_context
from kilonova.db.engine import Database
from kilonova.db.queries import state_changes
from kilonova.db.queries.state_changes import Change
from kilonova.objects.notifications import reading
from kilonova.rpc.notify import CONDUCTOR, Notifications


def follow(notify: Notifications) -> None:
    """Send a notification for each change of a server's states that this process commits from now on.

    If the configuration does not request such notifications, changes of states are not recorded at all.
    """
    if notify.on_states is None:
        state_changes.watch(None)
        return
    only_vm_state = notify.on_states == 'vm_state'

    def tell(change: Change) -> None:
        if only_vm_state and change.before[0] == change.after[0]:
            return
        ctxt = _context()

        def read() -> dict[str, Any] | None:
            instance = reading.server(ctxt, change.database, change.uuid)
            if instance is None:
                return None
            return {'instance': instance, 'before': change.before, 'after': change.after}

        # As in Nova, the notification of a new server is published under the name of the conductor.
        notify.later(ctxt, 'instance.update', read, binary=CONDUCTOR if change.created else None)

    state_changes.watch(tell)


def _context() -> RequestContext:
    """Return the context of the request that this thread handles, or an administrator's context if there is none."""
    current = oslo_context.get_current()
    return current if isinstance(current, RequestContext) else get_admin_context()


def server_changed(
    notify: Notifications,
    ctxt: RequestContext,
    database: Database,
    uuid: str,
    event: str = 'instance.update',
    binary: str | None = None,
    **facts: Any,
) -> None:
    """Send a notification about a server. The thread that sends notifications first reads the server from the database.

    Nothing is sent if the server is not found. ``binary`` and ``facts`` have the same meaning as in
    ``Notifications.emit``.
    """

    def read() -> dict[str, Any] | None:
        instance = reading.server(ctxt, database, uuid)
        return None if instance is None else {'instance': instance, **facts}

    notify.later(ctxt, event, read, binary=binary)
