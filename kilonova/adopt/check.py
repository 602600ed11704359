"""Count the rows of a running Nova that Kilonova would take over, and list the obstacles to the adoption.

    with cloud.opened(paths, options.new) as nova:
        report = check.run(nova, most=20)           # keeps at most 20 examples of each kind of obstacle
    report.counts['cell1']['servers active']        # the number of servers in cell1 whose vm_state is active
    report.obstacles.left(accepted=())              # all obstacles: the operator accepts none of them

Nova's databases are only read, and Nova may keep running. The check may miss what Nova changes during the check.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kilonova import errors
from kilonova.adopt import objects
from kilonova.adopt.cloud import NovaCell, NovaCloud
from kilonova.adopt.obstacles import Obstacles
from kilonova.api.services import unsupported
from kilonova.db import envelopes
from kilonova.db.engine import Connection
from kilonova.db.nova import questions
from kilonova.db.nova import servers as nova_servers
from kilonova.db.nova.servers import NovaServer
from kilonova.db.nova.source import NovaDatabase
from kilonova.objects import RequestSpec
from kilonova.states import VmState

# Hypervisors of which Kilonova has a driver, as computes of Nova name them.
HYPERVISORS = frozenset(('QEMU', 'KVM', 'fake'))
# States in which a server has a guest on a host.
ON_A_HOST = frozenset(
    (VmState.ACTIVE, VmState.PAUSED, VmState.SUSPENDED, VmState.STOPPED, VmState.RESCUED, VmState.RESIZED)
)
# Traits that nova-compute sets on its resource providers and kilonova-compute never sets.
# After the adoption, a flavor that requires one of these traits finds no host.
LOST_TRAITS = frozenset(
    (
        'COMPUTE_DEVICE_TAGGING',
        'COMPUTE_EPHEMERAL_ENCRYPTION',
        'COMPUTE_EPHEMERAL_ENCRYPTION_LUKS',
        'COMPUTE_EPHEMERAL_ENCRYPTION_PLAIN',
        'COMPUTE_NET_ATTACH_INTERFACE',
        'COMPUTE_NET_ATTACH_INTERFACE_WITH_TAG',
        'COMPUTE_RESCUE_BFV',
        'COMPUTE_SECURITY_STATELESS_FIRMWARE',
        'COMPUTE_SECURITY_TPM_1_2',
        'COMPUTE_SECURITY_TPM_2_0',
        'COMPUTE_SECURITY_TPM_CRB',
        'COMPUTE_SECURITY_TPM_TIS',
        'COMPUTE_STORAGE_VIRTIO_FS',
        'COMPUTE_TRUSTED_CERTS',
    )
)
# {table whose rows the check counts: name of these rows in the output for the operator}
API_TABLES: Mapping[str, str] = {
    'flavors': 'flavors',
    'key_pairs': 'key pairs',
    'instance_groups': 'server groups',
    'aggregates': 'aggregates',
    'quotas': 'quotas of projects',
    'project_user_quotas': 'quotas of users',
    'request_specs': 'request specs',
    'host_mappings': 'hosts',
    'build_requests': 'servers being created',
}
CELL_TABLES: Mapping[str, str] = {
    'compute_nodes': 'nodes',
    'pci_devices': 'devices',
    'block_device_mapping': 'disks and volumes',
    'migrations': 'migrations',
    'instance_actions': 'actions',
    'instance_faults': 'faults',
    'tags': 'tags',
    'task_log': 'usage audits',
    'volume_usage_cache': 'usages of volumes',
}


@dataclass
class Report:
    """The result of a check of a running Nova.

    Attributes:
        obstacles: The obstacles to adopting this Nova.
        counts: The numbers of rows in Nova's databases: {'api': {'flavors': 9, …}, 'cell1': {'servers active': 5, …}}.
        releases: {database: the releases of Nova that have its schema}.
    """

    obstacles: Obstacles
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)


def run(nova: NovaCloud, most: int) -> Report:
    """Count the rows in the databases of a running Nova, and find the obstacles to adopting it.

    ``most`` is the number of examples that the report keeps for each kind of obstacle in each database. Raises
    NovaUnreadable if a database does not answer.
    """
    report = Report(Obstacles(most))
    databases = [nova.api, *(cell.database for cell in nova.cells)]
    report.releases = {one.name: f'Nova {one.release} (schema {one.revision})' for one in databases}
    with nova.api.read() as api:
        _ApiCheck(nova, api, report).run()
        hosts = questions.mapped_hosts(nova.api, api)
        seen: dict[str, str] = {}
        versions: Counter[int] = Counter()
        for cell in nova.cells:
            with cell.database.read() as connection:
                one = _CellCheck(nova, cell, api, connection, report)
                one.run(hosts, seen)
                versions.update(one.versions)
    if len(versions) > 1:
        for version, number in sorted(versions.items()):
            report.obstacles.add('mixed-services', 'api', f'version {version}: {number} computes')
    return report


class _ApiCheck:
    """A check of Nova's API database for obstacles to the adoption."""

    def __init__(self, nova: NovaCloud, connection: Connection, report: Report) -> None:
        self._nova, self._connection, self._report = nova, connection, report

    def run(self) -> None:
        """Count the rows of the API database, and add the obstacles that are found in it to the report."""
        api, connection, add = self._nova.api, self._connection, self._add
        self._report.counts['api'] = {words: api.count(connection, table) for table, words in API_TABLES.items()}
        revisions = {cell.database.revision for cell in self._nova.cells}
        if len(revisions) > 1:
            for cell in self._nova.cells:
                add('mixed-schemas', f'cell {cell.name}: {cell.database.revision} (Nova {cell.database.release})')
        elif not _fits(api, self._nova.cells[0].database):
            add('mixed-schemas', f'API database: {api.revision}, cells: {next(iter(revisions))}')
        for what in questions.of_unknown_cells(api, connection):
            add('unknown-cell', what)
        for uuid in questions.unplaced(api, connection):
            add('build-requests', f'server {uuid}')
        for name, specs in questions.flavors(api, connection).items():
            self._check_flavor(name, specs)

    def _check_flavor(self, name: str, specs: Mapping[str, str]) -> None:
        for reason in _unserved(specs, {}):
            self._add('flavor-feature', f'flavor {name}: {reason}')
        for key, value in specs.items():
            if key.startswith('trait') and value == 'required' and key.partition(':')[2] in LOST_TRAITS:
                self._add('lost-traits', f'flavor {name}: {key}')

    def _add(self, kind: str, what: str) -> None:
        self._report.obstacles.add(kind, 'api', what)


