"""Read and record the takeover of a Nova, and find the hosts that still run nova-compute.

The copied compute service of a host has the version NOT_ADOPTED, until kilonova-compute starts on the host and writes
its own version. Until then nova-compute manages the guests of the host, so every request for one of the host's servers
is refused (``refuse_not_adopted``).

A takeover begins when Nova's databases are marked (``AdoptionState.BEGUN``). It ends when the way back begins
(``AdoptionState.BACK``): from then on no daemon of Kilonova starts with these databases.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kilonova.db.engine import Database
from kilonova.db.migration import METADATA, Schema
from kilonova.db.models.api import Adoption
from kilonova.db.models.cell import Instance, Service
from kilonova.errors import HostNotAdopted

adoptions, services, instances = Adoption.__table__, Service.__table__, Instance.__table__
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
# The id of the only row of ``adoptions``.
_ONLY = 1


class AdoptionState(enum.StrEnum):
    """The state of a takeover: Kilonova works in place of Nova, or the way back to Nova has begun."""

    BEGUN = 'begun'
    BACK = 'back'


@dataclass(frozen=True)
class Takeover:
    """The takeover of a Nova.

    ``fingerprints`` is {name of a database of Nova: {table: fingerprint}} of the time when it began. A fingerprint is
    a list of JSON values which differs if rows of the table were changed since.
    """

    state: AdoptionState
    fingerprints: Mapping[str, Mapping[str, list[Any]]]


def takeover(connection: sa.Connection) -> Takeover | None:
    """Return the takeover that the API database records, or None if there was none."""
    row = connection.execute(sa.select(adoptions.c.state, adoptions.c.nova).where(adoptions.c.id == _ONLY)).first()
    return None if row is None else Takeover(AdoptionState(row.state), json.loads(row.nova))


def record_begin(connection: sa.Connection, fingerprints: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Record in the API database that Kilonova works in place of Nova from now on."""
    connection.execute(sa.delete(adoptions))
    values = {'id': _ONLY, 'state': AdoptionState.BEGUN, 'nova': json.dumps(fingerprints)}
    connection.execute(sa.insert(adoptions).values(values))


def record_back(connection: sa.Connection) -> None:
    """Record in the API database that the way back to Nova has begun."""
    connection.execute(sa.update(adoptions).values(state=AdoptionState.BACK))


def not_adopted(connection: sa.Connection) -> list[str]:
    """Return the hosts of a cell that still run nova-compute, sorted."""
    return list(
        connection.execute(sa.select(services.c.host).where(_IS_NOT_ADOPTED).order_by(services.c.host)).scalars()
    )


def refuse_not_adopted(database: Database, connection: sa.Connection, server: str) -> None:
    """Raise HostNotAdopted if the server's host still runs nova-compute.

    Runs no SQL statement if ``database.all_adopted`` is True (no host of the cell runs nova-compute), otherwise one or
    two. Once ``all_adopted`` is True, it stays True for the life of the process, because hosts are copied from Nova
    only while no daemon of Kilonova runs.
    """
    if database.all_adopted is None:
        database.all_adopted = connection.execute(_FIRST).first() is None
    if database.all_adopted:
        return
    host = connection.execute(_OF_SERVER, {'server': server}).scalar()
    if host is not None:
        raise HostNotAdopted(instance_uuid=server, host=host)


def own_rows(database: Database, schema: Schema) -> str | None:
    """Return the name of the first table with a row that a daemon of Kilonova has written, or None if there is none.

    Only the tables in OWN are checked, and in a cell the table ``services``. Such a row shows that Kilonova has already
    used the database.
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
