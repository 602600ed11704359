"""Read and write instance_info_caches, which store the interfaces of servers and the state of their ports.

    info_caches.write(conn, uuid, [vif.stored(), …])            # [] empties the cache
    info_caches.replace(conn, uuid, seen, [vif.stored(), …])    # only if the cache still has the text ``seen``
    info_caches.amend(conn, uuid, change)                       # replace each interface by change(interface)

Conductors write the cache in the transaction that records the progress of their operation. The API writes the changes
of its own request in the transaction that inserts an operation. The operation then reads the ports from the network
service again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging

from kilonova.db.models import cell as models

LOG = logging.getLogger(__name__)

caches = models.InstanceInfoCache.__table__
instances = models.Instance.__table__


def write(conn: sa.Connection, uuid: str, vifs: Sequence[Mapping[str, Any]]) -> None:
    """Store the interfaces of a server, in the order of the guest's devices."""
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    text = json.dumps(list(vifs))
    written = conn.execute(
        caches.update().where(caches.c.instance_uuid == uuid).values(network_info=text, updated_at=now)
    )
    if not written.rowcount and vifs:
        conn.execute(caches.insert(), {'instance_uuid': uuid, 'network_info': text, 'created_at': now, 'deleted': 0})


def replace(conn: sa.Connection, uuid: str, seen: str | None, vifs: Sequence[Mapping[str, Any]]) -> bool:
    """Replace the stored interfaces of a server, if its info cache has not changed since it was read.

    Return False if the cache has changed. ``seen`` is the text that was read. None means that the server had no cache:
    in this case the interfaces are always written, because no other code writes the first cache.
    """
    if seen is None:
        write(conn, uuid, vifs)
        return True
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return bool(
        conn.execute(
            caches.update()
            .where(caches.c.instance_uuid == uuid, caches.c.network_info == seen)
            .values(network_info=json.dumps(list(vifs)), updated_at=now)
        ).rowcount
    )


def amend(conn: sa.Connection, uuid: str, change: Callable[[Any], dict[str, Any]]) -> None:
    """Replace each stored interface of a server by the result of ``change(interface)``.

    Nothing is written in four cases: the cache is empty, nothing changes, another transaction writes the cache at the
    same moment, or ``change`` can't read an interface.
    """
    seen = conn.execute(sa.select(caches.c.network_info).where(caches.c.instance_uuid == uuid)).scalar()
    try:
        before = json.loads(seen or '[]')
        vifs = [change(vif) for vif in before]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        LOG.error(
            'Could not read the info cache of server %s (%r); a conductor will rebuild it from the ports',
            uuid,
            error,
            instance_uuid=uuid,
        )
        return
    if vifs != before:
        replace(conn, uuid, seen, vifs)


def after(conn: sa.Connection, last: int) -> tuple[int, str] | None:
    """Return (id, server) of the next info cache whose server isn't deleted, in the order of ids.

    The id is greater than ``last``. Return None if there is no further cache.
    """
    row = conn.execute(
        sa.select(caches.c.id, caches.c.instance_uuid)
        .join_from(caches, instances, instances.c.uuid == caches.c.instance_uuid)
        .where(caches.c.id > last, instances.c.deleted == 0)
        .order_by(caches.c.id)
        .limit(1)
    ).first()
    return (row.id, row.instance_uuid) if row is not None else None
