"""PCI devices of all hosts with the servers that hold them (``/os-devices``), for administrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.fields import Field, Fields, column, zulu
from kilonova.api.rules import ADMIN, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services import cell_pages
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import first
from kilonova.api.wsgi import Call, Links, Route
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import pci_devices
from kilonova.errors import NotFound
from kilonova.pci.device import KINDS, STATUSES
from kilonova.pci.shown import shown

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, SHOW = (f'kilonova:devices:{verb}' for verb in ('index', 'show'))
RULES = (
    rule(INDEX, ADMIN, 'List devices with their owners.'),
    rule(SHOW, ADMIN, 'Show a device with its owner.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
def _once(name: str, schema: dict[str, Any]) -> Prop:
    return Prop(name, schema, single=True)


QUERY = QuerySchema.of(
    _once('host', t.HOST),
    _once('server', t.UUID),
    _once('project_id', t.PROJECT_ID),
    _once('kind', t.one_of(*KINDS)),
    _once('status', t.one_of(*STATUSES)),
    _once('limit', t.NUMBER_TEXT),
    _once('marker', t.UUID),
)
NO_QUERY = QuerySchema.of()


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


def _links(row: Row, links: Links) -> list[dict[str, str]]:
    return [{'rel': 'self', 'href': links.to('os-devices', row['id'])}]


FIELDS = Fields(
    *(
        Field(name, column(name))
        for name in (
            'id',
            'host',
            'node',
            'address',
            'parent_address',
            'kind',
            'vendor_id',
            'product_id',
            'numa_node',
            'status',
            'server_id',
            'server_name',
            'project_id',
            'request_id',
            'resource_provider',
            'mdev_type',
            'mdev_class',
            'group',
            'group_head',
            'tags',
            'barred',
        )
    ),
    Field('held_since', lambda row, links: zulu(row['held_since'])),
    Field('created_at', lambda row, links: zulu(row['created_at'])),
    Field('updated_at', lambda row, links: zulu(row['updated_at'])),
    Field('links', _links),
)


# --- queries to the cells --------------------------------------------------------------------------------------------
def _number(conn: Connection, marker: str) -> int | None:
    row = pci_devices.find(conn, uuid=marker)
    return None if row is None else row['id']


def _find(backend: Backend, uuid: str) -> Row:
    """Return the row of a device from the cell that has it.

    Raises NotFound if no cell has the device, and Unanswered if the device may be in a cell that does not answer.
    """
    missing = NotFound(f'Device {uuid} could not be found.')
    if not uuidutils.is_uuid_like(uuid):
        raise missing
    return first(backend.compute_cells(), lambda conn: pci_devices.find(conn, uuid=uuid), missing)


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List devices (``GET /os-devices``).

    ``silent_cells`` in the response names the cells that did not answer, whose devices are missing in the list.
    """
    limit, kind, status = call.limit(), call.one('kind'), call.one('status')
    filters: dict[str, Any] = {name: call.one(name) for name in ('host', 'server', 'project_id')}
    silent: list[Database] = []
    filters.update(types=kind and [KINDS[kind]], statuses=status and [status])
    rows = (
        []
        if limit == 0
        else cell_pages.page(
            call.backend.compute_cells(),
            limit,
            call.one('marker'),
            silent,
            find=_number,
            read=lambda conn, after, most: pci_devices.page(conn, after=after, limit=most, **filters),
        )
    )
    body: dict[str, Any] = {
        'devices': [_body(call, row) for row in rows],
        'silent_cells': [cell.name for cell in silent],
    }
    if rows and len(rows) == limit:
        body['devices_links'] = call.links.next('os-devices', call.query, rows[-1]['uuid'])
    return body


def show(call: Call) -> Any:
    """Return a device (``GET /os-devices/{device_id}``)."""
    return {'device': _body(call, _find(call.backend, call.path['device_id']))}


def _body(call: Call, row: Row) -> dict[str, Any]:
    return FIELDS.render(shown(row), call.links, call.version)


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-devices', '/os-devices/{device_id}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, query=QUERY),
    Route('GET', _ONE, show, SHOW, query=NO_QUERY),
)
