"""What must hold: always, when the troubles are over, and when all servers are gone.

    checks = Checks(cloud, wrong)
    checks.install()                    # after each commit and each change of a guest
    checks.settled(users)               # when everything works again
    checks.empty()                      # when all is deleted

Databases are read with plain SQLite connections, guests and Placement from their models.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kilonova.conductor.audit.compare import Audit
from kilonova.conductor.flows import accelerators
from kilonova.context import get_admin_context
from kilonova.db.queries import cells as cell_queries
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import Client
from tests.simulation import hosts, ports, volumes
from tests.simulation.accounts import Accounts
from tests.simulation.cloud import ABANDONED, DATABASES, Cloud
from tests.simulation.power_cut import PowerCut
from tests.simulation.users import GONE, Users

# Virtual seconds in which all operations must have ended when nothing is wrong any more.
BOUND = 900.0
# What a compare-and-swap says that met somebody else's write: no reason for a server to end in ERROR.
UNKNOWN_FAULT = 'was changed during this operation'
# What Cyborg says of requests that are bound twice: no reason for anything to fail.
BOUND_TWICE = 'already has accelerator requests'
# Tables whose rows say who owns what.
OWNING = frozenset(('update:pci_devices', 'insert:pci_devices', 'update:instance_extra'))


def _pinned(topology: dict[str, Any] | None) -> list[int]:
    """Host CPUs of a server's NUMA topology, as its object is stored."""
    cells = topology['nova_object.data']['cells'] if topology else []
    return [cpu for cell in cells for cpu in (cell['nova_object.data'].get('cpu_pinning_raw') or {}).values()]


