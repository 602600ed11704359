"""Convert rows of Kilonova to the form in which Nova stores them, for the way back.

    nova_form.rows(side, 'block_device_mapping', rows, current)      # rows for Nova's table

This is the opposite of the conversions in ``copy``.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.adopt import objects
from kilonova.db.engine import Database
from kilonova.db.migration import Schema
from kilonova.db.nova import mark, remains
from kilonova.db.nova.merge import Key
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.rows import Row

# Parts of an interface in an info cache that only Kilonova stores, by the key of the dict in which they are.
_ONLY_HERE = ('before', 'resource_request', 'security_groups')
# Columns of a compute service that belong to the daemon that runs: Nova's keep their values.
_OF_DAEMON = ('version', 'last_seen_up', 'report_count', 'updated_at')


@dataclass(frozen=True)
class BackSide:
    """A database of Kilonova, and the writable database of Nova that gets its rows.

    ``cells`` is {id of a cell of Kilonova: id of the cell of Nova}. ``soft_deleted`` are the uuids of all servers of
    Kilonova that are soft-deleted, for the API database. ``release`` is the release of Nova, as ``source.REVISIONS``
    names the schema of its cells.
    """

    schema: Schema
    ours: Database
    nova: NovaDatabase
    release: str
    cells: Mapping[int, int]
    soft_deleted: Collection[str] = ()


def rows(side: BackSide, table: str, found: Sequence[Row], current: Mapping[int, Row]) -> list[Row]:
    """Return some rows of a table of Kilonova as Nova stores them.

    ``current`` is {id: row of Nova's table} of those that exist.
    """
    convert = _CONVERSIONS.get(table)
    converted = [dict(row) for row in found]
    if convert is not None:
        for row in converted:
            convert(side, row, current)
    if side.nova.dialect == 'mysql':
        for row in converted:
            _whole_seconds(row)
    return converted


def unfit(side: BackSide, table: str, row: Row) -> str | None:
    """Return why a row, in Nova's form, does not fit into Nova's table, or None if it fits."""
    for column, value in row.items():
        if isinstance(value, str):
            length = side.nova.length(table, column)
            if length is not None and len(value) > length:
                return f'{column} has {len(value)} characters, and at most {length} in Nova'
            if side.nova.is_narrow(table, column) and any(ord(character) > 0xFFFF for character in value):
                return f'{column} has a character that the character set of Nova lacks: {value!r:.80}'
    return None


def stays(table: str, row: Row) -> bool:
    """Return whether a row stays with Kilonova, because Nova has no such rows: a mediated device."""
    return table == 'pci_devices' and len(row['address'] or '') > remains.LONGEST_ADDRESS


def key(names: Sequence[str], row: Row) -> Key:
    """Return the values of the primary key's columns."""
    return tuple(row[name] for name in names)


def _whole_seconds(row: Row) -> None:
    """Cut the fractions of seconds off, which Nova's columns in MySQL do not have."""
    for column, value in row.items():
        if isinstance(value, datetime.datetime) and value.microsecond:
            row[column] = value.replace(microsecond=0)


def _with_objects(table: str, side: BackSide, row: Row, _current: Mapping[int, Row]) -> None:
    for column in objects.COLUMNS[table]:
        if row.get(column):
            row[column] = json.dumps(objects.give_back(json.loads(row[column]), side.release))


def _in_novas_cell(side: BackSide, row: Row, _current: Mapping[int, Row]) -> None:
    if row['cell_id'] is not None:
        row['cell_id'] = side.cells[row['cell_id']]


def _mapping(side: BackSide, row: Row, current: Mapping[int, Row]) -> None:
    """Say of servers that are soft-deleted that they are queued for deletion, as Nova does."""
    _in_novas_cell(side, row, current)
    if row['instance_uuid'] in side.soft_deleted:
        row['queued_for_delete'] = True


def _service(_side: BackSide, row: Row, current: Mapping[int, Row]) -> None:
    before = current.get(row['id'])
    if before is None:
        row.update(version=mark.VERSION, last_seen_up=None, report_count=0, updated_at=None)
    else:
        row.update({column: before[column] for column in _OF_DAEMON})


def _volume(_side: BackSide, row: Row, _current: Mapping[int, Row]) -> None:
    """Put the connector of the volume's host where Nova has it, and leave out what is known of hosts."""
    if row['destination_type'] != 'volume' or not row['connection_info']:
        return
    stored = json.loads(row['connection_info'])
    if not isinstance(stored, dict) or 'hosts' not in stored:
        return
    host, hosts = stored.pop('attached_to', None), stored.pop('hosts')
    if host in hosts:
        stored['connector'] = hosts[host].get('connector') or {}
    row['connection_info'] = json.dumps(stored)


def _info_cache(_side: BackSide, row: Row, _current: Mapping[int, Row]) -> None:
    """Leave out what only Kilonova stores of an interface. The tag is in a table of its own in Nova."""
    if not row['network_info']:
        return
    vifs = json.loads(row['network_info'])
    for vif in vifs:
        vif.pop('tag', None)
        for name in _ONLY_HERE:
            (vif.get('meta') or {}).pop(name, None)
        for subnet in (vif.get('network') or {}).get('subnets') or ():
            (subnet.get('meta') or {}).pop('subnet_id', None)
    row['network_info'] = json.dumps(vifs)


_CONVERSIONS: Mapping[str, Callable[[BackSide, Any, Mapping[int, Row]], None]] = {
    'request_specs': functools.partial(_with_objects, 'request_specs'),
    'instance_extra': functools.partial(_with_objects, 'instance_extra'),
    'host_mappings': _in_novas_cell,
    'instance_mappings': _mapping,
    'services': _service,
    'block_device_mapping': _volume,
    'instance_info_caches': _info_cache,
}
