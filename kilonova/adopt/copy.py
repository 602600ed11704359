"""Copy a running Nova's rows into Kilonova's own databases, and later what has changed since.

    with cloud.opened(paths, options.new) as nova:
        copied = copy.run(nova, databases, cells, progress=print)      # {('cell1', 'instances'): Counts}

Nova's databases are only read, each in one transaction that sees one state. Each run makes Kilonova's tables equal to
what Nova's say: it deletes, inserts and changes only what differs. So a run that was interrupted is simply repeated,
and the last run, after Nova's API has been closed, is short.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.adopt import objects
from kilonova.adopt.cloud import NovaCell, NovaCloud
from kilonova.db import migration
from kilonova.db.engine import Connection, Database, Databases
from kilonova.db.migration import METADATA, Schema
from kilonova.db.nova import mark, merge, questions, remains
from kilonova.db.nova.merge import Counts
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.queries import adoption
from kilonova.db.queries.cells import CELL0_UUID, CellDatabases
from kilonova.db.rows import Row
from kilonova.objects.volume import KIND

# The tables that are copied, parents before their children: rows of a child refer to rows of its parent.
API_TABLES = (
    'flavors',
    'flavor_extra_specs',
    'flavor_projects',
    'aggregates',
    'aggregate_hosts',
    'aggregate_metadata',
    'instance_groups',
    'instance_group_policy',
    'instance_group_member',
    'key_pairs',
    'quotas',
    'project_user_quotas',
    'quota_classes',
    'host_mappings',
    'instance_mappings',
    'request_specs',
)
CELL_TABLES = (
    'services',
    'compute_nodes',
    'pci_devices',
    'instances',
    'instance_extra',
    'instance_info_caches',
    'instance_metadata',
    'instance_system_metadata',
    'instance_faults',
    'instance_actions',
    'instance_actions_events',
    'migrations',
    'block_device_mapping',
    'tags',
    'task_log',
    'volume_usage_cache',
)
# Tables to which no rows are copied from Nova. Console tokens expire within minutes.
# The URLs in Kilonova's cell_mappings differ from Nova's. Build requests must be gone before the last copy.
# Nova does not have the tables adoptions, operations, leases, scheduler_decisions and device_history.
NOT_COPIED: Mapping[Schema, Collection[str]] = {
    'api': ('adoptions', 'operations', 'leases', 'cell_mappings', 'build_requests', 'scheduler_decisions'),
    'cell': ('operations', 'leases', 'console_auth_tokens', 'device_history'),
}
# The counters of a volume's usage: each since the last start of the guest (curr_…), and before that (tot_…).
COUNTERS = ('reads', 'read_bytes', 'writes', 'write_bytes')


Copied = dict[tuple[str, str], Counts]


class NotReady(errors.Invalid):
    """Nova's rows cannot be copied to Kilonova's databases now.

    For example, a cell is missing, a database is not at its newest revision, or daemons of Kilonova have worked with
    it.
    """

    msg_fmt = '%(reason)s'


class NotCopied(errors.Invalid):
    """A row of Nova can't be converted."""

    msg_fmt = '%(where)s, table %(table)s, row %(row)s: %(reason)s'


@dataclass(frozen=True)
class CopySide:
    """A database of Nova (``source``), paired with the database of Kilonova that gets its rows (``target``).

    ``connection`` reads ``source``. ``cells`` is {id of a cell of Nova: id of the cell of Kilonova}. ``soft_deleted``
    are the uuids of the soft-deleted servers in all cells. It is set only for the pair of API databases.
    """

    schema: Schema
    source: NovaDatabase
    connection: Connection
    target: Database
    cells: Mapping[int, int]
    soft_deleted: Collection[str] = ()

    @property
    def tables(self) -> Sequence[str]:
        """The tables that are copied, parents before their children."""
        return tables_of(self.schema)


def tables_of(schema: Schema) -> Sequence[str]:
    """Return the tables of a schema that are copied, parents before their children."""
    return API_TABLES if schema == 'api' else CELL_TABLES


