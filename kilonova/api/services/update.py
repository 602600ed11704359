"""Change what a server is called and how it is reached."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import images
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found
from kilonova.db.queries import instances, request_specs, servers
from kilonova.errors import Conflict, InstanceNotFound, InstanceNotReady
from kilonova.objects import RequestSpec
from kilonova.rpc import updates


class CannotPin(Conflict):
    msg_fmt = 'Cannot pin instance %(uuid)s to availability zone %(zone)s: it is in %(now)s.'


def update(backend: Backend, ctxt: Any, server: Found, values: dict[str, Any]) -> None:
    """``values``: columns of instances. InstanceNotReady (409) while no cell has the server."""
    if not values:
        return
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    if not servers.update(server.cell, server.uuid, values):
        raise InstanceNotFound(instance_id=server.uuid)
    if backend.notify.on_states is not None:
        old = server.row['display_name'] if 'display_name' in values else None
        updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, old_display_name=old)
    server.row.update(values)


def disk_config(server: Found, wanted: str) -> bool:
    """The column of AUTO and MANUAL. InstanceNotReady; DiskConfigDisabled (400): its image doesn't allow AUTO."""
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    return images.disk_config_of_server(kept, server.row['image_ref'], wanted)


# How often a request spec is read again that a move changed before it was written.
PINS = 5


def check_pin(backend: Backend, server: Found, zone: str | None) -> None:
    """CannotPin (409) for another zone than the one that the server is in."""
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    now = server.row['availability_zone'] or backend.options.default_zone
    if zone is not None and zone != now:
        raise CannotPin(uuid=server.uuid, zone=zone, now=now)


def pin(backend: Backend, ctxt: Any, server: Found, zone: str | None) -> None:
    """Pin a server to the zone that it is in (``check_pin``), or let it go anywhere (None)."""
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