class Checks:
    """``wrong(text)`` is called with what doesn't hold."""

    def __init__(self, cloud: Cloud, wrong: Callable[[str], None]) -> None:
        self._cloud, self._wrong = cloud, wrong
        self._connections: dict[str, sqlite3.Connection] = {}
        self._owners: dict[tuple[str, str], tuple[str | None, str]] = {}
        self._accounts = Accounts(cloud, self._query, wrong)
        self.power_cut = PowerCut(cloud, self._query, wrong)
        # The most CPUs that were pinned at one time.
        self.looks = self.pins = 0

    def install(self) -> None:
        """Begin to look."""
        self._cloud.stores.committed = self._committed
        self._cloud.guests_changed = lambda host: self._guests()
        if self._cloud.cyborg is not None:
            self._cloud.cyborg.changed = self._guests
        self._read_devices()

    def _query(self, database: str, statement: str) -> list[sqlite3.Row]:
        if database not in self._connections:
            made = self._connections[database] = sqlite3.connect(f'{database}.db')
            made.row_factory = sqlite3.Row
        return self._connections[database].execute(statement).fetchall()

    # -- always -------------------------------------------------------------------------------------------------------
    def _committed(self, database: str, written: list[str]) -> None:
        if database == 'cell1' and not OWNING.isdisjoint(written):
            self.looks += 1
            self._read_devices()
            if self._cloud.shape.cells:
                self._read_pins()
            self._guests()

    def _read_pins(self) -> None:
        """Of a server in a move each end's; of one that is being undone, or given back, only what it has at home."""
        undone = {
            row['instance_uuid']
            for row in self._query('cell1', 'SELECT instance_uuid FROM operations WHERE failed OR undoing')
        }
        moves = {
            row['id']: row
            for row in self._query('cell1', 'SELECT id, source_compute, dest_compute, status FROM migrations')
        }
        users: dict[tuple[str, int], str] = {}
        for row in self._query(
            'cell1',
            'SELECT i.uuid, i.host, e.numa_topology, e.migration_context FROM instances i '
            'JOIN instance_extra e ON e.instance_uuid = i.uuid WHERE i.deleted = 0',
        ):
            context = json.loads(row['migration_context'] or '{}').get('nova_object.data')
            held = [(row['host'], json.loads(row['numa_topology'] or 'null'))]
            if context:
                move, held = moves[context['migration_id']], []
                if move['status'] not in ('confirming', 'confirmed'):
                    held.append((move['source_compute'], context['old_numa_topology']))
                if move['status'] not in ('reverting', 'reverted', 'error') and row['uuid'] not in undone:
                    held.append((move['dest_compute'], context['new_numa_topology']))
            for host, topology in held:
                for cpu in _pinned(topology):
                    owner = users.setdefault((host, cpu), row['uuid'])
                    if host and owner != row['uuid']:
                        self._wrong(f'{host} CPU {cpu} is pinned by {owner} and by {row["uuid"]}')
        self.pins = max(self.pins, len(users))

    def _read_devices(self) -> None:
        rows = self._query(
            'cell1',
            'SELECT n.host, d.address, d.status, d.instance_uuid, d.dev_type, d.parent_addr'
            ' FROM pci_devices d JOIN compute_nodes n ON n.id = d.compute_node_id'
            ' WHERE d.deleted = 0',
        )
        self._owners = {(row['host'], row['address']): (row['instance_uuid'], row['status']) for row in rows}
        for row in rows:
            if row['parent_addr'] and row['instance_uuid']:
                parent = self._owners.get((row['host'], row['parent_addr']), (None, ''))
                if parent[0] is not None:
                    self._wrong(
                        f'{row["host"]} {row["address"]} belongs to {row["instance_uuid"]}, '
                        f'its physical function to {parent[0]}'
                    )

    def _guests(self) -> None:
        where: dict[str, str] = {}
        for host, machine in self._cloud.machines.items():
            users: dict[str, str] = {}
            for domain in machine.running():
                if domain.uuid in where:
                    self._wrong(f'{domain.uuid} runs on {where[domain.uuid]} and on {host}')
                where[domain.uuid] = host
                for address in domain.hostdevs:
                    if address in users:
                        self._wrong(f'{host} {address} is in two running guests, {users[address]} and {domain.uuid}')
                    users[address] = domain.uuid
                    if self._cloud.cyborg is not None and (host, address) in self._cloud.cyborg.devices:
                        continue
                    owner, status = self._owners.get((host, address), (None, 'missing'))
                    if owner != domain.uuid:
                        self._wrong(
                            f'{host} {address} is in the running guest of {domain.uuid}, its row says {status} '
                            f'by {owner}'
                        )
                self._accounts.guest(host, domain)

    # -- at the end ---------------------------------------------------------------------------------------------------
    def operations(self) -> list[str]:
        """What is under way."""
        return [
            f'{row["kind"]} of {row["instance_uuid"]}'
            for name in DATABASES
            for row in self._query(name, 'SELECT kind, instance_uuid FROM operations')
        ]

    def rests(self, uuid: str) -> bool:
        """Whether no operation works on a server."""
        statement = f"SELECT 1 FROM operations WHERE instance_uuid = '{uuid}'"
        return not any(self._query(name, statement) for name in DATABASES)

    def running(self, uuid: str) -> list[str]:
        """Kinds of the operations that run for a server or wait; pending releases are none of them."""
        statement = f"SELECT kind FROM operations WHERE instance_uuid = '{uuid}' AND slot IN ('run', 'wait')"
        return [row['kind'] for name in DATABASES for row in self._query(name, statement)]

    def wait(self) -> None:
        """Until nothing is under way."""
        cloud = self._cloud
        end = cloud.timeline.now + BOUND
        while (
            rows := self.operations()
            + [f'start of {name}' for name in cloud.names() if name not in cloud.apps]
            + (self._unbound())
        ):
            if cloud.timeline.now > end:
                self._wrong(f'{BOUND:.0f} s after the last trouble there is still: {"; ".join(rows)}')
                return
            cloud.pause(5.0)

    def _unbound(self) -> list[str]:
        """Accelerator requests that were made for nothing: from now on they are old enough to go."""
        if self._cloud.cyborg is None or not (found := self._cloud.cyborg.unbound()) or self.operations():
            return []
        accelerators.ABANDONED = -ABANDONED
        return [f'accelerator request {uuid}' for uuid in found]

    def settled(self, users: Users) -> None:
        """What users were told is so, and the audit finds nothing."""
        for known in users.known.values():
            if known.uuid is None:
                continue
            told = users.status(known)
            if told is None:
                self._wrong(f's{known.number}: the API does not answer though nothing is wrong any more')
            elif told not in {(state.status, state.flavor) for state in known.may_be}:
                states = ', '.join(sorted(f'{state.status} {state.flavor}'.strip() for state in known.may_be))
                self._wrong(f's{known.number} is {" ".join(told)}; by what was accepted it can be: {states}')
        for row in self._query(
            'cell1',
            'SELECT f.instance_uuid, f.message FROM instance_faults f JOIN instances i ON '
            "i.uuid = f.instance_uuid WHERE i.vm_state = 'error' AND i.deleted = 0",
        ):
            if UNKNOWN_FAULT in row['message']:
                self._wrong(f'{row["instance_uuid"]} is in ERROR: {row["message"]}')
        for row in self._query(
            'cell1', f"SELECT instance_uuid, message FROM instance_faults WHERE message LIKE '%{BOUND_TWICE}%'"
        ):
            self._wrong(f'{row["instance_uuid"]} failed: {row["message"]}')
        self.agree()

    def fault(self, uuid: str) -> str:
        """What failed last with a server."""
        rows = self._query(
            'cell1',
            'SELECT e.event, e.details FROM instance_actions_events e JOIN instance_actions a '
            f"ON a.id = e.action_id WHERE a.instance_uuid = '{uuid}' AND e.result = 'Error' "
            'ORDER BY e.id DESC LIMIT 1',
        )
        return f'{rows[0]["event"]}: {rows[0]["details"]}' if rows else ''

    def agree(self) -> None:
        """The services, rows, hosts and guests say the same."""
        cloud = self._cloud
        self._accounts.settled()
        ports.settled(cloud, self._wrong)
        volumes.settled(cloud, self._wrong)
        report = self.audit()
        for line in [
            *report.disagreements,
            *(f'silent: {line}' for line in report.silent),
            *(f'in flight: {line}' for line in report.in_flight),
        ]:
            if not self._is_known(line):
                self._wrong(f'audit: {line}')

    def _is_known(self, line: str) -> bool:
        """What Cinder deletes by force nobody tells a server; and one that can't give up a port now has it until
        Neutron tells of it in another state."""
        cloud = self._cloud
        if cloud.cinder is not None and 'which does not exist in Cinder' in line:
            return any(volume in line for volume in cloud.cinder.dropped)
        if cloud.neutron is None or not any(part in line for part in ('in flight: ports', 'libvirt: domain')):
            return False
        for row in self._query(
            'cell1',
            'SELECT i.uuid, i.vm_state, c.network_info, e.pci_requests FROM instances i '
            'JOIN instance_info_caches c ON c.instance_uuid = i.uuid '
            'JOIN instance_extra e ON e.instance_uuid = i.uuid WHERE i.deleted = 0',
        ):
            if row['uuid'] in line and row['vm_state'] not in ('active', 'stopped'):
                has = f'{row["network_info"]} {row["pci_requests"]}'
                return any(port in has for port in cloud.neutron.dropped)
        return False

    def audit(self) -> Any:
        """The audit as an operator would run it."""
        cloud = self._cloud
        conf = cloud.confs['api1']
        databases = cloud.databases()
        return Audit(
            databases,
            cell_queries.CellDatabases(databases),
            cloud.placement(),
            Client(Compute, cloud.bus.transport('operator', conf)),
            get_admin_context(),
            accelerators=cloud.accelerators(),
            networks=cloud.networks(),
            volumes=cloud.volumes(),
        ).run()

    def servers(self) -> list[str]:
        """All that aren't deleted."""
        return [
            row['uuid']
            for name in ('cell0', 'cell1')
            for row in self._query(name, 'SELECT uuid FROM instances WHERE deleted = 0 ORDER BY id')
        ]

    def empty(self) -> None:
        """After all servers were deleted nothing is left."""
        cloud = self._cloud
        for server in self.servers():
            self._wrong(f'{server} is still there after its deletion')
        for (host, address), (owner, status) in self._owners.items():
            if owner is not None or status not in ('available', 'unavailable'):
                self._wrong(f'left over: device {host} {address} is {status} by {owner}')
        if left := cloud.model.allocations():
            self._wrong(f'left over in Placement: {json.dumps(left)}')
        for host, machine in cloud.machines.items():
            if machine.domains:
                self._wrong(f'left over on {host}: domains {", ".join(machine.domains)}')
        for host, disks in hosts.remains(cloud.disks).items():
            self._wrong(f'left over on {host}: files {", ".join(disks)}')
        self._accounts.empty()
        ports.empty(cloud, self._wrong)
        volumes.empty(cloud, self._wrong)
        if cloud.images.made:
            self._wrong(f'left over: images {", ".join(cloud.images.made)}')
        left_rows: dict[str, list[str]] = defaultdict(list)
        for table in ('build_requests', 'operations'):
            left_rows[table] += [row[0] for row in self._query('api', f'SELECT instance_uuid FROM {table}')]
        for table, found in left_rows.items():
            if found:
                self._wrong(f'left over in {table}: {", ".join(found)}')


__all__ = ['BOUND', 'GONE', 'Checks']