def run(
    nova: NovaCloud, databases: Databases, cells: CellDatabases, progress: Callable[[str], object] = lambda line: None
) -> Copied:
    """Make Kilonova's tables equal to Nova's, and return what was done, as {(database, table): counts}.

    ``progress`` gets a line for each table. Raises NotReady before anything is written, NovaUnreadable, and NotCopied
    for a row that can't be converted; the rows before it are written then.
    """
    marked = mark.marked(nova.api, *(cell.database for cell in nova.cells))
    if marked:
        raise NotReady(
            reason=f"Nova's {marked[0]} database is marked: Kilonova has taken over this Nova. To copy again, go back "
            "first: 'kilonova-manage adopt back'"
        )
    found = targets(nova, databases, cells)
    numbers = {cell.id: cells.id_of(found[cell.name]) for cell in nova.cells}
    copied: Copied = {}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(nova.api.read())
        sides = [
            CopySide('cell', cell.database, stack.enter_context(cell.database.read()), found[cell.name], numbers)
            for cell in nova.cells
        ]
        ended = {uuid for side in sides for uuid in questions.soft_deleted(side.source, side.connection)}
        for side in (CopySide('api', nova.api, api, databases.api(), numbers, ended), *sides):
            for table in reversed(side.tables):
                copied[side.source.name, table] = _delete(side, table)
            for table in side.tables:
                key = side.source.name, table
                copied[key] += merge.rows(
                    side.target,
                    METADATA[side.schema].tables[table],
                    merge.key_of(side.schema, table),
                    _converted(side, table),
                )
                progress(_line(side.source.name, table, copied[key]))
    return copied


def _line(database: str, table: str, counts: Counts) -> str:
    return (
        f'{database} {table}: {counts.total} rows, {counts.inserted} new, {counts.changed} changed, '
        f'{counts.deleted} deleted'
    )


# --- before the copy
def running(nova: NovaCloud) -> list[str]:
    """Return a text for each conductor and scheduler of Nova whose last report is younger than the report interval.

    Such a daemon probably runs. A daemon that was just stopped is included until report_interval and some seconds have
    passed since its last report.
    """
    seconds, found = nova.report_interval + remains.LATE, []
    for cell in nova.cells:
        with cell.database.read() as connection:
            found += [
                f'{one["binary"]} on {one["host"]} reported {max(one["age"], 0):.0f} seconds ago'
                for one in questions.reporting(cell.database, connection, seconds)
            ]
    return found


def targets(nova: NovaCloud, databases: Databases, cells: CellDatabases, worked: bool = False) -> dict[str, Database]:
    """Return {name of a cell of Nova: database of Kilonova's cell}.

    Raises NotReady if a cell is missing, or if a database is not at its newest revision. Raises it also if daemons of
    Kilonova have worked with a database, unless ``worked`` is True.
    """
    _check_schema(databases.api(), 'api')
    known = {one.cell.uuid if one.cell.uuid == CELL0_UUID else one.cell.name: one for one in cells.databases()}
    found = {}
    for cell in nova.cells:
        target = known.get(CELL0_UUID if cell.is_cell0 else cell.name)
        if target is None:
            raise NotReady(reason=_no_cell(cell))
        _check_schema(target, 'cell')
        found[cell.name] = target
    every: list[tuple[Database, Schema]] = [(databases.api(), 'api'), *((one, 'cell') for one in found.values())]
    for database, schema in () if worked else every:
        own = adoption.own_rows(database, schema)
        if own:
            raise NotReady(
                reason=f"Kilonova's {database.name} database has rows in {own}: daemons of Kilonova have worked with "
                'it, and a copy would undo what they did'
            )
    return found


def _no_cell(cell: NovaCell) -> str:
    if cell.is_cell0:
        return "Kilonova has no cell0 yet: run 'kilonova-manage cell_v2 map_cell0'"
    return (
        f"Kilonova has no cell named {cell.name!r}, which Nova has: run 'kilonova-manage cell_v2 create_cell --name "
        f"{cell.name}' with the URLs of its own database and broker"
    )


def _check_schema(database: Database, schema: Schema) -> None:
    version, newest = migration.version(database, schema), migration.newest(schema)
    if version != newest:
        sync = 'api_db sync' if schema == 'api' else 'db sync'
        raise NotReady(
            reason=f"Kilonova's {database.name} database is at revision {version or 'none'}, not {newest}: "
            f"run 'kilonova-manage {sync}'. (A database of Nova can't be used as Kilonova's)"
        )


