"""Delete the records of a compute host whose service was deleted: mapping, aggregate memberships, resource providers.

    forget(api_db, cell, 'gpu1')                                    # one transaction of the API database
    delete_providers(placement, cells, [node_uuid], check)          # some requests to Placement

The API process calls ``forget`` and ``delete_providers`` after it has deleted the service. The transaction that deletes
the service also inserts an operation row. If one of the calls fails, a conductor finds this row and repeats the calls.
Repeated calls are safe, even after a machine with the same host name has registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kilonova.clients.placement import PlacementClient
from kilonova.db.engine import Database
from kilonova.db.queries import aggregates, cells, compute_nodes, services
from kilonova.errors import PlacementConflict, Unanswered

# Maximum number of consumers that one error text names.
NAMED = 5


class ProvidersHeld(Unanswered):
    """Placement does not delete a host's providers, because consumers still have allocations of them."""

    msg_fmt = (
        'Placement does not delete the resource provider %(provider)s, because it has allocations: '
        "%(consumers)s. They belong to no server of the host. Delete them with 'openstack resource provider "
        "allocation delete CONSUMER'"
    )


def forget(api_db: Database, cell: Database, host: str) -> None:
    """Delete a host's mapping to this cell, and remove the host from all aggregates.

    Does nothing if the host has registered in this cell again, or is mapped to another cell.
    """
    with cell.read() as conn:
        if services.get(conn, host=host, binary=services.COMPUTE) is not None or compute_nodes.by_host(conn, host):
            return
    with api_db.write() as conn:
        aggregates.lock_hosts(conn, [host])
        mapping = cells.get_host(conn, host)
        if mapping is not None and mapping['cell_id'] != cell.cell.id:
            return
        aggregates.remove_host(conn, host)
        cells.unmap_host(conn, host)


def delete_providers(
    placement: PlacementClient, all_cells: cells.CellDatabases, nodes: Sequence[str], check: Callable[[], None]
) -> None:
    """Delete the provider trees of compute nodes. A node that has registered again in any cell keeps its tree.

    ``nodes`` are the uuids of the nodes. ``check()`` is called before each tree is deleted, and raises an error if the
    caller may not write any more. Raises ProvidersHeld if a provider has allocations, and Unanswered if Placement or a
    database does not answer.
    """
    living: set[str] = set()
    for cell in all_cells.databases():
        with cell.read() as conn:
            living |= compute_nodes.living(conn, nodes)
    for uuid in nodes:
        if uuid in living:
            continue
        check()
        try:
            placement.delete_tree(uuid)
        except PlacementConflict as error:
            raise _held(placement, uuid) or Unanswered(
                f'Placement cannot delete the provider {uuid} now: {error}'
            ) from error


def _held(placement: PlacementClient, root: str) -> ProvidersHeld | None:
    for provider in placement.list_providers(in_tree=root):
        consumers = placement.provider_allocations(provider['uuid'])
        if consumers:
            return ProvidersHeld(provider=f'{provider["uuid"]} ({provider["name"]})', consumers=shown(consumers))
    return None


def shown(consumers: dict[str, dict[str, int]]) -> str:
    """Return a text that names at most NAMED consumers of a provider, with the amounts of resources that each holds."""
    named = [f'{consumer} ({amounts(held)})' for consumer, held in sorted(consumers.items())[:NAMED]]
    more = len(consumers) - len(named)
    return ', '.join(named) + (f' and {more} more' if more else '')


def amounts(held: dict[str, Any]) -> str:
    """Return a text with amounts by resource class, such as 'MEMORY_MB 512, VCPU 1'."""
    return ', '.join(f'{name} {amount}' for name, amount in sorted(held.items()))
