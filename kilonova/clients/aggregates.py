"""Copy host aggregates from the API database to Placement.

    bring_up_to_date(placement, api_db, cells, aggregate_uuid, 'gpu1')     # 'gpu1' is a host

An aggregate in Placement has the same uuid as the host aggregate. Its members are the resource providers of the compute
nodes of the aggregate's hosts. Each call reads from the API database whether the host is in the aggregate now, and
corrects Placement. Therefore a call may be repeated, and several calls may run at the same time.

When the API changes an aggregate, it also stores an operation row of the kind 'mirror'. If the API process does not
complete the update of Placement, a conductor finds this row and makes the update.
"""

from __future__ import annotations

from kilonova import errors
from kilonova.clients.placement import PlacementClient
from kilonova.db.engine import Database
from kilonova.db.queries import aggregates, compute_nodes
from kilonova.db.queries import cells as cell_queries
from kilonova.db.rows import Row

KIND = 'mirror'
# Maximum number of attempts to write a host's membership in an aggregate to Placement.
# An attempt is repeated if the host's membership has changed in the database during the attempt.
LOOKS = 4


def bring_up_to_date(
    placement: PlacementClient, api_db: Database, cells: cell_queries.CellDatabases, aggregate_uuid: str, host: str
) -> None:
    """Make the compute nodes of a host members of the aggregate in Placement, or remove them from it.

    If the API database says that the host is in the aggregate, the nodes become members. Otherwise they are removed.

    Raises:
        Unanswered: Placement or a database does not answer, or the aggregate was changed during each attempt.
        PlacementConflict: Placement refused a change.
        ProviderNotFound: A node has never reported to Placement.
    """
    for _ in range(LOOKS):
        with api_db.read() as conn:
            mapping = cell_queries.get_host(conn, host)
            wanted = aggregates.has_host(conn, aggregate_uuid, host)
        for node in _nodes(cells, host, mapping['cell_id'] if mapping is not None else None):
            placement.set_member(node['uuid'], aggregate_uuid, wanted)
        with api_db.read() as conn:
            if aggregates.has_host(conn, aggregate_uuid, host) == wanted:
                return
    raise errors.Unanswered(
        f'Aggregate {aggregate_uuid} was changed during each of {LOOKS} attempts to write it to Placement'
    )


def _nodes(cells: cell_queries.CellDatabases, host: str, cell_id: int | None) -> list[Row]:
    """Return the compute nodes of a host.

    ``cell_id`` is the cell of the host. If it is None, search all cells, because the host's mapping was deleted
    (``cell_v2 delete_host``).
    """
    found = []
    for cell in [cells.by_id(cell_id)] if cell_id is not None else cells.databases():
        with cell.read() as conn:
            found += compute_nodes.by_host(conn, host)
    return found


def bring_all_up_to_date(placement: PlacementClient, api_db: Database, cells: cell_queries.CellDatabases) -> list[str]:
    """Correct the members of all aggregates in Placement, so that they are as in the API database.

    Return a list with a text 'host: aggregate name' for each host that was added or removed. Sends one request for each
    aggregate, and further requests for each correction.
    """
    with api_db.read() as conn:
        rows = aggregates.snapshot(conn)
    nodes: dict[str, str] = {}
    for cell in cells.databases():
        with cell.read() as conn:
            nodes |= {row['uuid']: row['host'] for row in compute_nodes.hosts_of_all(conn)}
    mended = []
    for row in rows:
        there = {provider['uuid'] for provider in placement.list_providers(member_of=row['uuid'])} & nodes.keys()
        wanted = {uuid for uuid, host in nodes.items() if host in row['hosts']}
        for host in sorted({nodes[uuid] for uuid in there ^ wanted}):
            bring_up_to_date(placement, api_db, cells, row['uuid'], host)
            mended.append(f'{host}: {row["name"]}')
    return mended
