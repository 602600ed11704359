"""Metadata of one server: read, merge, replace, delete a key."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.api.services import quota
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found, check_editable, check_lock
from kilonova.db.queries import metadata
from kilonova.errors import NotFound
from kilonova.rpc import updates

UPDATE, DELETE = 'update metadata', 'delete metadata'


class MetadataNotFound(NotFound):
    msg_fmt = 'Metadata item was not found'


def read(server: Found) -> dict[str, str]:
    """All pairs."""
    if server.cell is None:
        return server.row['metadata']
    with server.cell.read() as conn:
        return metadata.get(conn, server.uuid)


def item(server: Found, key: str) -> str:
    """One value. MetadataNotFound (404)."""
    pairs = read(server)
    if key not in pairs:
        raise MetadataNotFound
    return pairs[key]


def merge(backend: Backend, ctxt: Any, server: Found, pairs: dict[str, str]) -> dict[str, str]:
    """Set these keys, keep the others; returns all. MetadataLimitExceeded (403)."""
    return _write(backend, ctxt, server, lambda before: {**before, **pairs})


def replace(backend: Backend, ctxt: Any, server: Found, pairs: dict[str, str]) -> dict[str, str]:
    """These pairs and no others. MetadataLimitExceeded (403)."""
    return _write(backend, ctxt, server, lambda before: dict(pairs))


def _write(backend: Backend, ctxt: Any, server: Found,
           make: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
    check_lock(ctxt, server)
    check_editable(server, UPDATE)
    allowed = quota.limits(backend, server.row['project_id'])

    def decide(before: dict[str, str]) -> dict[str, str]:
        after = make(before)
        quota.check_metadata(allowed, after)
        return after
    after = metadata.change(server.cell, server.uuid, decide, method=UPDATE)
    _notify(backend, ctxt, server)
    return after


def _notify(backend: Backend, ctxt: Any, server: Found) -> None:
    if backend.notify.on_states is not None:
        updates.server_changed(backend.notify, ctxt, server.cell, server.uuid)


def delete(backend: Backend, ctxt: Any, server: Found, key: str) -> None:
    """Forget one pair. MetadataNotFound (404)."""
    check_lock(ctxt, server)
    check_editable(server, DELETE)

    def decide(before: dict[str, str]) -> dict[str, str]:
        if key not in before:
            raise MetadataNotFound
        return {name: value for name, value in before.items() if name != key}
    metadata.change(server.cell, server.uuid, decide, method=DELETE)
    _notify(backend, ctxt, server)
