"""Questions about Kilonova's databases on the way back to Nova: what is under way, what has changed, what only it has.

No daemon of Kilonova runs then, so each function reads in a transaction of its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import sqlalchemy as sa

from kilonova.db.clock import db_age
from kilonova.db.engine import Database
from kilonova.db.migration import METADATA, Schema
from kilonova.db.models import api
from kilonova.db.models.cell import Instance, InstanceInfoCache, Migration, Service
from kilonova.db.nova.merge import Key
from kilonova.db.nova.questions import COMPUTE, ENDED
from kilonova.db.nova.source import BATCH, among
from kilonova.db.queries.adoption import NOT_ADOPTED
from kilonova.db.rows import Row
from kilonova.states import VmState

instances, migrations, services = Instance.__table__, Migration.__table__, Service.__table__
# Seconds by which a report of a daemon may be late.
LATE = 2
# The number of characters of a PCI address, such as 0000:08:00.0. The addresses of mediated devices are longer.
LONGEST_ADDRESS = 12
# Tables with rows that only Kilonova has, and the words for them.
_ONLY_HERE: dict[Schema, dict[str, str]] = {
    'api': {'scheduler_decisions': 'decisions of schedulers'},
    'cell': {'device_history': 'entries of the history of devices', 'console_auth_tokens': 'tokens of consoles'},
}


def under_way(database: Database, schema: Schema, report_interval: int) -> Iterator[str]:
    """Yield a text for each daemon that runs and each operation, build and task that has not ended in a database."""
    operations = METADATA[schema].tables['operations']
    query = sa.select(operations.c.uuid, operations.c.kind, operations.c.instance_uuid).order_by(operations.c.id)
    with database.read() as connection:
        for row in connection.execute(query):
            yield (
                f'server {row.instance_uuid}: operation {row.kind} ({row.uuid}) has not ended. Wait for its end while '
                'conductors and computes run'
            )
        if schema == 'api':
            requests = api.BuildRequest.__table__
            for uuid in connection.execute(sa.select(requests.c.instance_uuid).order_by(requests.c.id)).scalars():
                yield f'server {uuid} is being created. Wait for its end, or delete it'
            return
        age = db_age(services.c.last_seen_up)
        reported = sa.select(services.c.binary, services.c.host, age.label('age')).where(
            services.c.deleted == 0, services.c.version != NOT_ADOPTED, age < report_interval + LATE
        )
        for row in connection.execute(reported.order_by(services.c.binary, services.c.host)):
            name = row.binary.replace('nova-', 'kilonova-')
            yield f'{name} on {row.host} reported {max(row.age, 0):.0f} seconds ago. Stop it, and wait for some seconds'
        busy = sa.select(instances.c.uuid, instances.c.vm_state, instances.c.task_state).where(
            instances.c.deleted == 0, instances.c.task_state.is_not(None)
        )
        for row in connection.execute(busy.order_by(instances.c.id)):
            yield (
                f'server {row.uuid} is {row.vm_state}, {row.task_state}. Wait for its end, or reset its state: '
                "'openstack server set --state'"
            )


def moves(database: Database) -> list[Row]:
    """Return the migrations of existing servers that have not ended, ordered by id."""
    query = (
        sa.select(
            migrations.c.id,
            migrations.c.instance_uuid,
            migrations.c.status,
            migrations.c.migration_type,
            migrations.c.source_compute,
            migrations.c.dest_compute,
        )
        .join_from(migrations, instances, instances.c.uuid == migrations.c.instance_uuid)
        .where(migrations.c.deleted == 0, instances.c.deleted == 0, migrations.c.status.not_in(ENDED))
    )
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query.order_by(migrations.c.id)).mappings()]


def soft_deleted(database: Database) -> list[str]:
    """Return the uuids of the servers of a cell that are soft-deleted."""
    query = sa.select(instances.c.uuid).where(instances.c.deleted == 0, instances.c.vm_state == VmState.SOFT_DELETED)
    with database.read() as connection:
        return list(connection.execute(query).scalars())


def outside(database: Database, table: str, column: str, cells: Collection[int]) -> list[tuple[str, int]]:
    """Return pairs (value of the column, id of its cell) of the mappings to other cells than these."""
    mapping = METADATA['api'].tables[table]
    query = sa.select(mapping.c[column], mapping.c.cell_id).where(
        mapping.c.cell_id.is_not(None), mapping.c.cell_id.not_in(list(cells))
    )
    with database.read() as connection:
        return [(row[0], row[1]) for row in connection.execute(query.order_by(mapping.c.id))]


def equal_but_for_case(database: Database, schema: Schema, table: str, columns: Sequence[str]) -> list[list[str]]:
    """Return lists of names that differ only in case. All columns but the last one must be equal, too."""
    found = METADATA[schema].tables[table]
    groups: dict[tuple[str, ...], set[str]] = {}
    with database.read() as connection:
        for row in connection.execute(sa.select(*(found.c[name] for name in columns))):
            groups.setdefault(tuple(str(value).casefold() for value in row), set()).add(row[-1])
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def batches(
    database: Database, schema: Schema, table: str, columns: Sequence[str], names: Sequence[str]
) -> Iterator[list[Row]]:
    """Yield the rows of a table in lists, ordered by ``names``, the columns of the primary key.

    Of services, only the computes.
    """
    source = METADATA[schema].tables[table]
    order = [source.c[name] for name in names]
    query = sa.select(*(source.c[name] for name in dict.fromkeys((*names, *columns)))).order_by(*order).limit(BATCH)
    if table == 'services':
        query = query.where(source.c.binary == COMPUTE)
    page = query
    while True:
        with database.read() as connection:
            rows = [dict(row) for row in connection.execute(page).mappings()]
        if rows:
            yield rows
        if len(rows) < BATCH:
            return
        last = [rows[-1][name] for name in names]
        page = query.where(order[0] > last[0] if len(names) == 1 else sa.tuple_(*order) > sa.tuple_(*last))


def existing(
    database: Database, schema: Schema, table: str, names: Sequence[str], keys: Sequence[Key]
) -> set[tuple[object, ...]]:
    """Return those of the keys that rows of a table have. ``names`` are the columns of the primary key."""
    source = METADATA[schema].tables[table]
    query = sa.select(*(source.c[name] for name in names)).where(among(source, names, keys))
    with database.read() as connection:
        return {tuple(row) for row in connection.execute(query)}


def archived(
    database: Database, schema: Schema, table: str, columns: Sequence[str], names: Sequence[str], keys: Sequence[Key]
) -> dict[Key, Row]:
    """Return {key: row} of the rows with these keys that were moved to the shadow table, if there is one."""
    source = METADATA[schema].tables.get(f'shadow_{table}')
    if source is None:
        return {}
    query = sa.select(*(source.c[name] for name in columns)).where(among(source, names, keys))
    with database.read() as connection:
        rows = [dict(row) for row in connection.execute(query.order_by(source.c.shadow_id)).mappings()]
    return {tuple(row[name] for name in names): row for row in rows}


def only_here(database: Database, schema: Schema) -> dict[str, int]:
    """Return {words: number of rows} of the tables that only Kilonova has and that are not empty."""
    found = {}
    with database.read() as connection:
        for name, words in _ONLY_HERE[schema].items():
            table = METADATA[schema].tables[name]
            number = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            if number:
                found[words] = number
        if schema == 'cell':
            devices = METADATA['cell'].tables['pci_devices']
            mediated = sa.and_(devices.c.deleted == 0, sa.func.length(devices.c.address) > LONGEST_ADDRESS)
            number = connection.execute(sa.select(sa.func.count()).select_from(devices).where(mediated)).scalar_one()
            if number:
                found['mediated devices, which Nova finds in the domains of their guests'] = number
    return found


def interface_tags(database: Database, servers: Collection[str]) -> dict[tuple[str, str], str]:
    """Return {(uuid of a server, id of a port): tag} of the interfaces of these servers that have a tag."""
    caches = InstanceInfoCache.__table__
    query = sa.select(caches.c.instance_uuid, caches.c.network_info).where(caches.c.instance_uuid.in_(list(servers)))
    with database.read() as connection:
        return {
            (row.instance_uuid, vif['id']): vif['tag']
            for row in connection.execute(query)
            for vif in json.loads(row.network_info or '[]')
            if vif.get('tag') is not None
        }
