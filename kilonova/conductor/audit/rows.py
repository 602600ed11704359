"""Compares the database rows of one server: its flavor, its stored request spec and its move.

``compare.Audit`` passes the rows of each server that no operation works on:

    list(disagreements(ServerRows(server, spec, moves, devices)))
    # ["database: the request spec of server 5c… says vcpus 1, its flavor vcpus 2"]
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors, texts
from kilonova.objects import Flavor, MigrationContext, PciDeviceList, instance_columns

# Columns of a server that contain values of its flavor, with the names of the flavor's fields.
COLUMNS = {
    'instance_type_id': 'id',
    'vcpus': 'vcpus',
    'memory_mb': 'memory_mb',
    'root_gb': 'root_gb',
    'ephemeral_gb': 'ephemeral_gb',
}
# Fields that are compared between the flavor in the server's row and the flavor in its request spec.
COPIED = ('id', 'flavorid', 'vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap', 'extra_specs')
# Columns of a server with JSON that this module and other parts of the audit parse.
TEXTS = ('numa_topology', 'migration_context', 'network_info')
# Status of a move that waits to be confirmed or reverted.
WAITING = 'finished'


@dataclass(frozen=True)
class ServerRows:
    """The database rows of one server that are compared with each other.

    Attributes:
        server: Row of the server with its columns of instance_extra.
        spec: Flavor of the stored request spec as JSON, or None if there is no request spec.
        moves: Migrations of the server that have not ended.
        devices: Devices that the server owns, with their hosts and nodes.
    """

    server: Mapping[str, Any]
    spec: str | None
    moves: Sequence[Mapping[str, Any]]
    devices: Sequence[Mapping[str, Any]]


def disagreements(rows: ServerRows) -> Iterator[str]:
    """Yield a line of text for the report for each contradiction between the rows of one server."""
    yield from _columns(rows)
    yield from _request_spec(rows)
    yield from _open_moves(rows)
    waiting = [move for move in rows.moves if move['status'] == WAITING]
    if len(rows.moves) == len(waiting) == 1:
        yield from _waiting_move(rows, waiting[0])
    elif not rows.moves:
        yield from _no_move(rows.server)


def unreadable(servers: Mapping[str, Mapping[str, Any]], specs: Mapping[str, str]) -> dict[str, str]:
    """Return the servers with a stored JSON text that cannot be parsed, as a dict from uuid to an error message.

    Checks the JSON columns of each server's row in ``servers``, a dict from uuid to row. Also checks the flavor in the
    server's request spec: ``specs`` is a dict from uuid to this flavor as JSON. The message names the text.
    """
    found: dict[str, str] = {}
    for uuid, server in servers.items():
        try:
            flavors(server['flavor'])
            instance_columns.check(uuid, {name: server[name] for name in TEXTS if server[name]})
            if uuid in specs:
                _spec_flavor(specs[uuid])
        except errors.ServerUnreadable as error:
            found[uuid] = str(error)
        except texts.BROKEN as error:
            found[uuid] = f'The flavor of server {uuid} cannot be read ({type(error).__name__}: {error}).'
    return found


@functools.lru_cache(maxsize=1024)
def flavors(text: str | None) -> dict[str, Flavor]:
    """Return the flavors of a server as a dict with the key ``cur`` and, during a move, ``old`` and ``new``.

    ``text`` is the JSON in the server's column ``flavor``. Results are cached, because many servers have the same
    flavor.
    """
    found = json.loads(text or '{}')
    return {name: Flavor.obj_from_primitive(envelope) for name, envelope in found.items() if envelope}


@functools.lru_cache(maxsize=1024)
def _spec_flavor(text: str) -> Flavor | None:
    envelope = json.loads(text)
    return Flavor.obj_from_primitive(envelope) if envelope else None


def context_of(server: Mapping[str, Any], move: Mapping[str, Any] | None) -> MigrationContext | None:
    """Return the server's migration context if it has the id of the migration ``move``, else None.

    The result is also None if ``move`` is None.
    """
    context = MigrationContext.from_json(server['migration_context']) if move is not None else None
    return context if move is not None and context is not None and context.migration_id == move['id'] else None


def _columns(rows: ServerRows) -> Iterator[str]:
    flavor = flavors(rows.server['flavor']).get('cur')
    if flavor is None:
        yield f'database: server {rows.server["uuid"]} has no flavor'
        return
    wrong = [name for name, own in COLUMNS.items() if rows.server[name] != getattr(flavor, own)]
    if wrong:
        has = ', '.join(f'{name} {rows.server[name]}' for name in wrong)
        says = ', '.join(f'{name} {getattr(flavor, COLUMNS[name])}' for name in wrong)
        yield f'database: server {rows.server["uuid"]} has {has}, its flavor says {says}'


def _request_spec(rows: ServerRows) -> Iterator[str]:
    """Yield a line for the report if the request spec is missing, or its flavor is missing or not the server's flavor.

    The request spec is used when the server is scheduled again.
    """
    uuid, flavor = rows.server['uuid'], flavors(rows.server['flavor']).get('cur')
    if rows.spec is None:
        yield f'database: server {uuid} has no request spec'
        return
    stored = _spec_flavor(rows.spec)
    if stored is None:
        yield f'database: the request spec of server {uuid} has no flavor'
    elif flavor is not None and (wrong := [name for name in COPIED if _field(stored, name) != _field(flavor, name)]):
        says, has = (', '.join(f'{name} {_field(one, name)}' for name in wrong) for one in (stored, flavor))
        yield f'database: the request spec of server {uuid} says {says}, its flavor {has}'


def _field(flavor: Flavor, name: str) -> Any:
    return getattr(flavor, name) if name in flavor else None


def _open_moves(rows: ServerRows) -> Iterator[str]:
    server, open_ = rows.server, [move['uuid'] for move in rows.moves]
    if len(open_) > 1:
        yield f'database: server {server["uuid"]} has {len(open_)} open moves: {", ".join(sorted(open_))}'
    resized = server['vm_state'] == 'resized'
    if resized and not open_:
        yield f'database: server {server["uuid"]} is resized and no move of it waits to be confirmed'
    for move in rows.moves:
        if move['status'] == WAITING and not resized:
            yield (
                f'database: move {move["uuid"]} waits to be confirmed and its server {server["uuid"]} is '
                f'{server["vm_state"]}'
            )


def _no_move(server: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the report for each value of a move that a server has although the server is not moving."""
    if server['migration_context']:
        yield f'database: server {server["uuid"]} has a migration context and is not moving'
    left = [which for which in ('old', 'new') if which in flavors(server['flavor'])]
    if left:
        yield f'database: server {server["uuid"]} has {" and ".join(left)} flavor of a move and is not moving'


