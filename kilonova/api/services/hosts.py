"""Services and hypervisors of all cells: list, enable, disable, force down, delete."""
from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kilonova.api.services.backend import Backend
from kilonova.db.queries import aggregates, cells, compute_nodes, migrations, operations, servers, services, zones
from kilonova.db.queries.servers import Filters
from kilonova.errors import Conflict, Invalid, KilonovaError, MarkerNotFound, NotFound, ServiceNotFound

LOG = logging.getLogger(__name__)

COMPUTE = 'nova-compute'
# Rows that WSGI applications leave so that their version is known; they have no heartbeat.
HIDDEN = frozenset(('nova-osapi_compute', 'nova-metadata'))


class ServiceUnique(Invalid):
    msg_fmt = 'Service id %(service_id)s refers to multiple services.'


class HostInUse(Conflict):
    msg_fmt = '%(reason)s'


class NodeNotFound(NotFound):
    msg_fmt = 'Compute host %(node)s could not be found.'


class InCell(NamedTuple):
    """A row and the cell that it is in."""

    row: dict[str, Any]
    cell: Any


# --- services --------------------------------------------------------------------------------------------------------
def list_services(backend: Backend, host: str | None = None, binary: str | None = None) -> list[InCell]:
    """Services of all cells, one statement each; ``zone`` is in the rows."""
    with backend.api_db.read() as conn:
        zone_of = _zone_of_hosts(zones.zones(conn))
    found = []
    for cell in backend.all_cells():
        with cell.read() as conn:
            for row in services.list_services(conn, down_time=backend.options.service_down_time, host=host,
                                              binary=binary):
                if row['binary'] not in HIDDEN:
                    row['zone'] = _zone(backend, row, zone_of)
                    found.append(InCell(row, cell))
    return found


def _zone_of_hosts(hosts_of: dict[str, set[str]]) -> dict[str, str]:
    return {host: zone for zone, hosts in hosts_of.items() for host in hosts}


def _zone(backend: Backend, row: dict[str, Any], zone_of: dict[str, str]) -> str:
    if row['binary'] != COMPUTE:
        return backend.options.internal_zone
    return zone_of.get(row['host'], backend.options.default_zone)


def find_service(backend: Backend, *, uuid: str | None = None, number: int | None = None, host: str | None = None,
                 binary: str | None = None) -> InCell:
    """One service. ServiceNotFound; ServiceUnique (400) when a number means one in several cells."""
    found = []
    for cell in backend.all_cells():
        with cell.read() as conn:
            row = services.get(conn, uuid=uuid, service_id=number, host=host, binary=binary,
                               down_time=backend.options.service_down_time)
        if row is not None:
            found.append(InCell(row, cell))
    if not found:
        name = uuid or number or f'{host}/{binary}'
        raise ServiceNotFound(service_id=name)
    if len(found) > 1:
        raise ServiceUnique(service_id=number)
    return found[0]


def change(backend: Backend, ctxt: Any, service: InCell, values: dict[str, Any]) -> dict[str, Any]:
    """Write ``disabled``, ``disabled_reason``, ``forced_down``; tell the host when it is enabled or disabled.

    The host sets the trait that keeps new servers away. One that can't be told now sets it when it next starts or
    refreshes what it knows of Placement, so the change stands nevertheless.
    """
    with service.cell.write() as conn:
        if not services.update(conn, service.row['id'], values):
            raise ServiceNotFound(service_id=service.row['uuid'])
    row = {**service.row, **values}
    if 'disabled' in values and row['binary'] == COMPUTE and backend.compute is not None:
        try:
            backend.compute.set_host_enabled(ctxt, server=row['host'], host=row['host'],
                                             enabled=not values['disabled'])
        except KilonovaError as error:
            LOG.warning('Compute service on host %s was %s, but could not be told: %s', row['host'],
                        'disabled' if values['disabled'] else 'enabled', error)
    return {**row, 'up': row['up'] and not row['forced_down']}


