"""Statements on instance_info_caches: what is known of a server's ports. Conductors write it, each in the transaction
that says where its operation stands. The API writes what its own request changed, in the transaction that inserts the
row of the operation that looks at the ports again.

    info_caches.write(conn, uuid, [vif.stored(), …])            # [] empties it
    info_caches.replace(conn, uuid, seen, [vif.stored(), …])    # unless it was written since it was read
    info_caches.amend(conn, uuid, change)                       # each interface, where the text can be read
"""
from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.models import cell as models

LOG = logging.getLogger(__name__)

caches = models.InstanceInfoCache.__table__
instances = models.Instance.__table__


def write(conn: sa.Connection, uuid: str, vifs: Sequence[Mapping[str, Any]]) -> None:
    """The interfaces of a server, in the order in which its guest has them."""
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    text = json.dumps(list(vifs))
    written = conn.execute(caches.update().where(caches.c.instance_uuid == uuid).values(
        network_info=text, updated_at=now))
    if not written.rowcount and vifs:
        conn.execute(caches.insert(), {'instance_uuid': uuid, 'network_info': text, 'created_at': now, 'deleted': 0})


def replace(conn: sa.Connection, uuid: str, seen: str | None, vifs: Sequence[Mapping[str, Any]]) -> bool:
    """The interfaces of a server in place of those that were ``seen``, the cache's text (None: it had none, and nobody
    else writes one then); False: it says something else now, and nothing was written."""
    if seen is None:
        write(conn, uuid, vifs)
        return True
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return bool(conn.execute(caches.update().where(
        caches.c.instance_uuid == uuid, caches.c.network_info == seen).values(
        network_info=json.dumps(list(vifs)), updated_at=now)).rowcount)


def amend(conn: sa.Connection, uuid: str, change: Callable[[Any], dict[str, Any]]) -> None:
    """Replace each interface of a server, as it is stored, by what ``change`` makes of it.

    Nothing is written if the cache is empty, if nothing changes, if somebody else writes the cache at the same moment,
    or if ``change`` can't read an interface.
    """
    seen = conn.execute(sa.select(caches.c.network_info).where(caches.c.instance_uuid == uuid)).scalar()
    try:
        before = json.loads(seen or '[]')
        vifs = [change(vif) for vif in before]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        LOG.error('The info cache of %s cannot be read (%r): a conductor is told to look at its ports.', uuid, error)
        return
    if vifs != before:
        replace(conn, uuid, seen, vifs)


def after(conn: sa.Connection, last: int) -> tuple[int, str] | None:
    """The next cache by its id that is one of a server which isn't deleted: (id, server); None: there is none."""
    row = conn.execute(sa.select(caches.c.id, caches.c.instance_uuid).join_from(
        caches, instances, instances.c.uuid == caches.c.instance_uuid).where(
        caches.c.id > last, instances.c.deleted == 0).order_by(caches.c.id).limit(1)).first()
    return (row.id, row.instance_uuid) if row is not None else None
