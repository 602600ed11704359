"""``Audit``, which compares databases, Placement, libvirt domains and files of hosts, and changes nothing.

The audit also compares servers with Neutron, Cinder and Cyborg. ``kilonova-manage audit`` runs it:

    report = Audit(databases, cells, placement, compute, ctxt).run()
    report.exit_code          # 0 clean, 1 disagreements, 2 a host or a service does not answer

Servers that an operation works on are listed and not compared. The cloud changes during the audit. Therefore each
disagreement is checked a second time before it is reported. If its rows were changed between two checks, the
disagreement is checked once more.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kilonova import texts
from kilonova.accel.client import AcceleratorClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.conductor import flows
from kilonova.conductor.audit import accelerators as audit_accelerators
from kilonova.conductor.audit import allocations as audit_allocations
from kilonova.conductor.audit import hosts as audit_hosts
from kilonova.conductor.audit import ports as audit_ports
from kilonova.conductor.audit import rows as audit_rows
from kilonova.conductor.audit import volumes as audit_volumes
from kilonova.context import RequestContext
from kilonova.db.arguments import kinds as arguments_of
from kilonova.db.engine import Databases
from kilonova.db.queries import audit as queries
from kilonova.db.queries import services
from kilonova.db.queries.cells import CellDatabases
from kilonova.db.queries.operations import RELEASE
from kilonova.db.rows import Row
from kilonova.errors import KilonovaError
from kilonova.objects import PciDevicePoolList
from kilonova.pci.device import DISABLED, GROUP_HEAD, MDEV, UNHEALTHY
from kilonova.rpc import bounded
from kilonova.rpc.interface import Client

# Seconds between two checks of the whole cloud, and the maximum number of checks in one audit.
PAUSE = 2.0
LOOKS = 4
# Maximum number of hosts that are queried at the same time.
AT_ONCE = 16
# Maximum seconds that the audit waits for the reply of one host, and for the replies of all hosts in all its checks.
PATIENCE, PATIENCE_WITH_ALL = 30.0, 120.0
IN_TIME = f'{PATIENCE:.0f} s for a host, {PATIENCE_WITH_ALL:.0f} s for all'
# Number of the domain state "running" in libvirt.
RUNNING = 1
# Servers in these vm states must have no running guest.
OFF = ('stopped', 'soft-delete', 'shelved')
# Keys of a device's ``extra_info`` that mark it as not usable. Servers that hold such a device are reported.
TOLD = (DISABLED, UNHEALTHY)
# Kinds of operations that set no task state. The audit does not report a server without a task state during them.
WITHOUT_TASK = (
    'release',
    'network_changed',
    'confirm',
    'trigger_crash_dump',
    'attach_interface',
    'detach_interface',
    'attach_volume',
    'detach_volume',
    'swap_volume',
    'volume_extended',
    'volume_snapshot_create',
    'volume_snapshot_delete',
)
# A dict from uuid to row.
Rows = dict[str, Row]


@dataclass
class AuditReport:
    """The result of an audit.

    Attributes:
        disagreements: One line of text for each disagreement.
        in_flight: One line for each operation that is running or waiting, and one for each difference that will
            disappear without help of an operator.
        silent: One line for each host or service that did not answer, with the reason.
        checked: Numbers of compared rows: ``servers`` and ``devices``.
    """

    disagreements: list[str] = field(default_factory=list)
    in_flight: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        The code is 0 if there is no disagreement, 1 if there is one, and 2 if a host or a service did not answer.
        """
        if self.silent:
            return 2
        return 1 if self.disagreements else 0


