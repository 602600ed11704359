"""Compare all four: databases, Placement, the domains that each compute shows, files.

    report = Audit(databases, cells, placement, compute, ctxt).run()
    report.exit_code          # 0 clean, 1 disagreements, 2 a host does not answer

What an operation row in flight works on is listed, not judged.
"""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from kilonova.db.queries import audit as queries
from kilonova.errors import KilonovaError, Unanswered

RUNNING = 1
# Servers in these vm states have no running guest.
OFF = ('stopped', 'soft-delete')


@dataclass
class Report:
    """``disagreements``: a line each; ``in_flight``: operations under way; ``silent``: hosts that didn't answer."""

    disagreements: list[str] = field(default_factory=list)
    in_flight: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.silent:
            return 2
        return 1 if self.disagreements else 0


class Audit:
    """One look at everything. ``compute``: the RPC client; ``placement``: the Placement client."""

    def __init__(self, databases: Any, cells: Any, placement: Any, compute: Any, ctxt: Any) -> None:
        self._databases, self._cells = databases, cells
        self._placement, self._compute, self._ctxt = placement, compute, ctxt
        self.report = Report()

    def run(self) -> Report:
        """Read all, compare all."""
        with self._databases.api().read() as conn:
            api = queries.api(conn)
        self._api(api)
        consumers: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        known: set[str] = set()
        cells = []
        for database in self._cells.databases():
            with database.read() as conn:
                cell = queries.cell(conn)
            cells.append(cell)
            known |= self._cell(cell, api, consumers)
        for consumer, held in consumers.items():
            if consumer not in known:
                self._wrong(f'Placement: consumer {consumer} holds {_held(held)} and is no server or move')
        self.report.checked['servers'] = sum(len(cell['instances']) for cell in cells)
        self.report.checked['devices'] = sum(len(cell['devices']) for cell in cells)
        return self.report

    def _wrong(self, line: str) -> None:
        self.report.disagreements.append(line)

    def _api(self, api: dict[str, list[dict[str, Any]]]) -> None:
        rows = {row['instance_uuid'] for row in api['operations']}
        for row in api['operations']:
            self.report.in_flight.append(f"{row['kind']} of {row['instance_uuid']}")
        for name, what in (('build_requests', 'a build request'), ('unmapped', 'a mapping without a cell')):
            for row in api[name]:
                if row['instance_uuid'] not in rows:
                    self._wrong(f"database: server {row['instance_uuid']} has {what} and no operation")

    def _cell(self, cell: dict[str, list[dict[str, Any]]], api: dict[str, list[dict[str, Any]]],
              consumers: dict[str, dict[str, dict[str, int]]]) -> set[str]:
        busy = {row['instance_uuid'] for row in [*cell['operations'], *api['operations']]}
        for row in cell['operations']:
            self.report.in_flight.append(f"{row['kind']} of {row['instance_uuid']}")
        servers = {row['uuid']: row for row in cell['instances']}
        moving = {row['instance_uuid']: row for row in cell['migrations']}
        self._states(servers, cell, busy)
        hosts = self._hosts(cell['nodes'])
        trees = self._trees(cell['nodes'], consumers)
        self._devices(cell['devices'], servers, moving, busy)
        for host, view in hosts.items():
            self._domains(host, view, servers, moving, cell['devices'], busy)
            self._files(host, view, servers, moving, busy)
        self._guests(servers, hosts, busy)
        self._allocations(servers, moving, cell, trees, consumers, busy)
        return set(servers) | busy | {row['uuid'] for row in cell['migrations']}

    def _states(self, servers: dict[str, dict], cell: dict[str, list[dict]], busy: set[str]) -> None:
        for uuid, server in servers.items():
            if server['task_state'] and uuid not in busy:
                self._wrong(f"database: server {uuid} is {server['task_state']} and no operation works on it")
            if server['has_context'] and uuid not in busy and server['vm_state'] != 'resized':
                self._wrong(f'database: server {uuid} has a migration context and is not moving')
        for row in cell['operations']:
            working = servers.get(row['instance_uuid'])
            if row['kind'] in ('release', 'confirm') or row['cancelled'] or working is None:
                continue
            if working['task_state'] is None and working['vm_state'] != 'building':
                self._wrong(f"database: operation {row['kind']} of {row['instance_uuid']}, which has no task state")
        for row in cell['migrations']:
            if row['instance_uuid'] not in busy and row['status'] != 'finished':
                self._wrong(f"database: migration {row['uuid']} is {row['status']} and no operation works on it")

    def _hosts(self, nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        views = {}
        for node in nodes:
            try:
                views[node['host']] = self._compute.describe_host(self._ctxt, server=node['host'])
            except (Unanswered, KilonovaError) as error:
                self.report.silent.append(f"{node['host']}: {error}")
        return views

    def _trees(self, nodes: list[dict[str, Any]], consumers: dict[str, dict[str, dict[str, int]]]
               ) -> dict[str, dict[str, str]]:
        """{node: {provider uuid: PCI address or ''}}; fills in what each consumer holds."""
        trees: dict[str, dict[str, str]] = {}
        for node in nodes:
            tree = trees[node['node']] = {}
            for provider in self._placement.list_providers(in_tree=node['uuid']):
                prefix = f"{node['node']}_"
                name = provider['name']
                tree[provider['uuid']] = name[len(prefix):].lower() if name.startswith(prefix) else ''
                for consumer, held in self._placement.provider_allocations(provider['uuid']).items():
                    consumers[consumer][provider['uuid']] = held
        return trees

    def _devices(self, devices: list[dict[str, Any]], servers: dict[str, dict], moving: dict[str, dict],
                 busy: set[str]) -> None:
        for device in devices:
            owner, where = device['instance_uuid'], f"{device['host']} {device['address']}"
            if owner is None:
                if device['status'] in ('claimed', 'allocated'):
                    self._wrong(f"database: device {where} is {device['status']} by nobody")
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
                self._wrong(f'database: device {where} belongs to {owner}, which is not there')

    def _domains(self, host: str, view: dict[str, Any], servers: dict[str, dict], moving: dict[str, dict],
                 devices: list[dict[str, Any]], busy: set[str]) -> None:
        users: dict[str, list[str]] = defaultdict(list)
        for domain in view['domains']:
            uuid, server = domain['uuid'], servers.get(domain['uuid'])
            for address in domain['hostdevs']:
                users[address].append(uuid)
            if uuid in busy:
                continue
            move = moving.get(uuid)
            if server is None or (server['host'] != host and not (move and move['source_compute'] == host)):
                self._wrong(f'libvirt: {host} has domain {uuid}, which is no server of it')
                continue
            if server['host'] != host:
                continue
            owned = sorted(device['address'] for device in devices
                           if device['instance_uuid'] == uuid and device['host'] == host)
            has = sorted(domain['hostdevs'])
            same_host_move = move is not None and move['source_compute'] == move['dest_compute']
            if has != owned and not (same_host_move and set(has) < set(owned)):
                self._wrong(f'libvirt: domain {uuid} on {host} has devices {has}, its rows say {owned}')
        for address, uuids in users.items():
            if len(uuids) > 1 and not busy.intersection(uuids):
                self._wrong(f'libvirt: {host} device {address} is in {len(uuids)} domains: {", ".join(uuids)}')

    def _files(self, host: str, view: dict[str, Any], servers: dict[str, dict], moving: dict[str, dict],
               busy: set[str]) -> None:
        for name in view['directories']:
            uuid, _, kind = name.partition('_')
            if uuid in busy:
                continue
            server, move = servers.get(uuid), moving.get(uuid)
            if kind == 'resize':
                if not (move and move['source_compute'] == host):
                    self._wrong(f'files: {host} keeps {name}, which no move needs')
            elif kind or server is None or server['host'] != host:
                self._wrong(f'files: {host} keeps {name}, which is no server of it')

    def _guests(self, servers: dict[str, dict], hosts: dict[str, dict[str, Any]], busy: set[str]) -> None:
        for uuid, server in servers.items():
            view = hosts.get(server['host']) if server['host'] else None
            if view is None or uuid in busy:
                continue
            domain = next((domain for domain in view['domains'] if domain['uuid'] == uuid), None)
            if server['vm_state'] == 'active' and (domain is None or domain['state'] != RUNNING):
                self._wrong(f"libvirt: server {uuid} is active, its guest on {server['host']} is not running")
            if server['vm_state'] in OFF and domain is not None and domain['state'] == RUNNING:
                self._wrong(f"libvirt: server {uuid} is {server['vm_state']}, its guest on {server['host']} is running")
            if server['vm_state'] != 'error' and uuid not in view['directories']:
                self._wrong(f"files: server {uuid} has no directory on {server['host']}")

    def _allocations(self, servers: dict[str, dict], moving: dict[str, dict], cell: dict[str, list[dict]],
                     trees: dict[str, dict[str, str]], consumers: dict[str, dict[str, dict[str, int]]],
                     busy: set[str]) -> None:
        for uuid, server in servers.items():
            if uuid in busy:
                continue
            held = consumers.get(uuid, {})
            if server['host'] is None:
                if held:
                    self._wrong(f'Placement: server {uuid} has no host and holds {_held(held)}')
                continue
            move = moving.get(uuid)
            self._side(f'server {uuid}', uuid, uuid, server, trees, consumers, cell, move)
            if move is not None:
                source = {'host': move['source_compute'], 'node': move['source_node']}
                self._side(f"move {move['uuid']}", move['uuid'], uuid, source, trees, consumers, cell, move)

    def _side(self, what: str, consumer: str, owner: str, place: dict[str, Any], trees: dict[str, dict[str, str]],
              consumers: dict[str, dict[str, dict[str, int]]], cell: dict[str, list[dict]],
              move: dict[str, Any] | None) -> None:
        """One consumer against the devices that its side of the server has."""
        held, tree = consumers.get(consumer, {}), trees.get(place['node'], {})
        if not held:
            self._wrong(f"Placement: {what} is on {place['host']} and holds nothing")
            return
        elsewhere = [provider for provider in held if provider not in tree]
        if elsewhere:
            self._wrong(f"Placement: {what} is on {place['host']} and holds {', '.join(elsewhere)} elsewhere")
        if not any(tree.values()) or (move is not None and move['source_compute'] == move['dest_compute']):
            return
        reported = {address for address in tree.values() if address}
        owned = sorted(_provider_address(device) for device in cell['devices']
                       if device['instance_uuid'] == owner and device['host'] == place['host']
                       and _provider_address(device) in reported)
        allocated = sorted(tree[provider] for provider in held if tree.get(provider))
        if sorted(set(owned)) != allocated:
            self._wrong(f'Placement: {what} holds devices {allocated}, its rows say {owned}')


def _provider_address(device: dict[str, Any]) -> str:
    """VFs are counted on their PF's provider."""
    parent = device['parent_addr'] if device['dev_type'] in ('type-VF', 'vdpa') else None
    return (parent or device['address']).lower()


def _held(held: dict[str, dict[str, int]]) -> str:
    return ', '.join(f'{provider} {amounts}' for provider, amounts in held.items())