class _CellCheck:
    """A check of the database of one cell of Nova for obstacles to the adoption.

    ``versions`` is {service version of nova-compute: number of compute services of the cell that have it}.
    """

    def __init__(
        self, nova: NovaCloud, cell: NovaCell, api: Connection, connection: Connection, report: Report
    ) -> None:
        self._nova, self._cell, self._database = nova, cell, cell.database
        self._api, self._connection, self._report = api, connection, report
        self.versions: Counter[int] = Counter()

    def run(self, mapped: Mapping[str, int], seen: dict[str, str]) -> None:
        """Count the rows of the cell's database, and add the obstacles that are found in it to the report.

        ``mapped`` is {host: id of its cell} from Nova's host mappings. ``seen`` is {host: name of its cell} for the
        hosts of the cells that were checked before. The hosts of this cell are added to ``seen``.
        """
        database, connection = self._database, self._connection
        states = questions.servers_by_state(database, connection)
        self._report.counts[self._cell.name] = {
            **{f'servers {state}': number for state, number in sorted(states.items())},
            **{words: questions.live(database, connection, table) for table, words in CELL_TABLES.items()},
        }
        hosts = self._check_hosts(mapped, seen)
        for move in questions.moves_under_way(database, connection):
            self._check_move(move)
        for device in questions.stale_devices(database, connection):
            self._add(
                'stale-devices',
                f'device {device["address"]} of node {device["compute_node_id"]}: {device["status"]} to server '
                f'{device["instance_uuid"]}',
            )
        for server in nova_servers.servers(database, connection, self._nova.api, self._api):
            self._check_server(server, hosts)

    def _check_hosts(self, mapped: Mapping[str, int], seen: dict[str, str]) -> set[str]:
        """Add the obstacles of the cell's hosts and compute nodes to the report, and return the names of the hosts.

        For ``mapped`` and ``seen`` see ``run``. They show hosts without a mapping to this cell and hosts in two cells.
        """
        services = questions.computes(self._database, self._connection)
        self.versions.update(service['version'] for service in services)
        hosts = {service['host'] for service in services}
        for host in sorted(hosts):
            if host in seen:
                self._add('duplicate-host', f'host {host} is in cell {seen[host]}, too')
            if mapped.get(host) != self._cell.id:
                self._add('unmapped-host', f'host {host}')
            seen.setdefault(host, self._cell.name)
        by_host: dict[str, list[Mapping[str, Any]]] = {}
        for node in questions.nodes(self._database, self._connection):
            by_host.setdefault(node['host'], []).append(node)
        for host, nodes in sorted(by_host.items()):
            kind = nodes[0]['hypervisor_type']
            if kind not in HYPERVISORS:
                self._add('hypervisor', f'host {host}: {kind}')
            elif len(nodes) > 1:
                self._add('duplicate-host', f'host {host} has {len(nodes)} nodes')
        return hosts

    def _check_move(self, move: Mapping[str, Any]) -> None:
        what = (
            f'server {move["instance_uuid"]}: {move["migration_type"]} from {move["source_compute"]} to '
            f'{move["dest_compute"]} is {move["status"]}'
        )
        if move['migration_type'] == 'evacuation' and move['status'] in ('done', 'accepted'):
            self._add('evacuated', what)
        elif move['status'] != 'finished' or move['vm_state'] != VmState.RESIZED:
            self._add('move-under-way', what)
        elif move['source_compute'] == move['dest_compute']:
            self._add('same-host-resize', what)

    def _check_server(self, server: NovaServer, hosts: set[str]) -> None:
        for kind, detail in _problems(server, self._cell, hosts, self._database.has('instances', 'compute_id')):
            self._add(kind, f'{server}: {detail}' if detail else str(server))

    def _add(self, kind: str, what: str) -> None:
        self._report.obstacles.add(kind, self._cell.name, what)


