"""Change the name, description, addresses and other attributes of a server, and delete a server."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import delete as deletion
from kilonova.api.services import images, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import VIEW, WORK, ServerRef
from kilonova.api.v2.servers import show
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.context import RequestContext
from kilonova.db.queries import instances, request_specs, servers
from kilonova.errors import Conflict, InstanceNotFound, InstanceNotReady
from kilonova.objects import RequestSpec
from kilonova.rpc import updates

# --- policy rules ----------------------------------------------------------------------------------------------------
UPDATE, DELETE = f'{PREFIX}servers:update', f'{PREFIX}servers:delete'
RULES = (
    rule(UPDATE, MEMBER, 'Update a server.'),
    rule(DELETE, MEMBER, 'Delete a server.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
BODY = Obj(
    Prop(
        'server',
        Obj(
            Prop('name', t.NAME),
            Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
            Prop('accessIPv4', t.IPV4),
            Prop('accessIPv6', t.IPV6),
            Prop('description', t.TEXT, since=19),
            Prop('hostname', t.HOSTNAME, since=90, until=93),
            Prop('hostname', t.FQDN, since=94),
            Prop('pinned_availability_zone', {'oneOf': [t.ZONE, t.NULL]}, since=104),
        ),
        required=True,
    )
)


# --- handlers of requests --------------------------------------------------------------------------------------------
def update(call: Call) -> Any:
    """Change attributes of a server (``PUT /servers/{id}``)."""
    server = call.server
    body = call.body['server']
    columns = {
        'name': 'display_name',
        'description': 'display_description',
        'accessIPv4': 'access_ip_v4',
        'accessIPv6': 'access_ip_v6',
        'hostname': 'hostname',
    }
    values = {column: body[name] for name, column in columns.items() if name in body}
    if 'OS-DCF:diskConfig' in body:
        values['auto_disk_config'] = _disk_config(server, body['OS-DCF:diskConfig'])
    pinned = 'pinned_availability_zone' in body
    if pinned:
        _check_pin(call.backend, server, body['pinned_availability_zone'])
    _write(call.backend, call.ctxt, server, values)
    if pinned:
        # Write the zone last: if the write of the other values to the cell fails, the zone must not change.
        # The zone is in the request spec in the API database, and the other values are in the cell database.
        _pin(call.backend, call.ctxt, server, body['pinned_availability_zone'])
    return {'server': show.body(call, show.CHANGED)}


def delete(call: Call) -> None:
    """Delete a server (``DELETE /servers/{id}``)."""
    deletion.delete(call.backend, call.ctxt, call.server)


# --- functions that the handlers call, and their errors --------------------------------------------------------------
class CannotPin(Conflict):
    """Error 409: a server can only be pinned to the availability zone that it is in."""

    msg_fmt = 'Cannot pin instance %(uuid)s to availability zone %(zone)s: it is in %(now)s.'


def _write(backend: Backend, ctxt: RequestContext, server: ServerRef, values: dict[str, Any]) -> None:
    """Write ``values``, a dict from column of the table ``instances`` to its new value, for the server.

    If the hostname changes, the same transaction inserts an operation. The conductor that runs this operation sets the
    new hostname on the server's ports.

    Raises InstanceNotReady (409) if the server is not in a cell yet, and InstanceNotFound (404) if it is deleted.
    """
    if not values:
        return
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    renaming = server_operations.Renaming(backend, ctxt, server)
    written = servers.update(server.cell, server.uuid, values, *([renaming.write] if 'hostname' in values else []))
    if not written:
        raise InstanceNotFound(instance_id=server.uuid)
    renaming.wake()
    if backend.notify.on_states is not None:
        old = server.row['display_name'] if 'display_name' in values else None
        updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, old_display_name=old)
    server.row.update(values)


def _disk_config(server: ServerRef, wanted: str) -> bool:
    """Return the value of the column ``auto_disk_config`` for AUTO (True) or MANUAL (False).

    Raises InstanceNotReady (409) if the server is not in a cell yet, and DiskConfigDisabled (400) if its image does not
    allow AUTO.
    """
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    return images.disk_config_of_server(kept, server.row['image_ref'], wanted)


# The maximum number of attempts to write a request spec. An attempt fails if a move of the server changes the spec.
PINS = 5


def _check_pin(backend: Backend, server: ServerRef, zone: str | None) -> None:
    """Check that the server can be pinned to ``zone``, so that later moves stay in this availability zone.

    Raises CannotPin (409) if the server is in another zone now. None, which removes the pin, is always accepted.
    Raises InstanceNotReady (409) if the server is not in a cell yet.
    """
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    now = server.row['availability_zone'] or backend.options.default_zone
    if zone is not None and zone != now:
        raise CannotPin(uuid=server.uuid, zone=zone, now=now)


def _pin(backend: Backend, ctxt: RequestContext, server: ServerRef, zone: str | None) -> None:
    """Pin a server to an availability zone, or remove the pin if ``zone`` is None, by a change of its request spec.

    Later moves of a pinned server stay in the zone. If another transaction changes the request spec at the same time,
    read the request spec again and retry. Raises InstanceNotReady (409) if this happens five times (``PINS``).
    """
    for _ in range(PINS):
        with backend.api_db.write() as conn:
            stored = request_specs.get(conn, server.uuid)
            spec = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
            if stored is None or spec is None:
                return
            spec.availability_zone = zone
            if request_specs.save(conn, stored, spec.to_json()):
                return
    raise InstanceNotReady(instance_id=server.uuid)


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (
    Route('PUT', SERVER, update, UPDATE, body=BODY, server=VIEW, asks=show.SEEN),
    Route('DELETE', SERVER, delete, DELETE, status=204, server=WORK),
)
