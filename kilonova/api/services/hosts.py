"""Services and hypervisors of all cells: list, find, enable, disable and force down.

``host_removal`` deletes services. A compute host without a host mapping is not part of the cloud yet: its services are
listed, but it is not shown as a hypervisor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from oslo_log import log as logging

from kilonova import concurrency
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells, is_silence, refuse_if_any
from kilonova.context import RequestContext
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import aggregates, cells, compute_nodes, host_losses, migrations, servers, services
from kilonova.errors import (
    ComputeHostNotFound,
    Invalid,
    KilonovaError,
    MarkerNotFound,
    NotFound,
)
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)

COMPUTE = 'nova-compute'
# Services that are WSGI applications. Their rows in the table ``services`` have a version, but no heartbeat.
HIDDEN = frozenset(('nova-osapi_compute', 'nova-metadata'))
# The maximum number of hosts that one API request calls at the same time.
ASKED_AT_ONCE = 16


class ServiceUnique(Invalid):
    """Error 400: the integer id belongs to services of several cells."""

    msg_fmt = 'Service id %(service_id)s refers to multiple services.'


class NodeNotFound(NotFound):
    """Error 404: the hypervisor does not exist."""

    msg_fmt = "Hypervisor with ID '%(node)s' could not be found."


class HostNotMapped(NotFound):
    """Error 404: the host belongs to no cell."""

    msg_fmt = "Host '%(host)s' is not mapped to any cell"


class NoSuchService(NotFound):
    """Error 404: the service does not exist."""

    msg_fmt = 'Service %(service_id)s not found.'


class HostBinaryNotFound(NotFound):
    """Error 404: the host has no service of this binary."""

    msg_fmt = 'Could not find binary %(binary)s on host %(host)s.'


class HostIsDown(Invalid):
    """Error 400: the uptime of a host can't be read, because its compute service is down."""

    msg_fmt = 'Compute service of %(host)s is unavailable at this time.'


class EvacuatedServersLeft(Invalid):
    """Error 400: the host must clean up after evacuations before forced_down can be removed."""

    msg_fmt = (
        'Unable to set forced_down to false: %(count)s evacuations from host %(host)s are done, but its compute '
        'service has not cleaned up after them. Restart it first.'
    )


class NotSupported(KilonovaError):
    """Error 501: the host's driver, or the release of its compute service, does not support the request."""

    msg_fmt = 'The requested functionality is not supported.'
    code = 501


class InCell(NamedTuple):
    """A row of a cell database, together with this database (``cell``)."""

    row: dict[str, Any]
    cell: Any


# --- services --------------------------------------------------------------------------------------------------------
def list_services(
    backend: Backend, host: str | None = None, binary: str | None = None, silent: list[Any] | None = None
) -> list[InCell]:
    """Return the services of all cells, each row with its availability zone under the key ``zone``.

    ``host`` and ``binary`` are filters. Services without a heartbeat (``HIDDEN``) are left out. Runs one SQL statement
    for each cell. A caller that accepts an incomplete result passes an empty list as ``silent``: cells whose database
    does not answer are appended to it. If ``silent`` is None, such a cell raises Unanswered or a database error.
    """
    with backend.api_db.read() as conn:
        zone_of = _zone_of_hosts(aggregates.zones(conn))
    found = []

    def ask(cell: Database) -> list[dict[str, Any]]:
        with cell.read() as conn:
            return services.list_services(conn, down_time=backend.options.service_down_time, host=host, binary=binary)

    for cell, rows in ask_cells(backend.all_cells(), ask, silent):
        for row in rows:
            if row['binary'] not in HIDDEN:
                row['zone'] = _zone(backend, row, zone_of)
                found.append(InCell(row, cell))
    return found


def unknown_hosts(backend: Backend, silent: Iterable[Any], host: str | None, binary: str | None) -> list[str]:
    """Return the names of the compute hosts in cells whose databases do not answer, from the host mappings.

    ``silent`` is the list of these cells. From microversion 2.69 on, the list of services shows the hosts with the
    status UNKNOWN. ``host`` and ``binary`` are the filters of this list, or None. Return an empty list if ``binary`` is
    another service than nova-compute.
    """
    cell_ids = {cell.cell.id for cell in silent if cell.cell is not None}
    if not cell_ids or binary not in (None, COMPUTE):
        return []
    with backend.api_db.read() as conn:
        rows = cells.get_hosts(conn, hosts=None if host is None else [host])
    return [row['host'] for row in rows if row['cell_id'] in cell_ids]


