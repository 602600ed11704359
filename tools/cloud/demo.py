"""``make demo``: GPU servers booted and resized with the real ``openstack`` command, every result checked.

Each command is printed before it runs. The first result that is not as it should be ends the demo with exit code 1;
the cloud stays up either way.
"""
from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.cloud import control, databases, http, identity, render
from tools.cloud.layout import CloudError, Layout
from tools.cloud.process import child_environment
from tools.cloud.services import Cloud

ALIAS = 'QuadroM4000-video'
GPU = ('10de', '13f1')
SERVERS = ('demo-gpu-1', 'demo-gpu-2')
# name: vCPUs, MiB of memory, GPUs. Both have a disk of 16 GB.
FLAVORS = {'tmp1': (8, 32768, 1), 'tmp2': (16, 65536, 2)}
STATUS_WITHIN = 90.0
# Directories of instances_path that are the host's own and not a server's.
OWN_DIRECTORIES = ('_base', 'locks', 'snapshots')


@dataclass(frozen=True)
class Guest:
    """What the domain XML of a server says: vCPUs, memory in MiB, PCI addresses of its host devices, sorted."""

    vcpus: int
    memory: int
    devices: tuple[str, ...]


def read_guest(text: str) -> Guest:
    """The parts of a libvirt domain XML that the demo checks."""
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
    """``0000:08:00.0`` from the attributes of an address element (hexadecimal with 0x, or decimal)."""
    domain, bus, slot, function = (int(part[name], 0) for name in ('domain', 'bus', 'slot', 'function'))
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'