class Audit:
    """Compares all records of servers and devices, up to ``LOOKS`` times.

    ``compute`` is the RPC client, or None if hosts cannot be queried. ``pause(seconds)`` waits between two checks.
    Hosts whose last report is older than ``down_time`` seconds are not queried; None queries all hosts.
    ``accelerators``, ``networks`` and ``volumes`` are clients of Cyborg, Neutron and Cinder, or None if the cloud has
    no such service.
    """

    def __init__(
        self,
        databases: Databases,
        cells: CellDatabases,
        placement: PlacementClient,
        compute: Client | None,
        ctxt: RequestContext,
        pause: Callable[[float], None] = time.sleep,
        down_time: float | None = None,
        accelerators: AcceleratorClient | None = None,
        networks: NetworkClient | None = None,
        volumes: VolumeClient | None = None,
    ) -> None:
        self._parts = (databases, cells, placement, compute, ctxt, down_time, accelerators, networks, volumes)
        self._pause = pause

    def run(self) -> AuditReport:
        """Compare all records up to ``LOOKS`` times, and return a report of the disagreements.

        Databases, hosts and Placement are read one after the other while the cloud changes, so a record may seem wrong
        in one check. A disagreement is reported only if it is in two successive checks and none of its rows was changed
        between these checks. If its rows changed between all checks, it is reported as in flight.
        """
        # Hosts and services that did not answer, as a dict from name to reason.
        # The audit checks the cloud up to LOOKS times. A host or service in ``silent`` is not queried again.
        silent: dict[str, str] = {}
        until = time.monotonic() + PATIENCE_WITH_ALL
        last = _AuditRun(*self._parts, silent, until)
        report = last.report()
        wrong: list[str] = []
        changing = report.disagreements
        looks = 1
        while changing and looks < LOOKS:
            looks += 1
            self._pause(PAUSE)
            before, last = last, _AuditRun(*self._parts, silent, until)
            report = last.report()
            still = set(report.disagreements)
            again, changing = [line for line in changing if line in still], []
            for line in again:
                (changing if last.changed_since(before, line) else wrong).append(line)
        in_flight = report.in_flight + [f'changed during each check: {line}' for line in changing]
        return AuditReport(wrong, in_flight, [f'{who}: {why}' for who, why in silent.items()], report.checked)