def _zone_of_hosts(hosts_of: dict[str, set[str]]) -> dict[str, str]:
    return {host: zone for zone, hosts in hosts_of.items() for host in hosts}


def zone_of(backend: Backend, host: str) -> str:
    """Return the availability zone of a compute host."""
    with backend.api_db.read() as conn:
        return _zone_of_hosts(aggregates.zones(conn)).get(host, backend.options.default_zone)


def _zone(backend: Backend, row: dict[str, Any], zone_of: dict[str, str]) -> str:
    if row['binary'] != COMPUTE:
        return backend.options.internal_zone
    return zone_of.get(row['host'], backend.options.default_zone)


def find_service(
    backend: Backend,
    *,
    uuid: str | None = None,
    number: int | None = None,
    host: str | None = None,
    binary: str | None = None,
    missing: Exception | None = None,
) -> InCell:
    """Return the one service that has this uuid, number, or host and binary.

    Raises:
        NoSuchService: There is no such service. If ``missing`` is given, ``missing`` is raised instead.
        ServiceUnique: Services of several cells have this number (error 400).
        Unanswered: The service may be in a cell whose database does not answer.
    """

    def ask(cell: Database) -> dict[str, Any] | None:
        with cell.read() as conn:
            return services.get(
                conn,
                uuid=uuid,
                service_id=number,
                host=host,
                binary=binary,
                down_time=backend.options.service_down_time,
            )

    silent: list[Any] = []
    found = [InCell(row, cell) for cell, row in ask_cells(backend.all_cells(), ask, silent) if row is not None]
    if number is not None or not found:
        # Several cells may have a service with this number, so the search is incomplete if a cell does not answer.
        refuse_if_any(silent)
    if not found:
        raise missing or NoSuchService(service_id=uuid or number)
    if len(found) > 1:
        raise ServiceUnique(service_id=number)
    return found[0]


def find_binary(backend: Backend, host: str, binary: str) -> InCell:
    """Return the service with this binary on a host. Old microversions identify a service by its host and binary.

    Raises HostNotMapped (404) if the host is in no cell, and HostBinaryNotFound (404) if it has no such service.
    """
    try:
        return find_service(backend, host=host, binary=binary, missing=HostBinaryNotFound(binary=binary, host=host))
    except HostBinaryNotFound:
        with backend.api_db.read() as conn:
            if cells.get_host(conn, host) is None:
                raise HostNotMapped(host=host) from None
        raise


def change(backend: Backend, ctxt: RequestContext, service: InCell, values: dict[str, Any]) -> dict[str, Any]:
    """Write the columns ``disabled``, ``disabled_reason`` or ``forced_down`` of a service, and return the new row.

    ``values`` is a dict from column to new value. If a compute service is enabled or disabled, its host gets an RPC
    call, and sets or removes the trait COMPUTE_STATUS_DISABLED in Placement. A host that does not get the call changes
    the trait when it reads its service row again. If a compute service is forced down, conductors continue the
    operations that wait for an answer of the host (see ``hurry``).

    Raises EvacuatedServersLeft if forced_down is set to false while guests of evacuated servers may run on the host,
    and NoSuchService if the service was deleted.
    """
    with service.cell.write() as conn:
        _refuse_to_come_back(conn, service.row, values)
        services.update(conn, service.row['id'], values)
        row = services.get(conn, service_id=service.row['id'], down_time=backend.options.service_down_time)
    if row is None:
        raise NoSuchService(service_id=service.row['uuid'])
    backend.notify.emit(ctxt, 'service.update', service=row)
    if row['binary'] == COMPUTE and ('disabled' in values or values.get('forced_down') is False):
        _tell(backend, ctxt, row)
    if row['binary'] == COMPUTE and values.get('forced_down'):
        hurry(backend, ctxt, service.cell, row['host'])
    return row


def hurry(backend: Backend, ctxt: RequestContext, cell: Database, host: str) -> None:
    """Wake conductors for the operations that wait for an answer of ``host``, which is off or was removed.

    ``host`` is a host whose compute service was forced down or deleted, so it will not answer. A conductor then
    continues each operation without the host. Without this call, that would happen only at the operation's next retry.
    If the database or the message queue does not answer, only log a warning.
    """
    try:
        for uuid in host_losses.hurry(cell, host):
            backend.conductor.run_operation(ctxt, operation=uuid)
    except Exception as error:
        if not isinstance(error, KilonovaError) and not is_silence(error):
            raise
        LOG.warning(
            'Could not wake the operations that wait for host %s; they continue at their next retry: %s', host, error
        )


