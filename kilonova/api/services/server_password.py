"""The encrypted administrator's password that a guest left for its owner: system metadata password_0 … password_3."""
from __future__ import annotations

from kilonova.api.services.lookup import Found
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.errors import InstanceNotReady

# One value of the table holds 255 characters.
KEYS = tuple(f'password_{part}' for part in range(4))


def read(server: Found) -> str:
    """The password as the guest encrypted it; '' for none."""
    if server.cell is None:
        return ''
    with server.cell.read() as conn:
        values = instances.get_system_metadata(conn, server.uuid)
    return ''.join(values.get(key) or '' for key in KEYS)


@engine.retried
def clear(server: Found) -> None:
    """Forget it here; the guest's own password stays."""
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    with server.cell.write() as conn:
        instances.set_system_metadata(conn, server.uuid, dict.fromkeys(KEYS))
