"""Find hosts that were copied from a Nova and still run nova-compute, and databases that Kilonova has used already.

The copied compute service of a host has the version NOT_ADOPTED, until kilonova-compute starts on the host and writes
its own version. Until then nova-compute manages the guests of the host, so every request for one of the host's servers
is refused (``refuse_not_adopted``).
"""

from __future__ import annotations

import sqlalchemy as sa

from kilonova.db.engine import Database
from kilonova.db.migration import METADATA, Schema
from kilonova.db.models.cell import Instance, Service
from kilonova.errors import HostNotAdopted

services, instances = Service.__table__, Instance.__table__
# The version of a service that was copied from Nova. No daemon has this version.
NOT_ADOPTED = -1
COMPUTE = 'nova-compute'
_IS_NOT_ADOPTED = sa.and_(services.c.binary == COMPUTE, services.c.deleted == 0, services.c.version == NOT_ADOPTED)
_OF_SERVER = (
    sa.select(services.c.host)
    .join_from(services, instances, instances.c.host == services.c.host)
    .where(_IS_NOT_ADOPTED, instances.c.uuid == sa.bindparam('server'), instances.c.deleted == 0)
)
_FIRST = sa.select(services.c.host).where(_IS_NOT_ADOPTED).limit(1)
# Tables that only daemons of Kilonova fill.
OWN: dict[Schema, tuple[str, ...]] = {
    'api': ('operations', 'scheduler_decisions', 'build_requests'),
    'cell': ('operations', 'device_history', 'console_auth_tokens'),
}


def not_adopted(connection: sa.Connection) -> list[str]:
    """Return the hosts of a cell that still run nova-compute, sorted."""
    return list(
        connection.execute(sa.select(services.c.host).where(_IS_NOT_ADOPTED).order_by(services.c.host)).scalars()
    )


def refuse_not_adopted(database: Database, connection: sa.Connection, server: str) -> None:
    """Raise HostNotAdopted if the server's host still runs nova-compute.

    Runs one SQL statement, or none if ``database.all_adopted`` says that no host of the cell runs nova-compute. This
    stays true while a daemon runs, because hosts are copied from Nova only while no daemon runs.
    """
    if database.all_adopted is None:
        database.all_adopted = connection.execute(_FIRST).first() is None
    if database.all_adopted:
        return
    host = connection.execute(_OF_SERVER, {'server': server}).scalar()
    if host is not None:
        raise HostNotAdopted(instance_uuid=server, host=host)


def own_rows(database: Database, schema: Schema) -> str | None:
    """Return the name of a table that has rows which only Kilonova's daemons write, or None if there is no such row.

    Such a row shows that Kilonova has already used the database.
    """
    with database.read() as connection:
        for name in OWN[schema]:
            table = METADATA[schema].tables[name]
            if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
                return name
        if schema == 'cell':
            started = sa.and_(services.c.deleted == 0, services.c.version != NOT_ADOPTED)
            if connection.execute(sa.select(services.c.id).where(started).limit(1)).first():
                return 'services'
    return None