def _refuse_to_come_back(conn: Connection, row: dict[str, Any], values: dict[str, Any]) -> None:
    """Raise EvacuatedServersLeft if forced_down is set to false while guests of evacuated servers may run on the host.

    A server must not have two running guests. When the host's compute service starts, it stops the guests of servers
    that were evacuated to other hosts, and marks their migrations as completed. After that, forced_down can be cleared.
    """
    if row['binary'] != COMPUTE or not row['forced_down'] or values.get('forced_down', True):
        return
    left = migrations.list_migrations(
        conn, filters={'source_compute': row['host'], 'migration_type': 'evacuation', 'status': 'done'}
    )
    if left:
        raise EvacuatedServersLeft(count=len(left), host=row['host'])


def _tell(backend: Backend, ctxt: RequestContext, row: dict[str, Any]) -> None:
    change = 'disabled' if row['disabled'] else 'enabled'
    if not row['up']:
        LOG.info(
            'Compute service on host %s was %s while it is down; it will read the change when it is up again',
            row['host'],
            change,
        )
        return
    try:
        if backend.compute is not None:
            backend.compute.set_host_enabled(ctxt, server=row['host'], enabled=not row['disabled'])
    except KilonovaError as error:
        LOG.warning(
            'Compute service on host %s was %s, but could not be notified; it will read the change later: %s',
            row['host'],
            change,
            error,
        )


def with_zone(backend: Backend, row: dict[str, Any]) -> dict[str, Any]:
    """Return the service's row with its availability zone under the key ``zone``."""
    with backend.api_db.read() as conn:
        return {**row, 'zone': _zone(backend, row, _zone_of_hosts(aggregates.zones(conn)))}


# --- hypervisors -----------------------------------------------------------------------------------------------------
def list_nodes(
    backend: Backend,
    *,
    pattern: str | None = None,
    limit: int | None = None,
    marker: str | None = None,
    marker_is_number: bool = False,
) -> list[InCell]:
    """Return one page of compute nodes, ordered by cell, and by id within a cell. Cells that don't answer are left out.

    ``marker`` names the last node of the page before: by its uuid or, if ``marker_is_number`` is true, by its integer
    id (before microversion 2.53). ``pattern`` filters the nodes by their hostname. ``limit`` is the size of the page.
    Each row has its compute service under the key ``service``. Nodes without a host mapping or service are left out.

    Raises MarkerNotFound if no cell has the node ``marker``, and Unanswered (503) if it may be in a cell that does not
    answer.
    """
    with backend.api_db.read() as conn:
        hosts_of = cells.hosts_by_cell(conn)
    found: list[InCell] = []
    skip = marker is not None

    def ask(cell: Database) -> None:
        nonlocal skip
        left = None if limit is None else limit - len(found)
        if left == 0:
            return
        with cell.read() as conn:
            after = None
            if skip:
                last = _marked(conn, str(marker), marker_is_number)
                if last is None:
                    return
                skip, after = False, last['id']
            found.extend(
                InCell(row, cell)
                for row in compute_nodes.list_nodes(
                    conn,
                    backend.options.service_down_time,
                    pattern=pattern,
                    after_id=after,
                    limit=left,
                    served=True,
                    hosts=hosts_of.get(cell.cell.id, ()),
                )
            )

    silent: list[Any] = []
    ask_cells(backend.compute_cells(), ask, silent)
    if skip:
        refuse_if_any(silent)
        raise MarkerNotFound(marker=marker)
    return found


def _marked(conn: Connection, marker: str, is_number: bool) -> dict[str, Any] | None:
    if not is_number:
        return compute_nodes.get(conn, uuid=marker)
    number = as_number(marker)
    return None if number is None else compute_nodes.get(conn, node_id=number)


def as_number(text: str) -> int | None:
    """Convert an integer id in the path or query of a request to an int.

    Return None if the text does not consist of one to nine digits, because no row can have such an id.
    """
    return int(text) if re.fullmatch('[0-9]{1,9}', text) else None


