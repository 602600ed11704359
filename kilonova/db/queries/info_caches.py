"""Statements on instance_info_caches: what is known of a server's ports. Conductors alone write it, each in the
transaction that says where its operation stands.

    info_caches.write(conn, uuid, [vif.stored(), …])            # [] empties it
    info_caches.replace(conn, uuid, seen, [vif.stored(), …])    # unless it was written since it was read
"""
from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.models import cell as models

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


def after(conn: sa.Connection, last: int) -> tuple[int, str] | None:
    """The next cache by its id that is one of a server which isn't deleted: (id, server); None: there is none."""
    row = conn.execute(sa.select(caches.c.id, caches.c.instance_uuid).join_from(
        caches, instances, instances.c.uuid == caches.c.instance_uuid).where(
        caches.c.id > last, instances.c.deleted == 0).order_by(caches.c.id).limit(1)).first()
    return (row.id, row.instance_uuid) if row is not None else None
