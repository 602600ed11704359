"""Lock a server against changes by whoever is no administrator, and unlock it."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import accept
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found
from kilonova.db.queries import locks
from kilonova.errors import InstanceNotReady
from kilonova.rpc import updates


def _kind(ctxt: Any, server: Found) -> str:
    """As what the caller locks: whose project it is, is its owner."""
    return 'owner' if ctxt.project_id == server.row['project_id'] else 'admin'


def lock(backend: Backend, ctxt: Any, server: Found, reason: str | None) -> None:
    """An owner's lock leaves a server that is locked already as it is; an administrator's replaces it."""
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    kind = _kind(ctxt, server)
    locks.lock(server.cell, server.uuid, locked_by=kind, reason=reason, again=kind != 'owner',
               action=accept.action(ctxt, 'lock'), host=backend.options.host)
    updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, 'instance.lock')


def is_anothers(ctxt: Any, server: Found) -> bool:
    """Whether it takes more than the right to unlock: the other kind of caller has locked it."""
    return server.row['locked_by'] not in (None, _kind(ctxt, server))


def unlock(backend: Backend, ctxt: Any, server: Found) -> None:
    """InstanceIsLocked (409) when somebody else locked it since it was looked at."""
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    locks.unlock(server.cell, server.uuid, locked_by=server.row['locked_by'], action=accept.action(ctxt, 'unlock'),
                 host=backend.options.host)
    updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, 'instance.unlock')
