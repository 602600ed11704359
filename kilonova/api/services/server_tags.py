"""Tags of one server. A lock doesn't keep anybody from changing them, as the field has it."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found, check_editable
from kilonova.db.queries import tags
from kilonova.errors import NotFound
from kilonova.rpc import updates
from kilonova.rpc.notify import API

# How many a server may have.
LIMIT = 50


class TagNotFound(NotFound):
    msg_fmt = "Server %(uuid)s has no tag '%(tag)s'"


def read(server: Found) -> list[str]:
    """All tags, sorted."""
    if server.cell is None:
        return server.row['tags']
    with server.cell.read() as conn:
        return tags.words(conn, server.uuid)


def check(server: Found, tag: str) -> None:
    """TagNotFound (404) unless the server has it."""
    if tag not in read(server):
        raise TagNotFound(uuid=server.uuid, tag=tag)


def replace(backend: Backend, ctxt: Any, server: Found, wanted: list[str]) -> list[str]:
    """These and no others; returns them as a list shows them."""
    check_editable(server, 'update tags')
    tags.replace(server.cell, server.uuid, wanted)
    _notify(backend, ctxt, server)
    return sorted(set(wanted))


def add(backend: Backend, ctxt: Any, server: Found, tag: str) -> bool:
    """Whether it is new. TooManyTags (400)."""
    check_editable(server, 'update tag')
    if not tags.add(server.cell, server.uuid, tag, LIMIT):
        return False
    _notify(backend, ctxt, server)
    return True


def remove(backend: Backend, ctxt: Any, server: Found, tag: str) -> None:
    """TagNotFound (404) when the server doesn't have it."""
    check_editable(server, 'delete tag')
    if not tags.remove(server.cell, server.uuid, tag):
        raise TagNotFound(uuid=server.uuid, tag=tag)
    _notify(backend, ctxt, server)


def clear(backend: Backend, ctxt: Any, server: Found) -> None:
    """None is left."""
    check_editable(server, 'delete tags')
    tags.clear(server.cell, server.uuid)
    _notify(backend, ctxt, server)


def _notify(backend: Backend, ctxt: Any, server: Found) -> None:
    """Other than states, changes of tags are always told."""
    updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, binary=API)
