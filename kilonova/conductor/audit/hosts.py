"""``HostAudit``: the part of the audit for services, nodes, host mappings, aggregates and Placement's providers.

``compare.Audit`` calls the methods in this order:

    hosts = HostAudit(placement, wrong)
    hosts.learn(database.cell, rows)           # for each cell, before anything is compared
    hosts.compare(mappings, aggregates, operations)

The databases and Placement are written one after the other. So while an operation of kind ``host_removal`` or
``mirror`` (update of an aggregate) runs, they may differ for the operation's host. This host is not reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from kilonova.clients import aggregates as aggregate_client
from kilonova.clients.host_removal import amounts
from kilonova.clients.placement import PlacementClient, PlacementInvalid
from kilonova.clients.providers import OWNER
from kilonova.db.arguments import kinds as arguments_of
from kilonova.db.arguments.releases import HostRemovalArguments, SyncAggregateArguments
from kilonova.db.queries import host_removals
from kilonova.db.queries.cells import CellRecord
from kilonova.db.rows import Row

# Seconds within which a new compute service must have created its node. Otherwise the audit reports the service.
STARTED = 600.0


class HostAudit:
    """Compares the records of hosts, and calls ``wrong`` with a line of text for each difference."""

    def __init__(self, placement: PlacementClient, wrong: Callable[[str], None]) -> None:
        self._placement, self._wrong = placement, wrong
        self._served: set[tuple[int, str]] = set()
        self._nodes: dict[str, Row] = {}
        self._removed: dict[str, Row] = {}
        self._leaving: set[str] = set()

    def learn(self, cell: CellRecord, rows: Mapping[str, Sequence[Row]]) -> None:
        """Add the rows of a cell, and compare its compute services with its nodes.

        ``rows`` has the lists of rows ``services``, ``nodes`` and ``operations``.
        """
        hosts = {service['host'] for service in rows['services']}
        with_node = {node['host'] for node in rows['nodes']}
        for operation in rows['operations']:
            if operation['kind'] == host_removals.KIND:
                self._leaving.add(operation['host'])
                args = arguments_of.of_row(operation)
                if isinstance(args, HostRemovalArguments):
                    self._removed.update((uuid, operation) for uuid in args.nodes)
        self._served.update((cell.id, host) for host in hosts)
        self._nodes.update((node['uuid'], node) for node in rows['nodes'])
        for node in rows['nodes']:
            if node['host'] not in hosts:
                self._wrong(
                    f'database: node {node["node"]} of host {node["host"]} has no compute service: start '
                    'nova-compute there; if the host is to be removed, delete the service afterwards'
                )
        for service in rows['services']:
            if service['host'] not in with_node and service['age'] > STARTED:
                self._wrong(
                    f'database: the compute service of {service["host"]} has no node: its log says why it does '
                    f"not start; if the host is gone, run 'openstack compute service delete {service['uuid']}'"
                )

    def compare(self, mappings: Sequence[Row], aggregates: Sequence[Row], operations: Sequence[Row]) -> None:
        """Compare the rows of all cells, which ``learn`` has added, with the API database and with Placement.

        The arguments are the host mappings, aggregates and operation rows of the API database. Sends one request to
        Placement for the list of Kilonova's providers, and at least one for each aggregate and for each node of a host
        that is being removed.
        """
        for row in mappings:
            if (row['cell_id'], row['host']) not in self._served and row['host'] not in self._leaving:
                cell = row['cell_uuid']
                self._wrong(
                    f'database: host {row["host"]} is mapped to cell {row["cell_name"] or cell}, which has no '
                    "compute service for this host: start nova-compute there, or run 'kilonova-manage cell_v2 "
                    f"delete_host --cell_uuid {cell} --host {row['host']}'"
                )
        hosts = {host for _, host in self._served}
        for row in aggregates:
            for host in row['hosts']:
                if host not in hosts and host not in self._leaving:
                    self._wrong(
                        f'database: host {host} of aggregate {row["name"]} has no compute service: '
                        f"run 'openstack aggregate remove host {row['name']} {host}'"
                    )
        self._compare_members(aggregates, operations)
        self._compare_providers()
        self._compare_removed()

    def _compare_members(self, aggregates: Sequence[Row], operations: Sequence[Row]) -> None:
        """Compare the members of each aggregate in Placement with the aggregate's hosts in the database.

        A host is left out if ``operations`` has an unfinished operation of kind mirror for this host and aggregate: it
        will correct Placement.
        """
        changing = {
            (args.aggregate, args.host)
            for row in operations
            if row['kind'] == aggregate_client.KIND
            and isinstance(args := arguments_of.of_row(row), SyncAggregateArguments)
        }
        for row in aggregates:
            found = {provider['uuid'] for provider in self._placement.list_providers(member_of=row['uuid'])}
            for uuid, node in self._nodes.items():
                wanted = node['host'] in row['hosts']
                if wanted != (uuid in found) and (row['uuid'], node['host']) not in changing:
                    is_in, host_is_in = ('is not', 'is') if wanted else ('is', 'is not')
                    self._wrong(
                        f'Placement: provider {uuid} ({node["node"]}) {is_in} in aggregate {row["name"]}, its '
                        f"host {node['host']} {host_is_in}: run 'kilonova-manage placement "
                        "sync_aggregates'"
                    )

    def _compare_providers(self) -> None:
        """Report providers of compute nodes that no longer exist."""
        try:
            ours = self._placement.list_providers(required=OWNER)
        except PlacementInvalid:
            # Placement does not know the trait OWNER, so no provider has it: there is nothing to report.
            return
        for provider in ours:
            uuid, name = provider['uuid'], provider['name']
            if provider['parent_provider_uuid'] is None and uuid not in self._nodes and uuid not in self._removed:
                held = ''.join(
                    f', and consumer {consumer} holds {given} of it' for consumer, given in self._held(uuid).items()
                )
                self._wrong(
                    f'Placement: provider {uuid} ({name}) belongs to no compute node{held}: stop nova-compute '
                    "there if it runs; then run 'openstack resource provider delete' for its children and for "
                    'the provider itself'
                )

    def _compare_removed(self) -> None:
        """Report allocations of consumers on the resource providers of removed hosts.

        Such an allocation prevents an operation of kind host_removal from deleting the provider.
        """
        for uuid, operation in self._removed.items():
            for provider in self._placement.list_providers(in_tree=uuid):
                for consumer, held in self._placement.provider_allocations(provider['uuid']).items():
                    self._wrong(
                        f'Placement: provider {provider["uuid"]} ({provider["name"]}) of host '
                        f'{operation["host"]}, whose service was deleted, is held by consumer {consumer} '
                        f"({amounts(held)}): if nothing needs the allocation, run 'openstack resource provider "
                        f"allocation delete {consumer}'; then operation {operation['uuid']} completes the "
                        'removal'
                    )

    def _held(self, root: str) -> dict[str, str]:
        """Return the allocations of the provider tree whose root has the uuid ``root``, for the report.

        The result is a dict from the consumer's uuid to a text with the amounts, such as 'VCPU 2, MEMORY_MB 512'.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for provider in self._placement.list_providers(in_tree=root):
            for consumer, held in self._placement.provider_allocations(provider['uuid']).items():
                found[consumer].append(amounts(held))
        return {consumer: ', '.join(given) for consumer, given in found.items()}