def find_node(backend: Backend, identifier: str, is_number: bool) -> InCell:
    """Return one compute node with its compute service under the key ``service``.

    ``identifier`` is an id if ``is_number``, otherwise a uuid. Raises NodeNotFound if the node does not exist, and
    Unanswered if it may be in a cell that does not answer.
    """
    number = as_number(identifier) if is_number else None
    if is_number and number is None:
        raise NodeNotFound(node=identifier)

    def ask(cell: Database) -> dict[str, Any] | None:
        with cell.read() as conn:
            return compute_nodes.show(
                conn, backend.options.service_down_time, node_id=number, uuid=None if is_number else identifier
            )

    silent: list[Any] = []
    for cell, row in ask_cells(backend.compute_cells(), ask, silent):
        if row is not None and row['service'] is not None and _is_mapped(backend, row['host'], cell):
            return InCell(row, cell)
    refuse_if_any(silent)
    raise NodeNotFound(node=identifier)


def _is_mapped(backend: Backend, host: str, cell: Database) -> bool:
    with backend.api_db.read() as conn:
        mapping = cells.get_host(conn, host)
    return mapping is not None and mapping['cell_id'] == cell.cell.id


def servers_of(backend: Backend, nodes: Iterable[InCell]) -> dict[str, list[dict[str, Any]]]:
    """Return a dict from host to the servers on it, each a dict with id, uuid, display_name and other columns.

    Hosts without servers are not in the dict. Runs one SQL statement for each cell.
    """
    by_cell: dict[int, tuple[Any, set[str]]] = {}
    for node in nodes:
        by_cell.setdefault(id(node.cell), (node.cell, set()))[1].add(node.row['host'])
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, hosts in by_cell.values():
        with cell.read() as conn:
            for row in servers.on_hosts(conn, sorted(hosts)):
                found.setdefault(row['host'], []).append(row)
    return found


def uptime(backend: Backend, ctxt: RequestContext, node: InCell) -> str:
    """Return the output of the command ``uptime`` on a node's host. Sends one RPC call.

    Raises HostIsDown (400) if the compute service is down, and NotSupported (501) if the host's driver or release does
    not support the call.
    """
    row = node.row
    if not row['service']['up']:
        raise HostIsDown(host=row['host'])
    try:
        told = None if backend.compute is None else backend.compute.get_host_uptime(ctxt, server=row['host'])
    except VersionCapError:
        # The release of the compute service is too old: it does not have this RPC method. The request gets error 501.
        told = None
    if told is None:
        raise NotSupported
    found: str = told
    return found


def uptimes(backend: Backend, ctxt: RequestContext, nodes: Iterable[InCell]) -> dict[str, str]:
    """Return a dict from host to the output of the command ``uptime`` on that host.

    Hosts that are down or return no output are left out. At most 16 hosts are called at the same time.
    """
    asked = {node.row['host']: node for node in nodes if node.row['service']['up']}

    def ask(node: InCell) -> str | None:
        try:
            return uptime(backend, ctxt, node)
        except KilonovaError as error:
            LOG.debug('Could not get the uptime of host %s: %s', node.row['host'], error)
            return None

    if not asked:
        return {}
    with concurrency.pool(min(len(asked), ASKED_AT_ONCE), 'uptime') as pool:
        told = dict(zip(asked, pool.map(ask, asked.values()), strict=True))
    return {host: text for host, text in told.items() if text is not None}


def resources(backend: Backend, host: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return two lists: the rows of a host's compute nodes, and the resources that each project uses on the host.

    A row of the second list has the sums over the flavors of one project's servers. Raises HostNotMapped if the host is
    in no cell, and ComputeHostNotFound if it has no node.
    """
    with backend.api_db.read() as conn:
        mapping = cells.get_host(conn, host)
    if mapping is None:
        raise HostNotMapped(host=host)
    with backend.cells.by_id(mapping['cell_id']).read() as conn:
        nodes = compute_nodes.by_host(conn, host)
        if not nodes:
            raise ComputeHostNotFound(host=host)
        return nodes, compute_nodes.promised(conn, host)


def statistics(backend: Backend) -> dict[str, int]:
    """Return a dict from resource to its sum over all enabled compute nodes. Cells that do not answer are left out."""

    def ask(cell: Database) -> dict[str, Any]:
        with cell.read() as conn:
            return compute_nodes.statistics(conn)

    total: dict[str, int] = {}
    for _, found in ask_cells(backend.compute_cells(), ask, []):
        for name, value in found.items():
            total[name] = total.get(name, 0) + int(value)
    return total


# --- availability zones ----------------------------------------------------------------------------------------------
def list_zones(backend: Backend) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return a dict from availability zone to a dict from host to the list of its service rows.

    Services of cells that do not answer are left out.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for service in list_services(backend, silent=[]):
        row = service.row
        found.setdefault(row['zone'], {}).setdefault(row['host'], []).append(row)
    return found
