"""``make demo``: GPU servers booted and resized with the real ``openstack`` command, every result checked.

Each command is printed before it runs. The first result that is not as it should be ends the demo with exit code 1;
the cloud stays up either way. Other servers keep what they have: what the demo gives back is compared with what was
taken before it, and where these leave too few GPUs free, it doesn't begin.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.cloud import control, databases, http, identity, neutron, render
from tools.cloud.layout import CloudError, Layout
from tools.cloud.process import child_environment
from tools.cloud.services import Cloud

ALIAS = 'QuadroM4000-video'
GPU = ('10de', '13f1')
SERVERS = ('demo-gpu-1', 'demo-gpu-2')
# The one on a network, where the cloud has the network service.
NETWORKED = 'demo-net-1'
# The one with a volume, where the cloud has the volume service, and that volume.
STORED, VOLUME = 'demo-vol-1', 'demo-volume-1'
# name: vCPUs, MiB of memory, GPUs. Both have a disk of 16 GB.
FLAVORS = {'tmp1': (8, 32768, 1), 'tmp2': (16, 65536, 2)}
STATUS_WITHIN = 90.0
COMMAND_WITHIN = 300.0
# How long releases and the like, which end by themselves, may be seen in flight.
AT_REST_WITHIN = 15.0
# Directories of instances_path that are the host's own and not a server's.
OWN_DIRECTORIES = ('_base', 'locks', 'snapshots')
# How the audit's lines about work under way begin.
IN_FLIGHT = 'in flight: '
# Migrations in other states are under way, or wait to be confirmed.
ENDED_MIGRATIONS = ('confirmed', 'reverted', 'error', 'failed', 'completed', 'cancelled', 'done')


class Refused(CloudError):
    """The cloud is not one in which the demo can play; nothing was made."""


@dataclass(frozen=True)
class Guest:
    """The vCPUs, the memory in MiB and the sorted PCI addresses of host devices in a server's domain XML."""

    vcpus: int
    memory: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Taken:
    """The state of the servers and devices of a cloud at one time.

    It has the status and server of each GPU, the instance directories by host, the consumers by resource provider, and
    the migrations that have not ended.
    """

    devices: dict[tuple[str, str], tuple[str, str | None]]
    directories: dict[str, list[str]]
    allocations: dict[str, list[str]]
    migrations: list[str]


def read_guest(text: str) -> Guest:
    """Return the parts of a libvirt domain XML that the demo checks."""
    domain = ElementTree.fromstring(text)
    addresses = domain.findall("./devices/hostdev[@type='pci']/source/address")
    memory = domain.find('memory')
    if memory is None or memory.text is None:
        raise CloudError('the domain XML has no memory element')
    scale = {'KiB': 1, 'MiB': 1024, 'GiB': 1024 * 1024}[memory.get('unit', 'KiB')]
    return Guest(
        vcpus=int(domain.findtext('vcpu', '0')),
        memory=int(memory.text) * scale // 1024,
        devices=tuple(sorted(pci_address(address.attrib) for address in addresses)),
    )


def pci_address(part: dict[str, str]) -> str:
    """Return an address such as ``0000:08:00.0`` from an element's attributes (hexadecimal with 0x, or decimal)."""
    domain, bus, slot, function = (int(part[name], 0) for name in ('domain', 'bus', 'slot', 'function'))
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'


