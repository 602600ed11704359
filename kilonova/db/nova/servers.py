"""Read the servers of a cell of Nova, each with all of its rows that decide whether it can be adopted.

    for server in servers(cell, connection, api, api_connection): ...

Seven SQL statements for each 500 servers, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kilonova.db.engine import Connection
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.rows import Row

_INSTANCE = (
    'id',
    'uuid',
    'display_name',
    'project_id',
    'vm_state',
    'task_state',
    'host',
    'node',
    'compute_id',
    'deleted',
)


@dataclass(frozen=True)
class NovaServer:
    """A server of Nova.

    Attributes:
        instance: Its row in ``instances``, with the columns in ``_INSTANCE``.
        extra: Its row in ``instance_extra``, or None.
        system_metadata: Its system metadata, as a dict.
        volumes: Its rows in ``block_device_mapping`` whose destination is a volume.
        network_info: The JSON text of its info cache, or None.
        shares: The number of its rows in ``share_mapping``.
        mapping: Its row in ``instance_mappings``, or None.
        spec: The JSON text of its request spec, or None.
    """

    instance: Row
    extra: Row | None
    system_metadata: dict[str, str]
    volumes: list[Row]
    network_info: str | None
    shares: int
    mapping: Row | None
    spec: str | None

    def __str__(self) -> str:
        return f'server {self.instance["uuid"]} ({self.instance["display_name"]})'


def servers(
    cell: NovaDatabase, connection: Connection, api: NovaDatabase, api_connection: Connection
) -> Iterator[NovaServer]:
    """Yield the servers of a cell that are not deleted, ordered by id."""
    for rows in cell.batches(connection, 'instances', _INSTANCE, deleted=False):
        ids = [row['uuid'] for row in rows]

        def of(table: str, *columns: str, ids: list[str] = ids) -> dict[str, list[Row]]:
            conditions = (cell.table(table).c.deleted == 0,) if cell.has(table, 'deleted') else ()
            return cell.rows_of(connection, table, 'instance_uuid', ids, columns or None, *conditions)

        extras = of('instance_extra')
        metadata = of('instance_system_metadata', 'key', 'value')
        disks = of('block_device_mapping', 'destination_type', 'volume_id', 'attachment_id', 'connection_info')
        caches = of('instance_info_caches', 'network_info')
        shares = of('share_mapping', 'share_id')
        mappings = api.rows_of(api_connection, 'instance_mappings', 'instance_uuid', ids)
        specs = api.rows_of(api_connection, 'request_specs', 'instance_uuid', ids, ('spec',))
        for row in rows:
            uuid = row['uuid']
            yield NovaServer(
                row,
                next(iter(extras.get(uuid, ())), None),
                {one['key']: one['value'] for one in metadata.get(uuid, ())},
                [one for one in disks.get(uuid, ()) if one['destination_type'] == 'volume'],
                next((one['network_info'] for one in caches.get(uuid, ())), None),
                len(shares.get(uuid, ())),
                next(iter(mappings.get(uuid, ())), None),
                next((one['spec'] for one in specs.get(uuid, ())), None),
            )