# --- reading and converting
def _delete(side: CopySide, table: str) -> Counts:
    key, ours = merge.key_of(side.schema, table), METADATA[side.schema].tables[table]
    if table == 'volume_usage_cache':
        kept = {(row['id'],) for row in usages(side)}
        return merge.missing(side.target, ours, key, lambda keys: kept)
    find = functools.partial(side.source.existing, side.connection, table, key)
    conditions = questions.copied(side.source, table)
    return merge.missing(side.target, ours, key, lambda keys: find(keys, *conditions))


def _converted(side: CopySide, table: str) -> Iterator[list[Row]]:
    """Read a table of Nova in batches, and yield the batches with the rows converted to Kilonova's form.

    The conversions are in ``_CONVERSIONS``. Raises NotCopied if a row can't be converted.
    """
    if table == 'volume_usage_cache':
        yield usages(side)
        return
    batches = side.source.batches(
        side.connection,
        table,
        questions.common_columns(side.source, table),
        *questions.copied(side.source, table),
        key=merge.key_of(side.schema, table),
    )
    for batch in batches:
        yield converted(side, table, batch)


def converted(side: CopySide, table: str, batch: list[Row]) -> list[Row]:
    """Return some rows of a table of Nova as Kilonova stores them. Raises NotCopied for a row that can't be converted.

    The rows of ``volume_usage_cache`` must be converted all at once, by ``usages``.
    """
    convert = _CONVERSIONS.get(table)
    return batch if convert is None else convert(side, batch)


def _with_objects(table: str, side: CopySide, batch: list[Row]) -> list[Row]:
    for row in batch:
        for column in objects.COLUMNS[table]:
            if row[column]:
                try:
                    row[column] = json.dumps(objects.convert(json.loads(row[column])))
                except (ValueError, errors.Invalid) as error:
                    raise NotCopied(
                        where=side.source.name, table=table, row=row['instance_uuid'], reason=f'{column}: {error}'
                    ) from None
    return batch


def _in_our_mappings(side: CopySide, batch: list[Row]) -> list[Row]:
    """Set queued_for_delete to False in the instance mappings of soft-deleted servers, and replace the ids of cells.

    Nova sets queued_for_delete when it soft-deletes a server, and resets it when the server is restored. Kilonova sets
    it only when the server is deleted.
    """
    for row in batch:
        if row['instance_uuid'] in side.soft_deleted:
            row['queued_for_delete'] = False
    return _in_our_cells(side, batch)


def _in_our_cells(side: CopySide, batch: list[Row]) -> list[Row]:
    """Replace the column cell_id, the id of a cell of Nova, by the id of Kilonova's cell.

    Raises NotCopied if Nova has no cell with this id.
    """
    for row in batch:
        if row['cell_id'] is not None:
            if row['cell_id'] not in side.cells:
                raise NotCopied(
                    where='api',
                    table='mappings',
                    row=row['id'],
                    reason=f'there is no cell with the id {row["cell_id"]}',
                )
            row['cell_id'] = side.cells[row['cell_id']]
    return batch


def _with_nodes(prefix: str, host: str, node: str, side: CopySide, batch: list[Row]) -> list[Row]:
    """Set the column <prefix>compute_id to the id of the compute node where it is NULL or missing, as before Nova 29.

    ``host`` and ``node`` are the names of the columns that name the node's host and the node. The id stays NULL if no
    such node exists.
    """
    column = f'{prefix}compute_id'
    if any(row.get(column) is None and row[node] is not None for row in batch):
        known = questions.node_ids(side.source, side.connection)
        for row in batch:
            if row.get(column) is None:
                row[column] = known.get((row[host], row[node]))
    else:
        for row in batch:
            row.setdefault(column, None)
    return batch


def _not_adopted(_side: CopySide, batch: list[Row]) -> list[Row]:
    """Mark the services of computes: their hosts still run nova-compute, and report nothing to Kilonova."""
    return [
        {**row, 'version': adoption.NOT_ADOPTED, 'last_seen_up': None, 'report_count': 0, 'updated_at': None}
        if not row['deleted']
        else row
        for row in batch
    ]


def _without_times(_side: CopySide, batch: list[Row]) -> list[Row]:
    """Set created_at and updated_at of tags to NULL, because Nova's table ``tags`` has no such times.

    With the time of the copy instead, each run would find all tags changed and write them again.
    """
    return [{**row, 'created_at': None, 'updated_at': None} for row in batch]