def with_zone(backend: Backend, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the zone of its host."""
    with backend.api_db.read() as conn:
        return {**row, 'zone': _zone(backend, row, _zone_of_hosts(zones.zones(conn)))}


def delete_service(backend: Backend, service: InCell) -> None:
    """Forget a service: its nodes, their devices, its mapping, its aggregates, its providers. HostInUse (409).

    What a compute still had to give back ends with it (operations.md rule 23).
    """
    row, cell = service.row, service.cell
    if row['binary'] == COMPUTE:
        _refuse_in_use(cell, row['host'])
    with cell.write() as conn:
        nodes = services.destroy(conn, row['id'])
        released = operations.end_releases(conn, row['host']) if row['binary'] == COMPUTE else 0
    if released:
        LOG.info('Compute service on host %s was deleted with %d pending releases', row['host'], released)
    if row['binary'] != COMPUTE:
        return
    with backend.api_db.write() as conn:
        aggregates.remove_host(conn, row['host'])
        cells.unmap_host(conn, row['host'])
    for node in nodes if backend.placement is not None else ():
        try:
            backend.placement.delete_tree(node['uuid'])
        except KilonovaError as error:
            LOG.error('Failed to delete compute node resource provider for compute node %s: %s', node['uuid'], error)


def _refuse_in_use(cell: Any, host: str) -> None:
    with cell.read() as conn:
        if servers.names(conn, Filters(equal={'host': [host]}), (), 1):
            raise HostInUse(reason=f'Unable to delete compute service that is hosting instances. Migrate or delete '
                                   f'the instances of {host} first.')
        if migrations.unended_on_host(conn, host):
            raise HostInUse(reason='Unable to delete compute service that has in-progress migrations. Complete the '
                                   f'migrations of {host} or delete the instances first.')


# --- hypervisors -----------------------------------------------------------------------------------------------------
def list_nodes(backend: Backend, *, pattern: str | None = None, limit: int = 1000, marker: str | None = None,
               marker_is_number: bool = False) -> list[InCell]:
    """Nodes of all cells by cell and id, behind ``marker``; each with ``service``. MarkerNotFound."""
    found: list[InCell] = []
    skip = marker is not None
    for cell in backend.compute_cells():
        if len(found) >= limit:
            break
        with cell.read() as conn:
            after = None
            if skip:
                last = _marked(conn, str(marker), marker_is_number)
                if last is None:
                    continue
                skip, after = False, last['id']
            found.extend(InCell(row, cell) for row in compute_nodes.list_nodes(
                conn, backend.options.service_down_time, pattern=pattern, after_id=after, limit=limit - len(found)))
    if skip:
        raise MarkerNotFound(marker=marker)
    # A node whose service is gone is no hypervisor any more.
    return [node for node in found if node.row['service'] is not None]


def _marked(conn: Any, marker: str, is_number: bool) -> dict[str, Any] | None:
    if not is_number:
        return compute_nodes.get(conn, uuid=marker)
    number = as_number(marker)
    return None if number is None else compute_nodes.get(conn, node_id=number)


def as_number(text: str) -> int | None:
    """The id of a row as paths and queries write it, or None for what can't be one."""
    return int(text) if re.fullmatch('[0-9]{1,9}', text) else None


def find_node(backend: Backend, identifier: str, is_number: bool) -> InCell:
    """One node with ``service``. NodeNotFound."""
    number = as_number(identifier) if is_number else None
    if is_number and number is None:
        raise NodeNotFound(node=identifier)
    for cell in backend.compute_cells():
        with cell.read() as conn:
            row = compute_nodes.show(conn, backend.options.service_down_time, node_id=number,
                                     uuid=None if is_number else identifier)
        if row is not None and row['service'] is not None:
            return InCell(row, cell)
    raise NodeNotFound(node=identifier)


def servers_of(backend: Backend, nodes: Iterable[InCell]) -> dict[str, list[dict[str, Any]]]:
    """host → its servers {id, uuid, display_name …}; one statement a cell."""
    by_cell: dict[int, tuple[Any, set[str]]] = {}
    for node in nodes:
        by_cell.setdefault(id(node.cell), (node.cell, set()))[1].add(node.row['host'])
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, hosts in by_cell.values():
        with cell.read() as conn:
            for row in servers.on_hosts(conn, sorted(hosts)):
                found.setdefault(row['host'], []).append(row)
    return found


def statistics(backend: Backend) -> dict[str, int]:
    """Sums over all enabled nodes."""
    total: dict[str, int] = {}
    for cell in backend.compute_cells():
        with cell.read() as conn:
            for name, value in compute_nodes.statistics(conn).items():
                total[name] = total.get(name, 0) + int(value)
    return total


# --- zones -----------------------------------------------------------------------------------------------------------
def list_zones(backend: Backend) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """zone → host → its services."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for service in list_services(backend):
        row = service.row
        found.setdefault(row['zone'], {}).setdefault(row['host'], []).append(row)
    return found