class Demo:
    """The scenario; a method a scene."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.layout = cloud.layout
        self.checks = 0
        self.before = Taken({}, {}, {}, [])

    def check(self, held: bool, text: str, found: str = '') -> None:
        """Print one checked fact; end the demo when it doesn't hold, with what was found in its place."""
        if not held:
            raise CloudError(f'NOT SO: {text}' + (f': {found}' if found else ''))
        self.checks += 1
        control.say(f'    ok: {text}')

    def cli(self, *arguments: str, admin: bool = False, quiet: bool = False) -> str:
        """Run ``openstack`` as the demo user (or the administrator); gives back what it printed."""
        name = 'kilonova-admin' if admin else 'kilonova-demo'
        command = f'openstack --os-cloud {name} {shlex.join(arguments)}'
        control.say(f'\n$ {command}')
        env = child_environment(self.layout, 'demo', {'OS_CLIENT_CONFIG_FILE': str(self.layout.clouds)})
        try:
            done = subprocess.run(
                [self.layout.bin('openstack'), '--os-cloud', name, *arguments],
                env=env,
                text=True,
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=COMMAND_WITHIN,
            )
        except subprocess.TimeoutExpired:
            raise CloudError(f'NOT SO: {command} ends within {COMMAND_WITHIN:.0f} s') from None
        if done.returncode:
            raise CloudError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
        if not quiet and done.stdout.strip():
            control.say(done.stdout.rstrip())
        return done.stdout

    def rows(self, *arguments: str, admin: bool = False) -> Any:
        """Run an openstack command with JSON output, which is parsed and not printed."""
        return json.loads(self.cli(*arguments, '-f', 'json', admin=admin, quiet=True))

    def server(self, name: str) -> dict[str, Any]:
        """Return a server as the administrator sees it: with its host."""
        row: dict[str, Any] = self.rows(
            'server', 'show', name, '-c', 'id', '-c', 'status', '-c', 'fault', '-c', 'OS-EXT-SRV-ATTR:host', admin=True
        )
        return row

    def await_status(self, identifier: str, wanted: str) -> dict[str, Any]:
        """Ask until the server has the status; ERROR ends the demo with the fault."""
        deadline = time.monotonic() + STATUS_WITHIN
        while True:
            row = self.server(identifier)
            if row['status'] == wanted:
                return row
            if row['status'] == 'ERROR' or time.monotonic() > deadline:
                raise CloudError(f'NOT SO: server {identifier} is {wanted}: {row["status"]} {row.get("fault") or ""}')
            control.say(f'    {row["status"]}')
            time.sleep(0.5)

    def guest(self, host: str, identifier: str) -> Guest:
        """Return what a server's domain XML on a host says."""
        path = self.layout.instances(host) / identifier / 'libvirt.xml'
        control.say(f'    reading {self.layout.shown(path)}')
        return read_guest(path.read_text())

    def devices(self) -> list[dict[str, Any]]:
        """Return all GPUs of the demo's kind, as the database has them."""
        control.say('\n$ kilonova-manage device list --format json')
        rows: list[dict[str, Any]] = json.loads(databases.manage(self.cloud, 'device', 'list', '--format', 'json'))
        return [row for row in rows if (row['vendor_id'], row['product_id']) == GPU]

    def owned(self, rows: Iterable[dict[str, Any]], identifier: str) -> dict[str, tuple[str, ...]]:
        """Return a dict from hosts to the addresses of the devices that are allocated to a server."""
        found: dict[str, list[str]] = {}
        for row in rows:
            if row['instance_uuid'] == identifier:
                self.check(row['status'] == 'allocated', f'{row["host"]} {row["address"]} is allocated to the server')
                found.setdefault(row['host'], []).append(row['address'])
        return {host: tuple(sorted(addresses)) for host, addresses in found.items()}

    def taken(self, rows: Iterable[dict[str, Any]]) -> Taken:
        """Return what is held now. ``rows`` are the GPUs."""
        return Taken(
            devices={(row['host'], row['address']): (row['status'], row['instance_uuid']) for row in rows},
            directories={
                host: sorted(
                    path.name
                    for path in self.layout.instances(host).iterdir()
                    if path.is_dir() and path.name not in OWN_DIRECTORIES
                )
                for host in self.cloud.hosts
            },
            allocations=allocations(self.cloud),
            # Last, as it takes a second, and the rest is to be given back at once.
            migrations=sorted(
                row['UUID']
                for row in self.rows('server', 'migration', 'list', admin=True)
                if row['Status'] not in ENDED_MIGRATIONS
            ),
        )

    def audit(self) -> tuple[list[str], str]:
        """Run the audit until nothing is in flight and everything agrees, for some seconds at most.

        Returns what is still in flight, and what an audit that fails says.
        """
        deadline = time.monotonic() + AT_REST_WITHIN
        while True:
            control.say('\n$ kilonova-manage audit')
            flying, wrong = [], ''
            try:
                report = databases.manage(self.cloud, 'audit')
            except CloudError as error:
                wrong = str(error)
            else:
                control.say(report.rstrip())
                flying = [line.removeprefix(IN_FLIGHT) for line in report.splitlines() if line.startswith(IN_FLIGHT)]
            if not (flying or wrong) or time.monotonic() > deadline:
                return flying, wrong
            time.sleep(0.5)

    def clean(self) -> None:
        """Remove what an earlier demo left."""
        left = [row['Name'] for row in self.rows('server', 'list') if row['Name'] in (*SERVERS, NETWORKED, STORED)]
        if left:
            self.cli('server', 'delete', '--wait', *left)
        if self.cloud.volume:
            for row in self.rows('volume', 'list', '--name', VOLUME, '-c', 'ID'):
                self.await_volume(row['ID'], 'available')
                self.cli('volume', 'delete', row['ID'])

    def remember(self) -> None:
        """Note what others hold before the demo begins. Raises Refused if that is in motion or leaves too little."""
        flying, wrong = self.audit()
        if flying or wrong:
            raise Refused(
                'the demo needs a cloud at rest, or it cannot tell what it has to give back: '
                + (wrong or f'in flight: {", ".join(flying)}; start it again when this has ended')
            )
        rows = self.devices()
        self.before = self.taken(rows)
        names = {
            row['ID']: row['Name']
            for row in self.rows('server', 'list', '--all-projects', '-c', 'ID', '-c', 'Name', admin=True)
        }
        owners = sorted({row['instance_uuid'] for row in rows if row['instance_uuid']})
        # Where even all GPUs are too few, deleting servers doesn't help; the scene that fails tells.
        if not starts(count_free(rows), len(SERVERS)) and starts(count_free(rows, owners), len(SERVERS)):
            free = ', '.join(f'{count} on {host}' for host, count in count_free(rows).items())
            held = ', '.join(sorted(f'{names.get(owner, "a server")} ({owner})' for owner in owners))
            raise Refused(
                f'too few GPUs are free for the demo: {free}. Its two servers hold up to five at once, and each of '
                f'their resizes needs two on another host. The others belong to {held}. Delete some of these servers '
                f'(openstack --os-cloud kilonova-admin server delete ID) and start the demo again.'
            )
        others = f'{len(names)} other servers' if len(names) != 1 else '1 other server'
        control.say(f'    {others}, {len(rows) - sum(count_free(rows).values())} of {len(rows)} GPUs taken')

    def make_flavors(self) -> None:
        """Create those that are missing or not as wanted; other servers may use them as well."""
        there = {row['Name']: row for row in self.rows('flavor', 'list', '--all', '--long', admin=True)}
        for name, (vcpus, memory, gpus) in FLAVORS.items():
            alias = f'{ALIAS}:{gpus}'
            if row := there.get(name):
                if (row['VCPUs'], row['RAM'], row['Disk'], row['Is Public']) == (
                    vcpus,
                    memory,
                    16,
                    True,
                ) and properties(row['Properties']) == {'pci_passthrough:alias': alias}:
                    continue
                self.cli('flavor', 'delete', name, admin=True)
            self.cli(
                'flavor',
                'create',
                '--vcpus',
                str(vcpus),
                '--ram',
                str(memory),
                '--disk',
                '16',
                '--property',
                f'pci_passthrough:alias={alias}',
                name,
                admin=True,
                quiet=True,
            )
        for name, (vcpus, memory, gpus) in FLAVORS.items():
            shown = self.rows('flavor', 'show', name)
            self.check(
                (shown['vcpus'], shown['ram'], shown['disk']) == (vcpus, memory, 16),
                f'{name} has {vcpus} vCPU, {memory} MB and 16 GB',
            )
            self.check(
                properties(shown['properties']) == {'pci_passthrough:alias': f'{ALIAS}:{gpus}'},
                f'{name} asks for {gpus} GPU',
            )

    def boot(self, name: str) -> tuple[str, str, Guest]:
        """Boot on tmp1; gives id, host and what the domain XML says."""
        # The client takes "--network none" for a network of that name; this is its way to ask for no ports.
        identifier = self.rows(
            'server', 'create', '--image', 'demo', '--flavor', 'tmp1', '--no-network', '--wait', name, '-c', 'id'
        )['id']
        host = self.await_status(identifier, 'ACTIVE')['OS-EXT-SRV-ATTR:host']
        guest, rows = self.look(identifier, host)
        # The scheduler doesn't know that a resize comes, and other servers may leave no room for it elsewhere.
        good = starts(count_free(rows, [identifier]), len(SERVERS) - SERVERS.index(name))
        if good and host not in good:
            host = good[0]
            self.migrate(identifier, host)
            guest, _ = self.look(identifier, host)
        return identifier, host, guest

    def look(self, identifier: str, host: str) -> tuple[Guest, list[dict[str, Any]]]:
        """Check that a server on tmp1 has what it should; return its domain and the rows of all GPUs."""
        guest = self.guest(host, identifier)
        self.check((guest.vcpus, guest.memory) == (8, 32768), 'the domain has 8 vCPU and 32 GiB')
        self.check(len(guest.devices) == 1, f'one hostdev: {" ".join(guest.devices)} on {host}')
        rows = self.devices()
        self.check(
            any(row['host'] == host and row['address'] in guest.devices for row in rows),
            'its source is a device of the spec',
        )
        self.check(self.owned(rows, identifier) == {host: guest.devices}, 'the database says the same')
        return guest, rows

    def migrate(self, identifier: str, host: str) -> None:
        """Bring a server to the host beside which its resize finds two GPUs."""
        control.say(f'    beside the other servers a resize finds two GPUs only if it starts on {host}')
        self.cli('server', 'migrate', '--host', host, '--wait', identifier, admin=True)
        self.await_status(identifier, 'VERIFY_RESIZE')
        self.cli('server', 'resize', 'confirm', identifier)
        row = self.await_status(identifier, 'ACTIVE')
        self.check(row['OS-EXT-SRV-ATTR:host'] == host, f'it is on {host}')

    def resize(self, identifier: str) -> tuple[str, Guest]:
        """Resize to tmp2 and look at the destination; gives its host and domain."""
        self.cli('server', 'resize', '--flavor', 'tmp2', '--wait', identifier, quiet=True)
        host = self.await_status(identifier, 'VERIFY_RESIZE')['OS-EXT-SRV-ATTR:host']
        guest = self.guest(host, identifier)
        self.check(len(guest.devices) == 2, f'two hostdevs: {" ".join(guest.devices)} on {host}')
        self.check((guest.vcpus, guest.memory) == (16, 65536), 'the domain has 16 vCPU and 64 GiB')
        return host, guest

    def confirm(self, identifier: str, host: str, guest: Guest) -> None:
        """Confirm a resize and check the server."""
        self.cli('server', 'resize', 'confirm', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.check(
            self.owned(self.devices(), identifier) == {host: guest.devices},
            'the two devices are all it owns; the old one is free',
        )

    def revert(self, identifier: str, host: str, before: Guest) -> None:
        """Revert a resize and check that the server is as before."""
        self.cli('server', 'resize', 'revert', identifier)
        row = self.await_status(identifier, 'ACTIVE')
        self.check(row['OS-EXT-SRV-ATTR:host'] == host, f'it is on {host} again')
        self.check(self.guest(host, identifier) == before, f'one hostdev, the original one: {before.devices[0]}')
        self.check(self.owned(self.devices(), identifier) == {host: before.devices}, 'the database says the same')

    def stop_and_start(self, identifier: str, host: str, before: Guest) -> None:
        """Stop and start a server and check that it is as before."""
        self.cli('server', 'stop', identifier)
        self.await_status(identifier, 'SHUTOFF')
        self.cli('server', 'start', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.check(self.guest(host, identifier) == before, 'the same devices after stop and start')

    def tell_story(self, identifier: str) -> None:
        """Print the instance actions of a server, check that the expected ones are among them, and show the resize."""
        events = self.rows('server', 'event', 'list', identifier)
        story = [row['Action'] for row in events]
        control.say(f'    {" <- ".join(story)}')
        self.check({'create', 'resize', 'confirmResize'} <= set(story), 'the events tell create, resize and confirm')
        request = next(row['Request ID'] for row in events if row['Action'] == 'resize')
        self.cli('server', 'event', 'show', identifier, request)

    def delete_all(self, *names: str) -> None:
        """Delete and see that everything was given back at once."""
        self.cli('server', 'delete', '--wait', *names)
        rows, before = self.devices(), self.before
        now = self.taken(rows)
        idle = all(held == ('available', None) for held in before.devices.values())
        self.check(
            len(rows) > 0 and now.devices == before.devices,
            f'all {len(rows)} GPUs are ' + ('available' if idle else 'what they were before'),
            told_apart(before.devices, now.devices),
        )
        for host, kept in before.directories.items():
            self.check(
                now.directories[host] == kept,
                f'{host} keeps no instance directory' + (' but those of other servers' if kept else ''),
                ', '.join(sorted(set(kept) ^ set(now.directories[host]))),
            )
        self.check(
            now.allocations == before.allocations,
            'Placement keeps no allocation' + (' but those of other servers' if before.allocations else ''),
            told_apart(before.allocations, now.allocations),
        )
        self.check(
            now.migrations == before.migrations,
            'no migration is under way',
            ', '.join(sorted(set(now.migrations) ^ set(before.migrations))),
        )
        flying, wrong = self.audit()
        self.check(not wrong, 'the audit finds database, Placement, domains and files in agreement', wrong)
        self.check(not flying, 'no operation is in flight', ', '.join(flying))

    def play(self) -> None:
        """Play all scenes in order."""
        scenes: list[tuple[str, Callable[[], None]]] = [
            ('What an earlier demo left is removed', self.clean),
            ('What other servers hold is remembered', self.remember),
            ('Two flavors: one GPU and two', self.make_flavors),
            ('Boot with one GPU, resize to two, confirm', self._first_server),
            ('Boot another, resize, revert; stop and start', self._second_server),
            ('Delete both: everything is given back', lambda: self.delete_all(*SERVERS)),
            *(
                [('A server on a network: its port goes along with a resize', self._networked_server)]
                if self.cloud.network
                else []
            ),
            *(
                [
                    (
                        'A server with a volume: it is attached, goes along with a resize, and is detached',
                        self._stored_server,
                    )
                ]
                if self.cloud.volume
                else []
            ),
        ]
        for number, (title, scene) in enumerate(scenes, 1):
            control.say(f'\n=== {number}. {title}')
            scene()

    def _first_server(self) -> None:
        identifier, _, _ = self.boot(SERVERS[0])
        host, guest = self.resize(identifier)
        self.confirm(identifier, host, guest)
        self.tell_story(identifier)

    def _second_server(self) -> None:
        identifier, host, before = self.boot(SERVERS[1])
        self.resize(identifier)
        self.revert(identifier, host, before)
        self.stop_and_start(identifier, host, before)

    def _networked_server(self) -> None:
        identifier = self.rows(
            'server',
            'create',
            '--image',
            'demo',
            '--flavor',
            'tmp1',
            '--network',
            neutron.NETWORK,
            '--wait',
            NETWORKED,
            '-c',
            'id',
        )['id']
        before = self.await_status(identifier, 'ACTIVE')['OS-EXT-SRV-ATTR:host']
        port = self.port(identifier, before)
        host, _ = self.resize(identifier)
        self.cli('server', 'resize', 'confirm', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.check(self.port(identifier, host) == port, 'the same port, with the same addresses')
        self.delete_all(NETWORKED)
        self.check(self.ports(identifier) == [], 'Neutron keeps no port of it')

    def ports(self, identifier: str) -> list[dict[str, Any]]:
        """Return the ports of a server as Neutron lists them."""
        found: list[dict[str, Any]] = self.rows(
            'port', 'list', '--device-id', identifier, '-c', 'ID', '-c', 'Fixed IP Addresses', '-c', 'Status'
        )
        return found

    def port(self, identifier: str, host: str) -> tuple[str, tuple[str, ...]]:
        """Check that a server has one port, plugged on its host, and shows its addresses; return its id and these."""
        ports = self.ports(identifier)
        self.check(len(ports) == 1 and ports[0]['Status'] == 'ACTIVE', 'one port, which is ACTIVE', str(ports))
        bound = self.rows('port', 'show', ports[0]['ID'], '-c', 'binding_host_id', admin=True)['binding_host_id']
        self.check(bound == host, f'it is bound to {host}', bound)
        addresses = tuple(one['ip_address'] for one in ports[0]['Fixed IP Addresses'])
        shown = self.rows('server', 'show', identifier, '-c', 'addresses')['addresses']
        self.check(shown == {neutron.NETWORK: list(addresses)}, f'the server shows {", ".join(addresses)}', str(shown))
        return ports[0]['ID'], addresses

    def _stored_server(self) -> None:
        volume = self.rows('volume', 'create', '--size', '1', VOLUME, '-c', 'id')['id']
        identifier = self.rows(
            'server', 'create', '--image', 'demo', '--flavor', 'tmp1', '--no-network', '--wait', STORED, '-c', 'id'
        )['id']
        before = self.await_status(identifier, 'ACTIVE')['OS-EXT-SRV-ATTR:host']
        self.await_volume(volume, 'available')
        self.cli('server', 'add', 'volume', identifier, volume)
        self.is_attached(volume, identifier, before)
        host, _ = self.resize(identifier)
        self.cli('server', 'resize', 'confirm', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.is_attached(volume, identifier, host)
        self.cli('server', 'remove', 'volume', identifier, volume)
        self.check(self.await_volume(volume, 'available') == [], 'Cinder keeps no attachment of it')
        self.delete_all(STORED)
        self.cli('volume', 'delete', volume)

    def await_volume(self, volume: str, wanted: str) -> list[dict[str, Any]]:
        """Ask until a volume has the status; its attachments."""
        deadline = time.monotonic() + STATUS_WITHIN
        while True:
            row = self.rows('volume', 'show', volume, '-c', 'status', '-c', 'attachments', admin=True)
            if row['status'] == wanted:
                return list(row['attachments'])
            if row['status'] == 'error' or time.monotonic() > deadline:
                raise CloudError(f'NOT SO: volume {volume} is {wanted}: {row["status"]}')
            time.sleep(0.5)

    def is_attached(self, volume: str, identifier: str, host: str) -> None:
        """Check that a volume is attached to a server on a host."""
        found = [(one['server_id'], one['host_name']) for one in self.await_volume(volume, 'in-use')]
        self.check(
            found == [(identifier, host)], f'the volume is attached to it on {host}, and nowhere else', str(found)
        )


def count_free(rows: Iterable[Mapping[str, Any]], owners: Collection[str] = ()) -> dict[str, int]:
    """Return a dict from hosts to the number of GPUs that are available, or would be without these servers."""
    free: dict[str, int] = {}
    for row in rows:
        is_free = row['status'] == 'available' or row['instance_uuid'] in owners
        free[row['host']] = free.get(row['host'], 0) + is_free
    return free


def starts(free: Mapping[str, int], servers: int) -> list[str]:
    """Return the hosts on which the next of so many servers may boot, given the free GPUs of each host.

    A server takes one GPU there, and its resize two on another host; whichever the scheduler chooses, the servers after
    it have to find room as well. A single host is one whose servers are resized on it.
    """
    found = []
    for host, count in free.items():
        booted = {**free, host: count - 1}
        ends = [end for end in free if (end != host or len(free) == 1) and booted[end] >= 2]
        if (
            count > 0
            and ends
            and (servers == 1 or all(starts({**free, end: free[end] - 2}, servers - 1) for end in ends))
        ):
            found.append(host)
    return found


def told_apart(before: Mapping[Any, object], now: Mapping[Any, object]) -> str:
    """Return the differences between two dicts as text for a person."""
    return ', '.join(
        f'{key} was {before.get(key)} and is {now.get(key)}'
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def properties(shown: object) -> dict[str, str]:
    """Return a flavor's properties from the CLI's JSON: an object, or the ``k='v', …`` text of older releases."""
    if isinstance(shown, dict):
        return {str(key): str(value) for key, value in shown.items()}
    pairs = (part.split('=', 1) for part in str(shown).split(', ') if '=' in part)
    return {key: value.strip("'") for key, value in pairs}


def allocations(cloud: Cloud) -> dict[str, list[str]]:
    """Ask Placement for the consumers that hold something of each resource provider, by its name."""
    base = render.url(cloud.ports, 'placement')
    keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])
    found = {}
    for provider in http.call('GET', f'{base}/resource_providers', token=keystone.token).data['resource_providers']:
        held = http.call('GET', f'{base}/resource_providers/{provider["uuid"]}/allocations', token=keystone.token).data
        if held['allocations']:
            found[provider['name']] = sorted(held['allocations'])
    return found


def run(layout: Layout, *, hosts: Path, extra: Path | None, network: bool = False, volume: bool = False) -> int:
    """Bring the cloud up, play the scenario, say how to go on. 0 only if everything held."""
    began = time.monotonic()
    cloud = control.up(layout, hosts=hosts, extra=extra, network=network, volume=volume)
    demo = Demo(cloud)
    try:
        demo.play()
    except Refused as error:
        control.say(f'\n{error}\n\nthe demo did not begin; the cloud is still up: make down ends it')
        return 1
    except CloudError as error:
        control.say(f'\n{error}\n\ndemo failed; the cloud is still up: make logs shows what it did, make down ends it')
        return 1
    control.say(
        f'\ndemo passed: {demo.checks} checks in {time.monotonic() - began:.0f} s. The cloud is still up.\n'
        f'go on:  export OS_CLIENT_CONFIG_FILE={layout.clouds} OS_CLOUD=kilonova-demo\n'
        f'        {layout.bin("openstack")} server create --image demo --flavor tmp1 --no-network mine\n'
        'stop:   make down'
    )
    return 0
