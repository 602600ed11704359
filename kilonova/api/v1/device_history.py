"""Who held which device from when to when. Who holds it now, and since when, the device says (``devices``)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import Field, Fields, column, zulu
from kilonova.api.rules import ADMIN, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, Query
from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import ask_cells, refuse_if_any
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Database
from kilonova.db.queries import device_history
from kilonova.errors import MarkerNotFound
from kilonova.pci.shown import shown_entry

INDEX = 'kilonova:device-history:index'
RULES = (rule(INDEX, ADMIN, 'List who held which device from when to when.'),)

# An entry's id: its device's, and its number in its cell.
_ID = {'type': 'string', 'pattern': r'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}\Z', 'maxLength': 47}
QUERY = Query.of(*(Prop(name, schema, single=True) for name, schema in (
    ('device_id', t.UUID), ('server', t.UUID), ('host', t.HOST), ('project_id', t.PROJECT_ID),
    ('limit', t.NUMBER_TEXT), ('marker', _ID))))
FIELDS = Fields(
    *(Field(name, column(name)) for name in (
        'id', 'device_id', 'host', 'address', 'kind', 'vendor_id', 'product_id', 'server_id', 'project_id')),
    Field('began_at', lambda row, links: zulu(row['began_at'])),
    Field('ended_at', lambda row, links: zulu(row['ended_at'])),
)


def _page(backend: Backend, filters: dict[str, str | None], limit: int, marker: str | None,
          silent: list[Database]) -> list[Mapping[str, Any]]:
    """Entries cell by cell, the newest of each first, behind ``marker``. MarkerNotFound."""
    found: list[Mapping[str, Any]] = []
    skip = marker is not None
    device, _, number = (marker or '').partition('.')

    def ask(cell: Database) -> None:
        nonlocal skip
        if len(found) == limit:
            return
        with cell.read() as conn:
            after = None
            if skip:
                if not device_history.has(conn, device, int(number)):
                    return
                skip, after = False, int(number)
            found.extend(device_history.page(conn, after=after, limit=limit - len(found), **filters))
    ask_cells(backend.compute_cells(), ask, silent)
    if skip:
        refuse_if_any(silent)
        raise MarkerNotFound(marker=marker)
    return found


def index(call: Call) -> Any:
    """GET /os-device-history. ``silent_cells``: cells that didn't answer, whose entries are not in the list."""
    limit, silent = call.limit(), list[Database]()
    filters = {'device_uuid': call.one('device_id'), 'instance_uuid': call.one('server'), 'host': call.one('host'),
               'project_id': call.one('project_id')}
    rows = [] if limit == 0 else _page(call.backend, filters, limit, call.one('marker'), silent)
    entries = [FIELDS.render(shown_entry(row), call.links, call.version) for row in rows]
    body: dict[str, Any] = {'device_history': entries, 'silent_cells': [cell.name for cell in silent]}
    if rows and len(rows) == limit:
        body['device_history_links'] = call.links.next('os-device-history', call.query, entries[-1]['id'])
    return body


ROUTES = (Route('GET', '/os-device-history', index, INDEX, query=QUERY),)