def _with_tags_of_interfaces(side: CopySide, batch: list[Row]) -> list[Row]:
    """Add the key ``tag`` to each interface in the info caches that has a tag.

    Nova stores the tags of interfaces in the table virtual_interfaces. Kilonova stores them in the info cache.
    """
    ids = [row['instance_uuid'] for row in batch]
    tags = questions.interface_tags(side.source, side.connection, ids)
    for row in batch:
        if row['instance_uuid'] in tags and row['network_info']:
            vifs = json.loads(row['network_info'])
            for vif in vifs:
                tag = tags[row['instance_uuid']].get(vif.get('id'))
                if tag is not None:
                    vif['tag'] = tag
            row['network_info'] = json.dumps(vifs)
    return batch


def _with_volumes(side: CopySide, batch: list[Row]) -> list[Row]:
    """Convert connection_info in the rows of volumes: add the host of the server, in the key ``attached_to``."""
    hosts = questions.hosts_of(side.source, side.connection, [row['instance_uuid'] for row in batch])
    for row in batch:
        if row['destination_type'] == 'volume' and row['connection_info'] and not row['deleted']:
            try:
                row['connection_info'] = json.dumps(_connection(row, hosts.get(row['instance_uuid'])))
            except ValueError as error:
                raise NotCopied(
                    where=side.source.name, table='block_device_mapping', row=row['uuid'], reason=str(error)
                ) from None
    return batch


def _connection(row: Mapping[str, Any], host: str | None) -> dict[str, Any]:
    """Return Kilonova's connection_info of a volume, from the ``connection_info`` in the row of Nova.

    The result has the server's host as ``attached_to``, and its connector and connection in ``hosts``. If the server
    has no host, the volume is only reserved for the server, and ``hosts`` is empty. Raises ValueError if Nova's text is
    not a JSON object.
    """
    stored = json.loads(row['connection_info'])
    if not isinstance(stored, dict):
        raise ValueError('connection_info is not a JSON object')
    connector = stored.pop('connector', None) or {}
    data = stored.get('data')
    if host is None or KIND not in stored or not isinstance(data, dict):
        return {key: value for key, value in stored.items() if key not in (KIND, 'data')} | {'hosts': {}}
    known = {'connector': connector, 'connection': {**data, KIND: stored[KIND]}}
    return {**stored, 'attached_to': host, 'hosts': {host: known}}


def usages(side: CopySide) -> list[Row]:
    """Return one row with usage counters for each volume of each existing server.

    Nova adds a new row each time a volume is attached to the same server again. This function returns only the newest
    of these rows. The ``curr_`` counters of this row count since the last start of the guest. The function adds all
    counters of the older rows to its ``tot_`` counters.
    """
    found: dict[tuple[str, str], Row] = {}
    columns = questions.common_columns(side.source, 'volume_usage_cache')
    for batch in side.source.batches(side.connection, 'volume_usage_cache', columns):
        servers = questions.hosts_of(side.source, side.connection, [row['instance_uuid'] for row in batch])
        for row in batch:
            if row['instance_uuid'] not in servers:
                continue
            older = found.get((row['volume_id'], row['instance_uuid']))
            if older is not None:
                for name in COUNTERS:
                    counts = (row[f'tot_{name}'], older[f'tot_{name}'], older[f'curr_{name}'])
                    row[f'tot_{name}'] = sum(count or 0 for count in counts)
            found[row['volume_id'], row['instance_uuid']] = row
    return sorted(found.values(), key=lambda row: row['id'])


_CONVERSIONS: Mapping[str, Callable[[CopySide, list[Row]], list[Row]]] = {
    'request_specs': functools.partial(_with_objects, 'request_specs'),
    'instance_extra': functools.partial(_with_objects, 'instance_extra'),
    'host_mappings': _in_our_cells,
    'instance_mappings': _in_our_mappings,
    'instances': functools.partial(_with_nodes, '', 'host', 'node'),
    'migrations': functools.partial(_with_nodes, 'dest_', 'dest_compute', 'dest_node'),
    'instance_info_caches': _with_tags_of_interfaces,
    'block_device_mapping': _with_volumes,
    'tags': _without_times,
    'services': _not_adopted,
}