class _AuditRun:
    """One check of the whole cloud. ``Audit`` creates one object for each of its checks.

    ``silent`` contains the hosts and services that are not queried, as a dict from name to reason; the check adds each
    host or service that does not answer. ``until`` is the time.monotonic() value after which no host is queried.
    """

    def __init__(
        self,
        databases: Databases,
        cells: CellDatabases,
        placement: PlacementClient,
        compute: Client | None,
        ctxt: RequestContext,
        down_time: float | None,
        accelerators: AcceleratorClient | None,
        networks: NetworkClient | None,
        volumes: VolumeClient | None,
        silent: dict[str, str],
        until: float,
    ) -> None:
        self._silent, self._until = silent, until
        self._ports, self._volumes = audit_ports.PortAudit(networks), audit_volumes.VolumeAudit(volumes)
        self._accelerators = audit_accelerators.AcceleratorAudit(accelerators)
        self._databases, self._cells = databases, cells
        self._allocations = audit_allocations.Allocations(placement, self._wrong)
        self._places = audit_hosts.HostAudit(placement, self._wrong)
        self._compute, self._ctxt = compute, ctxt
        self._down_time = down_time
        self._report = AuditReport()
        # Time of each row's last change, by the text that names the row in the report, such as a server's uuid.
        self._changed: dict[str, Any] = {}

    def changed_since(self, before: _AuditRun, line: str) -> bool:
        """Return whether a database row named in ``line`` was changed between the check ``before`` and this check.

        ``line`` is one line of text of the report, such as 'database: server <uuid> is …'.
        """
        return any(stamp != before._changed.get(name) for name, stamp in self._changed.items() if name in line)

    def report(self) -> AuditReport:
        """Read the databases, the hosts and the services, compare them, and return the report of this check."""
        with self._databases.api().read() as conn:
            api = queries.api(conn)
        self._api(api)
        for service in (self._accelerators, self._ports, self._volumes):
            if service.NAME not in self._silent and (silence := service.read()) is not None:
                self._silent[service.NAME] = silence
        known: set[str] = set()
        read = []
        for database in self._cells.databases():
            with database.read() as conn:
                cell = queries.cell(conn)
                self._accelerators.learn(queries.marks(conn, audit_accelerators.MARKS))
                down = services.quiet_hosts(conn, self._down_time) if self._down_time is not None else []
            self._stamp(cell)
            self._places.learn(database.cell, cell)
            views = self._hosts([node['host'] for node in cell['nodes']], {one.host for one in down})
            read.append((cell, views, self._allocations.read(cell['nodes'])))
        # A consumer may hold resources in several cells, so no cell is compared before all cells were read.
        for cell, hosts, trees in read:
            known |= self._cell(cell, api, hosts, trees)
        self._allocations.compare_consumers(known)
        self._places.compare(api.hosts, api.aggregates, api.operations)
        for service in (self._accelerators, self._ports, self._volumes):
            self._report.disagreements.extend(service.disagreements())
        self._report.in_flight.extend(self._ports.in_flight)
        self._report.checked['servers'] = sum(len(cell['instances']) for cell, _, _ in read)
        self._report.checked['devices'] = sum(len(cell['devices']) for cell, _, _ in read)
        return self._report

    def _wrong(self, line: str) -> None:
        self._report.disagreements.append(line)

    def _api(self, api: queries.OfApi) -> None:
        rows = {row['instance_uuid'] for row in api.operations}
        self._operations(api.operations)
        for waiting, what in ((api.build_requests, 'a build request'), (api.unmapped, 'a mapping without a cell')):
            for uuid in waiting:
                if uuid not in rows:
                    self._wrong(f'database: server {uuid} has {what} and no operation')

    def _operations(self, rows: list[Row]) -> None:
        """Add operation rows to the report: as in flight, or as wrong if no conductor can parse the row."""
        for row in rows:
            what = f'{row["kind"]} of {row["instance_uuid"]}'
            why = flows.unreadable(row)
            if why:
                self._wrong(
                    f'database: operation {row["uuid"]} ({what}) cannot be read: {why}. No conductor runs or '
                    "undoes it: 'kilonova-manage operation list' says what to do"
                )
            else:
                self._report.in_flight.append(what)

    def _cell(
        self, cell: dict[str, list[Row]], api: queries.OfApi, hosts: Rows, trees: dict[str, dict[str, str]]
    ) -> set[str]:
        busy = {row['instance_uuid'] for row in [*cell['operations'], *api.operations]}
        self._operations(cell['operations'])
        servers = {row['uuid']: row for row in cell['instances']}
        moving = {row['instance_uuid']: row for row in cell['migrations']}
        unreadable = audit_rows.unreadable(servers, api.specs)
        for uuid, why in unreadable.items():
            if uuid not in busy:
                self._wrong(f'database: {why} Nothing else of the server is compared')
        # Add the servers whose JSON texts cannot be parsed to ``busy``, so that they are not compared further.
        busy |= unreadable.keys()
        self._states(servers, cell, busy)
        self._devices(cell['devices'], servers, moving, busy)
        self._barred(cell['devices'], busy)
        self._pools(cell['nodes'], cell['devices'])
        self._allocations.compare_cards(cell['devices'])
        owned: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for device in cell['devices']:
            if device['instance_uuid'] is not None:
                owned[device['instance_uuid']].append(device)
        self._rows(servers, cell['migrations'], owned, api.specs, busy)
        for host, view in hosts.items():
            self._missing(host, view, owned, busy)
            self._domains(host, view, servers, moving, owned, busy)
            self._files(host, view, servers, moving, busy)
        self._guests(servers, hosts, busy)
        self._accelerators.give_back(arguments_of.of_row(row) for row in cell['operations'] if row['kind'] == RELEASE)
        self._accelerators.compare(servers, moving, busy)
        self._ports.compare(servers, owned, self._allocations.consumers, busy)
        volumes: dict[str, list[Row]] = defaultdict(list)
        for row in cell['volumes']:
            volumes[row['instance_uuid']].append(row)
        self._volumes.compare(servers, volumes, busy)
        self._allocations.compare(servers, moving, owned, trees, busy)
        return set(servers) | busy | {row['uuid'] for row in cell['migrations']}

    def _states(self, servers: Rows, cell: dict[str, list[Row]], busy: set[str]) -> None:
        for uuid, server in servers.items():
            if server['task_state'] and uuid not in busy:
                self._wrong(f'database: server {uuid} is {server["task_state"]} and no operation works on it')
        for row in cell['operations']:
            working = servers.get(row['instance_uuid'])
            if row['kind'] in WITHOUT_TASK or row['cancelled'] or working is None:
                continue
            if working['task_state'] is None and working['vm_state'] != 'building':
                self._wrong(
                    f'database: operation {row["kind"]} works on server {row["instance_uuid"]}, which has no task state'
                )
        for row in cell['migrations']:
            if row['instance_uuid'] not in busy and row['status'] != 'finished':
                self._wrong(f'database: migration {row["uuid"]} is {row["status"]} and no operation works on it')

    def _rows(
        self,
        servers: Rows,
        migrations: list[dict[str, Any]],
        owned: dict[str, list[dict[str, Any]]],
        specs: dict[str, str],
        busy: set[str],
    ) -> None:
        """Compare the database rows of each server that no operation works on.

        ``owned`` is a dict from server uuid to the rows of the server's devices, and ``specs`` a dict from server uuid
        to the JSON of its request spec's flavor. Servers in ``busy`` are left out, because operations are changing
        their rows.
        """
        moves: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in migrations:
            moves[row['instance_uuid']].append(row)
        for uuid, server in servers.items():
            if uuid not in busy:
                rows = audit_rows.ServerRows(server, specs.get(uuid), moves.get(uuid, []), owned.get(uuid, []))
                self._report.disagreements.extend(audit_rows.disagreements(rows))

    def _stamp(self, cell: dict[str, list[Row]]) -> None:
        for kind in ('instances', 'migrations'):
            self._changed.update((row['uuid'], row['updated_at']) for row in cell[kind])
        self._changed.update((f'{row["host"]} {row["address"]}', row['updated_at']) for row in cell['devices'])
        # Node rows change often, so a changed node row counts only for report lines about the node's device pools.
        # Only report lines about device pools contain the key '<node> offers'.
        self._changed.update((f'{row["node"]} offers', row['updated_at']) for row in cell['nodes'])

    def _hosts(self, hosts: list[str], down: set[str]) -> Rows:
        """Query the hosts, and return a dict from host name to the host's description of its domains and files.

        Hosts that are down or do not reply in time are added to ``silent`` with the reason.
        """
        compute, silent = self._compute, self._silent
        if compute is None:
            return {}
        silent.update((host, 'its nova-compute service is down, so it was not asked') for host in hosts if host in down)
        answers = bounded.ask_each(
            [host for host in hosts if host not in silent],
            lambda host: compute.describe_host(self._ctxt, server=host),
            at_once=AT_ONCE,
            seconds=PATIENCE,
            until=self._until,
        )
        silent.update((host, f'it did not answer in time ({IN_TIME})') for host in answers.late)
        silent.update((host, f'the time limit was reached before it was asked ({IN_TIME})') for host in answers.unasked)
        views: Rows = {}
        for host, answer in answers.given.items():
            try:
                views[host] = answer.result()
            except KilonovaError as error:
                silent[host] = str(error)
        return views

    def _devices(self, devices: list[Row], servers: Rows, moving: Rows, busy: set[str]) -> None:
        for device in devices:
            owner, where = device['instance_uuid'], f'{device["host"]} {device["address"]}'
            if owner is None:
                if device['status'] in ('claimed', 'allocated'):
                    self._wrong(f'database: device {where} is {device["status"]}, but no server owns it')
                continue
            if owner in busy:
                continue
            if device['status'] == 'available':
                self._wrong(f'database: device {where} is available and has owner {owner}')
            if device['status'] == 'claimed':
                self._wrong(f'database: device {where} is claimed by {owner} and no operation works on it')
            server, move = servers.get(owner), moving.get(owner)
            places = {server['host']} if server else set()
            if move:
                places |= {move['source_compute'], move['dest_compute']}
            if device['host'] not in places:
                self._wrong(f'database: device {where} belongs to server {owner}, which is not on this host')

    def _barred(self, devices: list[Row], busy: set[str]) -> None:
        """Report servers that hold a device which is disabled or unhealthy.

        The device is not offered to further servers. An operator should resize, migrate or delete the server.
        """
        for device in devices:
            owner = device['instance_uuid']
            if owner is None or owner in busy:
                continue
            info = _info(device)
            for why in TOLD:
                if why in info:
                    self._wrong(
                        f'host: {device["host"]} device {device["address"]} is {why} ({info[why]}), '
                        f'and server {owner} holds it'
                    )

    def _pools(self, nodes: list[dict[str, Any]], devices: list[Row]) -> None:
        """Compare the device pools of each node, which schedulers read, with the node's device rows.

        The pools and the rows must agree, because a host writes them together.
        """
        # Mediated devices are in no device pool (column pci_stats of the compute node), so they are not counted here.
        # The scheduler chooses mediated devices only by their resource providers in Placement.
        free = Counter(
            device['node']
            for device in devices
            if device['status'] == 'available' and device['dev_type'] != MDEV and _counts(device)
        )
        for node in nodes:
            try:
                pools = PciDevicePoolList.from_column(node['pci_stats'])
            except texts.BROKEN as error:
                self._wrong(
                    f'database: the column pci_stats of node {node["node"]} cannot be read '
                    f'({type(error).__name__}: {error})'
                )
                continue
            offered = sum(pool.count for pool in pools.objects) if pools is not None else 0
            if offered != free[node['node']]:
                self._wrong(
                    f'database: {node["node"]} offers {offered} devices, its rows say that '
                    f'{free[node["node"]]} are available'
                )

    def _missing(self, host: str, view: dict[str, Any], owned: dict[str, list[dict[str, Any]]], busy: set[str]) -> None:
        """Report devices that servers hold although the devices have disappeared from the host.

        A device disappears if it is unplugged or fails on the bus. ``view`` is the host's reply. A host of the previous
        release does not report disappeared devices. ``owned`` is a dict from server uuid to the rows of the server's
        devices. Servers in ``busy``, on which an operation works, are left out.
        """
        missing = set(view.get('missing_devices', ()))
        for uuid, devices in owned.items():
            for device in devices:
                if device['host'] == host and device['address'] in missing and uuid not in busy:
                    self._wrong(f'host: {host} no longer has device {device["address"]}, which server {uuid} holds')

    def _domains(
        self,
        host: str,
        view: dict[str, Any],
        servers: Rows,
        moving: Rows,
        owned: dict[str, list[dict[str, Any]]],
        busy: set[str],
    ) -> None:
        users: dict[str, list[str]] = defaultdict(list)
        for domain in view['domains']:
            uuid, server = domain['uuid'], servers.get(domain['uuid'])
            for address in domain['hostdevs']:
                users[address].append(uuid)
            if uuid in busy:
                continue
            move = moving.get(uuid)
            if server is None or (server['host'] != host and not (move and move['source_compute'] == host)):
                self._wrong(f'libvirt: {host} has domain {uuid}, which is not a server of this host')
                continue
            if server['host'] != host:
                continue
            own, _ = audit_rows.devices_of(server, move, owned.get(uuid, []))
            attached = self._accelerators.attached(server)
            if own is None or attached is None:
                continue
            has, hidden = sorted(domain['hostdevs']), audit_ports.hidden(server)
            if has != (
                wanted := sorted([*(device['address'] for device in own if device['address'] not in hidden), *attached])
            ):
                self._wrong(f'libvirt: domain {uuid} on {host} has devices {has}, its rows say {wanted}')
        for address, uuids in users.items():
            if len(uuids) > 1 and not busy.intersection(uuids):
                self._wrong(f'libvirt: {host} device {address} is in {len(uuids)} domains: {", ".join(uuids)}')

    def _files(self, host: str, view: dict[str, Any], servers: Rows, moving: Rows, busy: set[str]) -> None:
        for name in view['directories']:
            uuid, _, kind = name.partition('_')
            if uuid in busy:
                continue
            server, move = servers.get(uuid), moving.get(uuid)
            if kind == 'resize':
                if not (move and move['source_compute'] == host):
                    self._wrong(f'files: {host} has directory {name}, which no move needs')
            elif kind or server is None or server['host'] != host:
                self._wrong(f'files: {host} has directory {name}, which belongs to no server of this host')

    def _guests(self, servers: Rows, hosts: Rows, busy: set[str]) -> None:
        for uuid, server in servers.items():
            view = hosts.get(server['host']) if server['host'] else None
            if view is None or uuid in busy:
                continue
            domain = next((domain for domain in view['domains'] if domain['uuid'] == uuid), None)
            if server['vm_state'] == 'active' and (domain is None or domain['state'] != RUNNING):
                self._wrong(f'libvirt: server {uuid} is active, its guest on {server["host"]} is not running')
            if server['vm_state'] in OFF and domain is not None and domain['state'] == RUNNING:
                self._wrong(f'libvirt: server {uuid} is {server["vm_state"]}, its guest on {server["host"]} is running')
            if server['vm_state'] != 'error' and uuid not in view['directories']:
                self._wrong(f'files: server {uuid} has no directory on {server["host"]}')


def _counts(device: dict[str, Any]) -> bool:
    """Return whether a device row is one of those that the device pools of the compute node count.

    Several PCI functions may be assigned to a guest as one group. The pools count only the first function of a group.
    """
    return bool(_info(device).get(GROUP_HEAD, device['address']) == device['address'])


def _info(device: Row) -> dict[str, Any]:
    """Return the device's ``extra_info`` as a dict, or {} if the text cannot be parsed."""
    return texts.read(
        f'extra_info of device {device["address"]} of {device["host"]}', device['extra_info'], texts.mapping, {}
    )