class Demo:
    """The scenario; a method a scene."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.layout = cloud.layout
        self.checks = 0

    def check(self, held: bool, text: str) -> None:
        """Print one checked fact; end the demo when it doesn't hold."""
        if not held:
            raise CloudError(f'NOT SO: {text}')
        self.checks += 1
        control.say(f'    ok: {text}')

    def cli(self, *arguments: str, admin: bool = False, quiet: bool = False) -> str:
        """Run ``openstack`` as the demo user (or the administrator); gives back what it printed."""
        name = 'kilonova-admin' if admin else 'kilonova-demo'
        control.say(f'\n$ openstack --os-cloud {name} {shlex.join(arguments)}')
        env = child_environment(self.layout, 'demo', {'OS_CLIENT_CONFIG_FILE': str(self.layout.clouds)})
        done = subprocess.run([self.layout.bin('openstack'), '--os-cloud', name, *arguments], env=env, text=True,
                              capture_output=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise CloudError(f'openstack ended with {done.returncode}:\n{done.stdout}{done.stderr}')
        if not quiet and done.stdout.strip():
            control.say(done.stdout.rstrip())
        return done.stdout

    def rows(self, *arguments: str, admin: bool = False) -> Any:
        """The same with JSON output, parsed and not printed."""
        return json.loads(self.cli(*arguments, '-f', 'json', admin=admin, quiet=True))

    def server(self, name: str) -> dict[str, Any]:
        """A server as the administrator sees it: with its host."""
        row: dict[str, Any] = self.rows('server', 'show', name, '-c', 'id', '-c', 'status', '-c', 'fault',
                                        '-c', 'OS-EXT-SRV-ATTR:host', admin=True)
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
        path = self.layout.instances(host) / identifier / 'libvirt.xml'
        control.say(f'    reading {self.layout.shown(path)}')
        return read_guest(path.read_text())

    def devices(self) -> list[dict[str, Any]]:
        """All GPUs of the demo's kind, as the database has them."""
        control.say('\n$ kilonova-manage pci list --format json')
        rows: list[dict[str, Any]] = json.loads(databases.manage(self.cloud, 'pci', 'list', '--format', 'json'))
        return [row for row in rows if (row['vendor_id'], row['product_id']) == GPU]

    def owned(self, rows: Iterable[dict[str, Any]], identifier: str) -> dict[str, tuple[str, ...]]:
        """Host → addresses of the devices that are allocated to a server."""
        found: dict[str, list[str]] = {}
        for row in rows:
            if row['instance_uuid'] == identifier:
                self.check(row['status'] == 'allocated', f'{row["host"]} {row["address"]} is allocated to the server')
                found.setdefault(row['host'], []).append(row['address'])
        return {host: tuple(sorted(addresses)) for host, addresses in found.items()}

    def clean(self) -> None:
        """Remove what an earlier demo left."""
        left = [row['Name'] for row in self.rows('server', 'list') if row['Name'] in SERVERS]
        if left:
            self.cli('server', 'delete', '--wait', *left)
        flavors = [row['Name'] for row in self.rows('flavor', 'list', '--all', admin=True) if row['Name'] in FLAVORS]
        if flavors:
            self.cli('flavor', 'delete', *flavors, admin=True)

    def make_flavors(self) -> None:
        for name, (vcpus, memory, gpus) in FLAVORS.items():
            self.cli('flavor', 'create', '--vcpus', str(vcpus), '--ram', str(memory), '--disk', '16',
                     '--property', f'pci_passthrough:alias={ALIAS}:{gpus}', name, admin=True, quiet=True)
        for name, (vcpus, memory, gpus) in FLAVORS.items():
            shown = self.rows('flavor', 'show', name)
            self.check((shown['vcpus'], shown['ram'], shown['disk']) == (vcpus, memory, 16),
                       f'{name} has {vcpus} vCPU, {memory} MB and 16 GB')
            self.check(properties(shown['properties']) == {'pci_passthrough:alias': f'{ALIAS}:{gpus}'},
                       f'{name} asks for {gpus} GPU')

    def boot(self, name: str) -> tuple[str, str, Guest]:
        """Boot on tmp1; gives id, host and what the domain XML says."""
        # The client takes "--network none" for a network of that name; this is its way to ask for no ports.
        identifier = self.rows('server', 'create', '--image', 'demo', '--flavor', 'tmp1', '--no-network', '--wait',
                               name, '-c', 'id')['id']
        host = self.await_status(identifier, 'ACTIVE')['OS-EXT-SRV-ATTR:host']
        guest = self.guest(host, identifier)
        self.check((guest.vcpus, guest.memory) == (8, 32768), 'the domain has 8 vCPU and 32 GiB')
        self.check(len(guest.devices) == 1, f'one hostdev: {" ".join(guest.devices)} on {host}')
        rows = self.devices()
        self.check(any(row['host'] == host and row['address'] in guest.devices for row in rows),
                   'its source is a device of the spec')
        self.check(self.owned(rows, identifier) == {host: guest.devices}, 'the database says the same')
        return identifier, host, guest

    def resize(self, identifier: str) -> tuple[str, Guest]:
        """Resize to tmp2 and look at the destination; gives its host and domain."""
        self.cli('server', 'resize', '--flavor', 'tmp2', '--wait', identifier, quiet=True)
        host = self.await_status(identifier, 'VERIFY_RESIZE')['OS-EXT-SRV-ATTR:host']
        guest = self.guest(host, identifier)
        self.check(len(guest.devices) == 2, f'two hostdevs: {" ".join(guest.devices)} on {host}')
        self.check((guest.vcpus, guest.memory) == (16, 65536), 'the domain has 16 vCPU and 64 GiB')
        return host, guest

    def confirm(self, identifier: str, host: str, guest: Guest) -> None:
        self.cli('server', 'resize', 'confirm', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.check(self.owned(self.devices(), identifier) == {host: guest.devices},
                   'the two devices are all it owns; the old one is free')

    def revert(self, identifier: str, host: str, before: Guest) -> None:
        self.cli('server', 'resize', 'revert', identifier)
        row = self.await_status(identifier, 'ACTIVE')
        self.check(row['OS-EXT-SRV-ATTR:host'] == host, f'it is on {host} again')
        self.check(self.guest(host, identifier) == before, f'one hostdev, the original one: {before.devices[0]}')
        self.check(self.owned(self.devices(), identifier) == {host: before.devices}, 'the database says the same')

    def stop_and_start(self, identifier: str, host: str, before: Guest) -> None:
        self.cli('server', 'stop', identifier)
        self.await_status(identifier, 'SHUTOFF')
        self.cli('server', 'start', identifier)
        self.await_status(identifier, 'ACTIVE')
        self.check(self.guest(host, identifier) == before, 'the same devices after stop and start')

    def tell_story(self, identifier: str) -> None:
        events = self.rows('server', 'event', 'list', identifier)
        story = [row['Action'] for row in events]
        control.say(f'    {" <- ".join(story)}')
        self.check({'create', 'resize', 'confirmResize'} <= set(story), 'the events tell create, resize and confirm')
        request = next(row['Request ID'] for row in events if row['Action'] == 'resize')
        self.cli('server', 'event', 'show', identifier, request)

    def delete_all(self, *names: str) -> None:
        """Delete and see that everything was given back at once."""
        self.cli('server', 'delete', '--wait', *names)
        rows = self.devices()
        busy = [row['address'] for row in rows if row['status'] != 'available' or row['instance_uuid']]
        self.check(len(rows) > 0 and not busy, f'all {len(rows)} GPUs are available')
        for host in self.cloud.hosts:
            left = sorted(path.name for path in self.layout.instances(host).iterdir()
                          if path.is_dir() and path.name not in OWN_DIRECTORIES)
            self.check(not left, f'{host} keeps no instance directory')
        self.check(not allocations(self.cloud), 'Placement keeps no allocation')
        control.say('\n$ kilonova-manage audit')
        report = databases.manage(self.cloud, 'audit')
        if report.strip():
            control.say(report.rstrip())
        self.check(True, 'the audit finds database, Placement, domains and files in agreement')

    def play(self) -> None:
        scenes: list[tuple[str, Callable[[], None]]] = [
            ('What an earlier demo left is removed', self.clean),
            ('Two flavors: one GPU and two', self.make_flavors),
            ('Boot with one GPU, resize to two, confirm', self._first_server),
            ('Boot another, resize, revert; stop and start', self._second_server),
            ('Delete both: everything is given back', lambda: self.delete_all(*SERVERS)),
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


def properties(shown: object) -> dict[str, str]:
    """A flavor's properties out of the CLI's JSON: an object, or the ``k='v', …`` text of older releases."""
    if isinstance(shown, dict):
        return {str(key): str(value) for key, value in shown.items()}
    pairs = (part.split('=', 1) for part in str(shown).split(', ') if '=' in part)
    return {key: value.strip("'") for key, value in pairs}


def allocations(cloud: Cloud) -> dict[str, list[str]]:
    """Resource provider → consumers that hold something of it, asked of Placement."""
    base = render.url(cloud.ports, 'placement')
    keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])
    found = {}
    for provider in http.call('GET', f'{base}/resource_providers', token=keystone.token).data['resource_providers']:
        held = http.call('GET', f'{base}/resource_providers/{provider["uuid"]}/allocations', token=keystone.token).data
        if held['allocations']:
            found[provider['name']] = sorted(held['allocations'])
    return found


def run(layout: Layout, *, hosts: Path, extra: Path | None) -> int:
    """Bring the cloud up, play the scenario, say how to go on. 0 only if everything held."""
    began = time.monotonic()
    cloud = control.up(layout, hosts=hosts, extra=extra)
    demo = Demo(cloud)
    try:
        demo.play()
    except CloudError as error:
        control.say(f'\n{error}\n\ndemo failed; the cloud is still up: make logs shows what it did, make down ends it')
        return 1
    control.say(f'\ndemo passed: {demo.checks} checks in {time.monotonic() - began:.0f} s. The cloud is still up.\n'
                f'go on:  export OS_CLIENT_CONFIG_FILE={layout.clouds} OS_CLOUD=kilonova-demo\n'
                f'        {layout.bin("openstack")} server create --image demo --flavor tmp1 --no-network mine\n'
                'stop:   make down')
    return 0
