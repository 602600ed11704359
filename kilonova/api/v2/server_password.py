"""The encrypted administrator's password that a guest stores for its owner (``os-server-password`` of a server).

The password is stored in the server's system metadata, in the keys password_0 to password_3.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.services.server_operations import VIEW, ServerRef
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.errors import InstanceNotReady
from kilonova.virt import guest_password

SHOW, CLEAR = f'{PREFIX}os-server-password:show', f'{PREFIX}os-server-password:clear'
RULES = (
    rule(SHOW, READER, 'See the encrypted password of a server.'),
    rule(CLEAR, MEMBER, 'Delete the encrypted password of a server.'),
)


def index(call: Call) -> dict[str, Any]:
    """Return the password as the guest encrypted it, or '' if none is stored (``GET …/os-server-password``)."""
    server = call.server
    if server.cell is None:
        return {'password': ''}
    with server.cell.read() as conn:
        values = instances.get_system_metadata(conn, server.uuid)
    return {'password': guest_password.joined(values)}


def clear(call: Call) -> None:
    """Delete the stored password (``DELETE …/os-server-password``). The password inside the guest does not change."""
    if call.server.cell is None:
        raise InstanceNotReady(instance_id=call.server.uuid)
    _forget(call.server)


@engine.retried
def _forget(server: ServerRef) -> None:
    with server.cell.write() as conn:
        instances.set_system_metadata(conn, server.uuid, dict.fromkeys(guest_password.KEYS))


_PATH = f'{SERVER}/os-server-password'
ROUTES = (
    Route('GET', _PATH, index, SHOW, server=VIEW),
    Route('DELETE', _PATH, clear, CLEAR, status=204, server=VIEW),
)
