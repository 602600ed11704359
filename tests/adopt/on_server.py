"""Put the databases of a ``Nova`` on a MariaDB or PostgreSQL server, where real ones are.

url_of = on_server.move(nova, server, 'nova')         # nova.conf names the databases there now
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kilonova.db.migration import METADATA
from tests.adopt.nova import Nova
from tests.integration import database_servers

# Columns that have an index, as in Nova, because rows are looked for by them.
INDEXED = ('uuid', 'instance_uuid', 'action_id', 'deleted')
More = Callable[[sa.Connection, sa.MetaData, str], None]


def move(nova: Nova, server: database_servers.Server, prefix: str, more: More | None = None) -> Callable[[str], str]:
    """Copy the databases to the server, and return the function from a database's name to its URL.

    ``more`` gets a connection, the tables and the name of each database, and may add rows.
    """

    def url(name: str) -> str:
        return server.url(f'{prefix}_{name}')

    for name in ('api', *nova.cell_ids):
        server.create(f'{prefix}_{name}')
        source, made = sa.create_engine(nova.url(name)), sa.create_engine(url(name))
        tables = sa.MetaData()
        tables.reflect(source)
        for table in tables.tables.values():
            _prepare(table)
        with made.begin() as connection, source.connect() as rows:
            tables.create_all(connection)
            for table in tables.tables.values():
                found = [dict(row) for row in rows.execute(sa.select(table)).mappings()]
                for row in found if table.name == 'cell_mappings' else ():
                    row['database_connection'] = url(row['name'])
                if found:
                    connection.execute(table.insert(), found)
            if more is not None:
                more(connection, tables, name)
        made.dispose()
        source.dispose()
    nova.conf.write_text(f'[api_database]\nconnection = {url("api")}\n[database]\nconnection = {url("cell0")}\n')
    return url


def _prepare(table: sa.Table) -> None:
    """Use types of the server, leave out keys that may be too long for its character set, and add indexes."""
    ours = next((one.tables[table.name] for one in METADATA.values() if table.name in one.tables), None)
    for column in table.c:
        if isinstance(column.type, sa.types.DATETIME):
            column.type = sa.DateTime()
        elif ours is not None and column.name in ours.c and isinstance(ours.c[column.name].type, sa.Boolean):
            # SQLite has numbers there.
            column.type = sa.Boolean()
    for constraint in [one for one in table.constraints if isinstance(one, sa.UniqueConstraint)]:
        table.constraints.discard(constraint)
    for column in INDEXED:
        if column in table.c and not isinstance(table.c[column].type, sa.Text):
            sa.Index(f'{table.name[:40]}_{column}', table.c[column])