def _waiting_move(rows: ServerRows, move: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the report for each difference between a server and its move, which is not confirmed yet.

    Compares the server's old and new flavors with those of the migration row, and the devices in the migration context
    with the devices that the server holds. A confirm or a revert uses these values.
    """
    server, own = rows.server, flavors(rows.server['flavor'])
    for which, number in (('old', move['old_instance_type_id']), ('new', move['new_instance_type_id'])):
        said = own[which].id if which in own else None
        if said != number:
            yield f'database: server {server["uuid"]} has {which} flavor {said}, its move {move["uuid"]} says {number}'
    if 'new' in own and own['new'].id != own['cur'].id:
        yield f'database: server {server["uuid"]} has flavor {own["cur"].id} and new flavor {own["new"].id}'
    context = context_of(server, move)
    if context is None:
        has = 'the migration context of another move' if server['migration_context'] else 'no migration context'
        yield f'database: server {server["uuid"]} has {has}, its move {move["uuid"]} waits to be confirmed'
    elif 'old_pci_devices' in context and 'new_pci_devices' in context:
        yield from _context_devices(rows, move, context)


def _context_devices(rows: ServerRows, move: Mapping[str, Any], context: MigrationContext) -> Iterator[str]:
    old = _places(context.old_pci_devices, move['source_compute'], move['source_node'])
    new = _places(context.new_pci_devices, move['dest_compute'], move['dest_node'])
    held = {(device['host'], device['node'], device['address']) for device in rows.devices}
    if old & new or old | new != held:
        yield (
            f'database: the migration context of server {rows.server["uuid"]} has old devices {_shown(old)} and new '
            f'ones {_shown(new)}, the server holds {_shown(held)}'
        )


def _places(devices: PciDeviceList | None, host: str, node: str) -> set[tuple[str, str, str]]:
    return {(host, node, device.address) for device in devices or ()}


def _shown(places: set[tuple[str, str, str]]) -> list[str]:
    return sorted(f'{host} {address}' for host, _, address in places)


def devices_of(
    server: dict[str, Any], move: dict[str, Any] | None, owned: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]] | None]:
    """Return two lists: the devices of a server on its host, and its devices for the source of its move.

    ``owned`` are the rows of all devices that the server holds. The second list is empty if ``move`` is None. After a
    move within one host, the migration context says which devices are those of the source. Returns (None, None) if this
    is unknown, because there is no such migration context.
    """
    here = [device for device in owned if device['host'] == server['host']]
    if move is None or move['source_compute'] != move['dest_compute']:
        return here, [device for device in owned if move is not None and device['host'] == move['source_compute']]
    context = context_of(server, move)
    if context is None or 'old_pci_devices' not in context:
        return None, None
    before = {device.address for device in context.old_pci_devices or ()}
    return (
        [device for device in here if device['address'] not in before],
        [device for device in here if device['address'] in before],
    )
