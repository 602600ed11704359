"""The mark of Nova's databases while Kilonova works in their place.

    mark.put(database)                        # from now on no controller of Nova starts with the database
    mark.is_put(connection)
    mark.remove(database)                     # everything is as before

The mark is a table of its own, which Nova does not read, and the version of Nova's compute services, which it reads:
nova-api, nova-conductor and nova-scheduler do not start beside computes of such an old version. They log "Current Nova
version does not support computes older than …" and end. nova-compute does nothing without a conductor.
"""

from __future__ import annotations

import json

import sqlalchemy as sa

from kilonova.db.engine import Connection
from kilonova.db.nova.questions import COMPUTE
from kilonova.db.nova.source import NovaDatabase

# While a database has the mark, its nova-compute services have this value in the column ``services.version``.
# The value is older than the version of any release of Nova, so Nova's controllers do not start.
VERSION = 1
_MARK = sa.Table(
    'kilonova_adoption',
    sa.MetaData(),
    sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
    # A JSON object {id of a compute service: its version}.
    sa.Column('services', sa.Text, nullable=False),
)


def is_put(connection: Connection) -> bool:
    """Return whether the database has the mark. Runs at most two SQL statements."""
    return _versions(connection) is not None


def marked(*databases: NovaDatabase) -> list[str]:
    """Return the names of those of the databases that have the mark."""
    found = []
    for database in databases:
        with database.read() as connection:
            if is_put(connection):
                found.append(database.name)
    return found


def put(database: NovaDatabase) -> None:
    """Mark a database of Nova as taken over by Kilonova, so that Nova's controllers do not start with it again.

    The mark is a new table. In the database of a cell, the compute services also get a version that is too old for
    nova-conductor and nova-scheduler. ``database`` must be writable. Nothing is changed if it has the mark already.
    """
    with database.write() as connection:
        _MARK.create(connection, checkfirst=True)
        if _versions(connection) is not None:
            return
        known = {}
        if database.schema == 'cell':
            services = database.table('services')
            query = sa.select(services.c.id, services.c.version).where(services.c.binary == COMPUTE)
            known = {row.id: row.version for row in connection.execute(query)}
            connection.execute(
                sa.update(services).where(services.c.binary == COMPUTE).values({services.c.version: VERSION})
            )
        connection.execute(sa.insert(_MARK).values(id=1, services=json.dumps(known)))


def remove(database: NovaDatabase) -> None:
    """Remove the mark of a writable database, and give its compute services their versions again.

    A service that Kilonova has added gets the highest version of the others. Nothing is changed if the database has no
    mark.
    """
    with database.write() as connection:
        versions = _versions(connection)
        if versions is not None and database.schema == 'cell':
            services = database.table('services')
            marked = sa.and_(services.c.binary == COMPUTE, services.c.version == VERSION)
            for number in connection.execute(sa.select(services.c.id).where(marked)).scalars().all():
                version = versions.get(str(number), max(versions.values(), default=VERSION))
                connection.execute(
                    sa.update(services).where(services.c.id == number).values({services.c.version: version})
                )
        if versions is not None:
            connection.execute(sa.delete(_MARK))
    with database.write() as connection:
        _MARK.drop(connection, checkfirst=True)


def _versions(connection: Connection) -> dict[str, int] | None:
    """Return {id of a compute service: its version before the mark}, or None if there is no mark."""
    if not sa.inspect(connection).has_table(_MARK.name):
        return None
    text = connection.execute(sa.select(_MARK.c.services)).scalar()
    return None if text is None else dict(json.loads(text))