def _fits(api: NovaDatabase, cell: NovaDatabase) -> bool:
    """Return whether the schemas of an API database and a cell's database can belong to one release of Nova.

    The result is False only if one schema is that of release 27 and the other is that of a later release.
    """
    return (api.release == '27') == (cell.release == '27')


def _problems(server: NovaServer, cell: NovaCell, hosts: set[str], has_node_ids: bool) -> Iterator[tuple[str, str]]:
    """Yield (kind of obstacle, detail) for each obstacle to adopting a server.

    ``hosts`` are the cell's hosts with a compute service. ``has_node_ids`` is True if the table ``instances`` has the
    column compute_id.
    """
    row, extra = server.instance, server.extra
    if row['task_state'] is not None:
        yield 'task-state', f'{row["vm_state"]}, {row["task_state"]}'
    if server.mapping is None or server.mapping['cell_id'] != cell.id:
        yield 'unmapped-server', '' if server.mapping is None else f'mapped to cell {server.mapping["cell_id"]}'
    elif server.mapping['queued_for_delete'] and not row['task_state'] and row['vm_state'] != VmState.SOFT_DELETED:
        yield 'half-deleted', ''
    if row['host'] is not None and row['host'] not in hosts:
        yield 'no-host', f'host {row["host"]}'
    elif row['host'] is None and row['vm_state'] in ON_A_HOST:
        yield 'no-host', f'{row["vm_state"]}, without a host'
    if has_node_ids and row['node'] is not None and row['compute_id'] is None:
        yield 'online-migrations', 'no compute_id'
    if row['vm_state'] == VmState.RESCUED:
        yield 'rescued', ''
    if server.shares:
        yield 'shares', f'{server.shares} shares'
    if extra is None or not extra['flavor']:
        yield 'no-flavor', ''
    if server.spec is None:
        yield 'no-request-spec', ''
    if extra is not None:
        if extra['vpmems'] not in (None, 'null'):
            yield 'persistent-memory', ''
        if extra['trusted_certs'] not in (None, 'null'):
            yield 'trusted-certificates', ''
    if row['host'] is not None:
        yield from _volume_problems(server)
    yield from _object_problems(server)


def _volume_problems(server: NovaServer) -> Iterator[tuple[str, str]]:
    for volume in server.volumes:
        if volume['attachment_id'] is None or volume['connection_info'] in (None, '{}', 'null'):
            yield 'volume', f'volume {volume["volume_id"]}'


def _object_problems(server: NovaServer) -> Iterator[tuple[str, str]]:
    """Yield (kind of obstacle, detail) for each stored object that Kilonova can't read and each feature that it lacks.

    The features are those that the server's flavor and image request.
    """
    extra = server.extra or {}
    read: dict[str, Any] = {}
    for column in objects.COLUMNS['instance_extra']:
        if extra.get(column):
            try:
                read[column] = objects.convert(json.loads(extra[column]))
            except (ValueError, errors.Invalid) as error:
                yield 'unreadable-object', f'{column}: {error}'
    for name, text, act in (
        ('network_info', server.network_info, None),
        ('request spec', server.spec, RequestSpec.obj_from_primitive),
    ):
        reason = _unreadable(text, act)
        if reason:
            yield 'unreadable-object', f'{name}: {reason}'
    current = (read.get('flavor') or {}).get('cur')
    specs = envelopes.extra_specs(current) if current else {}
    properties = {
        key.removeprefix('image_'): value for key, value in server.system_metadata.items() if key.startswith('image_')
    }
    for reason in _unserved(specs, properties):
        yield 'server-feature', reason


def _unreadable(text: str | None, read: Callable[[Any], Any] | None) -> str | None:
    """Return why Kilonova can't convert and read an object of Nova, or None if it can or ``text`` is None.

    ``text`` is the object as JSON. ``read`` gets the converted object and raises an error if it can't use the object.
    Without ``read`` only the conversion is tried.
    """
    if text is None:
        return None
    try:
        value = objects.convert(json.loads(text))
        if read is not None:
            read(value)
    except (ValueError, TypeError, KeyError, errors.Invalid) as error:
        return str(error)
    return None


def _unserved(specs: Mapping[str, str], properties: Mapping[str, str]) -> Iterable[str]:
    """Yield a text for each extra spec (``specs``) and image property that requests a feature that Kilonova lacks."""
    for check, values in ((unsupported.check_flavor, specs), (unsupported.check_image, properties)):
        for key, value in values.items():
            try:
                check({key: value})
            except unsupported.NotServed as error:
                yield str(error).rstrip('.')
