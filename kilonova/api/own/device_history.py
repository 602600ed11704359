"""The history of devices (``/os-device-history``): which server held which device, from when to when.

An entry is added when a server releases a device. The server that holds a device now is shown by the module
``devices`` instead.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.fields import Field, Fields, column, zulu
from kilonova.api.rules import ADMIN, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services import cell_pages
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import device_history
from kilonova.pci.shown import shown_entry

INDEX = 'kilonova:device-history:index'
RULES = (rule(INDEX, ADMIN, 'List which projects and servers held which device, and when.'),)

# The id of a history entry: the device's uuid, a dot, and the entry's number in the cell database that has the entry.
_ID = {'type': 'string', 'pattern': r'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}\Z', 'maxLength': 47}
QUERY = QuerySchema.of(
    *(
        Prop(name, schema, single=True)
        for name, schema in (
            ('device_id', t.UUID),
            ('server', t.UUID),
            ('host', t.HOST),
            ('project_id', t.PROJECT_ID),
            ('limit', t.NUMBER_TEXT),
            ('marker', _ID),
        )
    )
)
FIELDS = Fields(
    *(
        Field(name, column(name))
        for name in ('id', 'device_id', 'host', 'address', 'kind', 'vendor_id', 'product_id', 'server_id', 'project_id')
    ),
    Field('began_at', lambda row, links: zulu(row['began_at'])),
    Field('ended_at', lambda row, links: zulu(row['ended_at'])),
)


def _find(conn: Connection, marker: str) -> int | None:
    device, _, number = marker.partition('.')
    return int(number) if device_history.has(conn, device, int(number)) else None


def index(call: Call) -> Any:
    """List the entries of the device history (``GET /os-device-history``).

    ``silent_cells`` in the response names the cells that did not answer, whose entries are missing in the list.
    """
    limit, silent = call.limit(), list[Database]()
    filters = {
        'device_uuid': call.one('device_id'),
        'instance_uuid': call.one('server'),
        'host': call.one('host'),
        'project_id': call.one('project_id'),
    }
    rows = (
        []
        if limit == 0
        else cell_pages.page(
            call.backend.compute_cells(),
            limit,
            call.one('marker'),
            silent,
            find=_find,
            read=lambda conn, after, most: device_history.page(conn, after=after, limit=most, **filters),
        )
    )
    entries = [FIELDS.render(shown_entry(row), call.links, call.version) for row in rows]
    body: dict[str, Any] = {'device_history': entries, 'silent_cells': [cell.name for cell in silent]}
    if rows and len(rows) == limit:
        body['device_history_links'] = call.links.next('os-device-history', call.query, entries[-1]['id'])
    return body


ROUTES = (Route('GET', '/os-device-history', index, INDEX, query=QUERY),)
