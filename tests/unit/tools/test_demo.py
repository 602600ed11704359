"""The demo: its readers of what the cloud wrote, and the whole scenario on a cloud in memory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from tools.cloud import __main__ as command
from tools.cloud import control, demo
from tools.cloud.layout import CloudError, Layout
from tools.cloud.process import Record
from tools.cloud.services import Cloud, Service

DOMAIN = """
<domain type='qemu'>
  <memory unit='KiB'>67108864</memory>
  <vcpu placement='static'>16</vcpu>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x88' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0' bus='8' slot='0' function='0'/></source>
    </hostdev>
    <hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>
  </devices>
</domain>
"""


def test_guest_is_read_from_the_domain():
    assert demo.read_guest(DOMAIN) == demo.Guest(16, 65536, ('0000:08:00.0', '0000:88:00.0'))


def test_memory_units():
    assert demo.read_guest("<domain><memory unit='GiB'>32</memory><vcpu>8</vcpu></domain>").memory == 32768


@pytest.mark.parametrize(
    'shown',
    [
        {'pci_passthrough:alias': 'QuadroM4000-video:2'},
        "pci_passthrough:alias='QuadroM4000-video:2'",
    ],
)
def test_flavor_properties_of_old_and_new_clients(shown):
    assert demo.properties(shown) == {'pci_passthrough:alias': 'QuadroM4000-video:2'}


def row(
    binary: str,
    host: str,
    *,
    state: str = 'up',
    at: str | None = '2026-01-01T00:00:10.000000',
    forced_down: bool = False,
) -> dict[str, Any]:
    return {'binary': binary, 'host': host, 'state': state, 'updated_at': at, 'forced_down': forced_down}


# 2026-01-01T00:00:09Z, one second before the rows above.
STARTED = 1767225609.0


@pytest.mark.parametrize(
    ('rows', 'says', 'missing'),
    [
        ([row('nova-compute', 'gpu1')], True, []),
        ([row('nova-compute', 'gpu1')], False, ['compute-gpu1']),
        ([row('nova-compute', 'gpu2')], True, ['compute-gpu1']),
        ([row('nova-compute', 'gpu1', state='down')], True, ['compute-gpu1']),
        ([row('nova-compute', 'gpu1', state='down', forced_down=True)], True, []),
        ([row('nova-compute', 'gpu1', state='down', forced_down=True)], False, ['compute-gpu1']),
        ([row('nova-compute', 'gpu1', at=None)], True, ['compute-gpu1']),
        ([row('nova-compute', 'gpu1', at='2026-01-01T00:00:08.000000')], True, ['compute-gpu1']),
        ([], True, ['compute-gpu1']),
    ],
)
def test_a_compute_counts_as_up_once_it_serves_and_reported_after_its_start(monkeypatch, rows, says, missing):
    service = Service('compute-gpu1', ('x',), reports=('nova-compute', 'gpu1'))
    monkeypatch.setattr(control.process, 'running', lambda layout, name: Record(1, 's', 'd', STARTED))
    monkeypatch.setattr(control, 'serves', lambda cloud, name: says)

    class Cloud:
        layout = None

    assert control.silent(Cloud, [service], rows) == missing


HOSTS = {
    'gpu1': ('0000:08:00.0', '0000:09:00.0', '0000:88:00.0', '0000:89:00.0'),
    'gpu2': ('0000:08:00.0', '0000:09:00.0', '0000:88:00.0', '0000:89:00.0'),
}
XML = "<hostdev type='pci'><source><address domain='{}' bus='0x{}' slot='0x{}' function='0x{}'/></source></hostdev>"


class OpenStack:
    """A cloud in memory: answers ``openstack`` and ``kilonova-manage`` and what the demo asks Placement.

    ``leaks``: what a delete forgets to give back; ``at_work``: how many audits see the work of a delete in flight;
    ``pack``: the scheduler prefers the fuller host.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.devices = {(host, address): None for host, addresses in HOSTS.items() for address in addresses}
        self.servers: dict[str, dict] = {}
        self.flavors: dict[str, dict] = {}
        self.migrations: list[dict] = []
        self.allocations: dict[str, list[str]] = {}
        self.ran: list[str] = []
        self.now = 0.0
        self.in_flight: dict[str, float] = {}
        self.disagreement = ''
        self.leaks: set[str] = set()
        self.at_work = 0.0
        self.pack = False
        self.ports_are = ''
        self.volumes: dict[str, dict] = {}
        self.volumes_are = ''
        self.silent: tuple[str, ...] = ()
        for host in HOSTS:
            layout.instances(host).mkdir(parents=True)

    # -- what the demo calls --------------------------------------------------------------------------------------
    def run(self, argv, *, timeout=None, **_):
        words = tuple(argv[3:])
        self.ran.append(' '.join(words))
        if self.silent and words[: len(self.silent)] == self.silent:
            raise subprocess.TimeoutExpired(argv, timeout)
        for length in (3, 2):
            answer = getattr(self, '_'.join(words[:length]).replace('-', '_'), None)
            if answer is not None:
                try:
                    return subprocess.CompletedProcess(argv, 0, json.dumps(answer(words[length:])), '')
                except LookupError as error:
                    return subprocess.CompletedProcess(argv, 1, '', str(error))
        raise AssertionError(f'the fake has no {words}')

    def manage(self, _, *arguments):
        if arguments[0] == 'device':
            return json.dumps(
                [
                    {
                        'host': host,
                        'address': address,
                        'vendor_id': '10de',
                        'product_id': '13f1',
                        'status': 'allocated' if owner else 'available',
                        'instance_uuid': owner,
                    }
                    for (host, address), owner in self.devices.items()
                ]
            )
        if self.disagreement:
            raise CloudError(f'kilonova-manage audit ended with 1:\n{self.disagreement}')
        flying = [line for line, until in self.in_flight.items() if until > self.now]
        return ''.join(f'in flight: {line}\n' for line in flying) + 'checked: 0 disagreements\n'

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    # -- the command line -----------------------------------------------------------------------------------------
    def flavor_list(self, _):
        return [{'Name': name, **row} for name, row in self.flavors.items()]

    def flavor_create(self, words):
        option = dict(zip(words[:-1:2], words[1::2], strict=False))
        key, _, value = option['--property'].partition('=')
        self.flavors[words[-1]] = {
            'VCPUs': int(option['--vcpus']),
            'RAM': int(option['--ram']),
            'Disk': int(option['--disk']),
            'Is Public': True,
            'Properties': {key: value},
        }

    def flavor_delete(self, words):
        for name in words:
            del self.flavors[name]

    def flavor_show(self, words):
        row = self.flavors[words[0]]
        return {'vcpus': row['VCPUs'], 'ram': row['RAM'], 'disk': row['Disk'], 'properties': row['Properties']}

    def server_list(self, words):
        return [
            {'ID': row['id'], 'Name': row['name']}
            for row in self.servers.values()
            if row['own'] or '--all-projects' in words
        ]

    def server_create(self, words):
        name = words[words.index('--wait') + 1]
        return {'id': self.boot(name, self.choose(1))}

    def port_list(self, words):
        row = next((row for row in self.servers.values() if row['id'] == words[1]), None)
        if row is None and self.ports_are != 'kept':
            return []
        return [
            {
                'ID': 'p',
                'Fixed IP Addresses': [{'subnet_id': 's', 'ip_address': '10.2.0.9'}],
                'Status': 'DOWN' if self.ports_are == 'down' else 'ACTIVE',
            }
        ]

    def port_show(self, _):
        (row,) = [row for row in self.servers.values() if row['name'] == demo.NETWORKED]
        return {'binding_host_id': 'gpu9' if self.ports_are == 'left behind' else row['host']}

    def volume_list(self, words):
        return [{'ID': name} for name, row in self.volumes.items() if row['name'] == words[1]]

    def volume_create(self, words):
        self.volumes['v'] = {'name': words[2], 'asked': 0, 'server': None}
        return {'id': 'v'}

    def volume_show(self, words):
        """Each is made when it is asked for a second time."""
        row = self.volumes[words[0]]
        row['asked'] += 1
        if self.volumes_are == 'broken' or row['asked'] == 1:
            return {'status': 'error' if self.volumes_are == 'broken' else 'creating', 'attachments': []}
        if row['server'] is None:
            return {'status': 'available', 'attachments': [{}] if self.volumes_are == 'kept' else []}
        host = 'gpu9' if self.volumes_are == 'left behind' else self.find(row['server'])['host']
        return {'status': 'in-use', 'attachments': [{'server_id': row['server'], 'host_name': host}]}

    def server_add_volume(self, words):
        self.volumes[words[1]]['server'] = words[0]

    def server_remove_volume(self, words):
        assert self.volumes[words[1]]['server'] == words[0]
        self.volumes[words[1]]['server'] = None

    def volume_delete(self, words):
        assert self.volumes.pop(words[0])['server'] is None

    def server_show(self, words):
        row = self.find(words[0])
        if 'addresses' in words:
            return {'addresses': {'private': ['10.2.0.9']}}
        return {'id': row['id'], 'status': row['status'], 'fault': None, 'OS-EXT-SRV-ATTR:host': row['host']}

    def server_resize(self, words):
        row = self.find(words[-1])
        self.move(row, self.choose(2, row['host']), 2)
        row['story'].append('resize')

    def server_migrate(self, words):
        row, host = self.find(words[-1]), words[words.index('--host') + 1]
        assert host != row['host']
        self.move(row, host, len(self.held(row)))
        row['story'].append('migrate')

    def server_resize_confirm(self, words):
        row = self.find(words[0])
        for device in row['source']['devices']:
            self.devices[device] = None
        self.end_move(row, 'confirmed')

    def server_resize_revert(self, words):
        row = self.find(words[0])
        for device in self.held(row):
            self.devices[device] = None
        shutil.rmtree(self.layout.instances(row['host']) / row['id'])
        row |= {name: row['source'][name] for name in ('host', 'gpus')}
        self.end_move(row, 'reverted')

    def server_stop(self, words):
        self.find(words[0])['status'] = 'SHUTOFF'

    def server_start(self, words):
        self.find(words[0])['status'] = 'ACTIVE'

    def server_event_list(self, words):
        return [{'Action': action, 'Request ID': f'req-{action}'} for action in self.find(words[0])['story']]

    def server_event_show(self, words):
        return {}

    def server_migration_list(self, _):
        return self.migrations

    def server_delete(self, words):
        for name in words[1:]:
            row = self.find(name)
            if 'device' not in self.leaks:
                self.devices = {device: None if owner == row['id'] else owner for device, owner in self.devices.items()}
            if 'directory' not in self.leaks:
                shutil.rmtree(self.layout.instances(row['host']) / row['id'])
            if 'allocation' not in self.leaks:
                self.allocations = {
                    provider: left
                    for provider, consumers in self.allocations.items()
                    if (left := [one for one in consumers if one != row['id']])
                }
            if 'migration' in self.leaks:
                self.migrations[-1]['Status'] = 'finished'
            self.in_flight[f'release of {row["id"]}'] = self.now + self.at_work
            del self.servers[row['id']]

    # -- what they are made of ------------------------------------------------------------------------------------
    def find(self, name):
        return next(row for row in self.servers.values() if name in (row['id'], row['name']))

    def free(self, host):
        return [device for device, owner in self.devices.items() if device[0] == host and owner is None]

    def held(self, row):
        return [device for device, owner in self.devices.items() if owner == row['id'] and device[0] == row['host']]

    def choose(self, gpus, source=None):
        """Most free GPUs first, or least: what has too few of them is no host."""
        hosts = sorted(
            (host for host in HOSTS if host != source and len(self.free(host)) >= gpus),
            key=lambda host: len(self.free(host)),
            reverse=not self.pack,
        )
        if not hosts:
            raise LookupError('No valid host was found.')
        return hosts[0]

    def boot(self, name, host, gpus=1, *, own=True):
        """A server that runs; gives its id."""
        identifier = f'id-{len(self.servers)}-{name}'
        row = {'id': identifier, 'name': name, 'host': host, 'status': 'ACTIVE', 'own': own, 'story': ['create']}
        self.servers[identifier] = row
        self.settle(row, host, gpus)
        self.allocations.setdefault(host, []).append(identifier)
        return identifier

    def settle(self, row, host, gpus):
        taken = self.free(host)[:gpus]
        for device in taken:
            self.devices[device] = row['id']
        row |= {'host': host, 'gpus': gpus}
        parts = [re.fullmatch(r'(\w+):(\w+):(\w+)\.(\w+)', address).groups() for _, address in taken]
        directory = self.layout.instances(host) / row['id']
        directory.mkdir(exist_ok=True)
        (directory / 'libvirt.xml').write_text(
            f"<domain><memory unit='GiB'>{32 * gpus}</memory><vcpu>{8 * gpus}</vcpu><devices>"
            f'{"".join(XML.format(*part) for part in parts)}</devices></domain>'
        )

    def move(self, row, host, gpus):
        row['source'] = {'host': row['host'], 'gpus': row['gpus'], 'devices': self.held(row)}
        if len(self.free(host)) < gpus:
            raise LookupError('No valid host was found.')
        self.migrations.append({'UUID': f'm-{len(self.migrations)}', 'Status': 'finished', 'Server UUID': row['id']})
        self.settle(row, host, gpus)
        row['status'] = 'VERIFY_RESIZE'

    def end_move(self, row, status):
        if status == 'confirmed':
            shutil.rmtree(self.layout.instances(row['source']['host']) / row['id'])
            row['story'].append('confirmResize')
        self.migrations[-1]['Status'] = status
        row['status'] = 'ACTIVE'

    def state(self):
        """Everything that the demo has to leave as it was."""
        directories = {host: sorted(path.name for path in self.layout.instances(host).iterdir()) for host in HOSTS}
        return json.dumps(
            [list(self.devices.values()), directories, self.allocations, list(self.servers), list(self.volumes)]
        )


@pytest.fixture
def openstack(tmp_path, monkeypatch):
    layout = Layout(
        var=tmp_path / 'var',
        venv=tmp_path,
        services_venv=tmp_path,
        tempest_venv=tmp_path,
        cyborg_venv=tmp_path,
        neutron_venv=tmp_path,
        cinder_venv=tmp_path,
    )
    fake = OpenStack(layout)
    cloud = Cloud(layout, {}, {}, dict.fromkeys(HOSTS, tmp_path))
    monkeypatch.setattr(demo.subprocess, 'run', fake.run)
    monkeypatch.setattr(demo.databases, 'manage', fake.manage)
    monkeypatch.setattr(demo, 'allocations', lambda _: json.loads(json.dumps(fake.allocations)))
    monkeypatch.setattr(demo, 'time', fake)
    monkeypatch.setattr(
        control, 'up', lambda layout, hosts, extra, network, volume: replace(cloud, network=network, volume=volume)
    )
    return fake


def play(openstack: OpenStack, *, network: bool = False, volume: bool = False) -> int:
    return demo.run(openstack.layout, hosts=openstack.layout.var, extra=None, network=network, volume=volume)


def test_the_demo_gives_everything_back(openstack):
    before = openstack.state()
    assert play(openstack) == 0
    assert openstack.state() == before
    assert not [line for line in openstack.ran if line.startswith('server migrate')]


def test_the_demo_has_a_scene_on_a_network(openstack):
    before = openstack.state()
    assert play(openstack, network=True) == 0
    assert openstack.state() == before
    created = [line for line in openstack.ran if line.startswith('server create')]
    assert ['--network private' in line for line in created] == [False, False, True]


def test_the_demo_has_a_scene_with_a_volume(openstack):
    before = openstack.state()
    assert play(openstack, volume=True) == 0
    assert openstack.state() == before
    openstack.volume_create(('--size', '1', demo.VOLUME))
    assert play(openstack, volume=True) == 0
    assert openstack.state() == before, 'what an earlier one left goes, too'


@pytest.mark.parametrize(
    ('wrong', 'text'),
    [
        ('broken', 'volume v is available: error'),
        ('left behind', 'the volume is attached to it on gpu'),
        ('kept', 'Cinder keeps no attachment of it'),
    ],
)
def test_a_volume_that_is_not_as_it_should_be_fails_the_demo(openstack, capsys, wrong, text):
    openstack.volumes_are = wrong
    assert play(openstack, volume=True) == 1
    assert text in capsys.readouterr().out


def test_the_command_says_which_services_there_are(openstack, monkeypatch):
    for more, scenes in ((), 6), (('--network',), 7), (('--network', '--volume'), 8):
        told: list[str] = []
        monkeypatch.setattr(control, 'say', told.append)
        assert command.main(['--var', str(openstack.layout.var), 'demo', *more]) == 0
        assert len([text for text in told if '=== ' in text]) == scenes


@pytest.mark.parametrize('wrong', ['kept', 'left behind', 'down'])
def test_a_port_that_is_not_as_it_should_be_fails_the_demo(openstack, capsys, wrong):
    openstack.ports_are = wrong
    assert play(openstack, network=True) == 1
    assert {
        'kept': 'Neutron keeps no port of it',
        'left behind': 'it is bound to gpu',
        'down': 'one port, which is ACTIVE',
    }[wrong] in capsys.readouterr().out


def test_the_demo_plays_again_beside_the_server_that_it_advises_to_make(openstack, capsys):
    assert play(openstack) == 0
    openstack.boot('mine', 'gpu1')
    before, first = openstack.state(), len(openstack.ran)
    assert play(openstack) == 0, capsys.readouterr().out
    assert openstack.state() == before
    again = openstack.ran[first:]
    assert not [line for line in again if line.startswith(('flavor create', 'flavor delete'))]
    assert not [line for line in again if line.startswith('server delete') and 'mine' in line]


@pytest.mark.parametrize('pack', [False, True])
@pytest.mark.parametrize('taken', [(0, 1), (1, 0), (1, 1), (2, 0), (0, 2), (2, 1), (1, 2), (3, 0), (0, 3)])
def test_five_free_gpus_are_enough_wherever_they_are_and_whatever_the_scheduler_prefers(openstack, capsys, taken, pack):
    openstack.pack = pack
    for host, gpus in zip(HOSTS, taken, strict=True):
        if gpus:
            openstack.boot(f'on-{host}', host, gpus, own=False)
    before = openstack.state()
    assert play(openstack) == 0, capsys.readouterr().out
    assert openstack.state() == before


@pytest.mark.parametrize('taken', [(4, 0), (0, 4), (2, 2), (1, 3), (4, 4)])
def test_too_few_free_gpus_are_refused_before_anything_is_made(openstack, capsys, taken):
    for host, gpus in zip(HOSTS, taken, strict=True):
        if gpus:
            openstack.boot(f'on-{host}', host, gpus, own=False)
    before = openstack.state()
    assert play(openstack) == 1
    said = capsys.readouterr().out
    for host, gpus in zip(HOSTS, taken, strict=True):
        assert f'{4 - gpus} on {host}' in said
        assert gpus == 0 or f'on-{host} (id-' in said
    assert 'server delete' in said
    assert not [line for line in openstack.ran if line.startswith(('server create', 'flavor create'))]
    assert openstack.state() == before


def test_what_an_earlier_demo_left_is_removed_and_counts_as_free(openstack, capsys):
    openstack.boot('mine', 'gpu1', 2)
    before = openstack.state()
    openstack.boot('demo-gpu-1', 'gpu2', 2)
    openstack.boot('demo-gpu-2', 'gpu1', 2)
    openstack.at_work = 2.0
    assert play(openstack) == 0, capsys.readouterr().out
    assert openstack.state() == before


@pytest.mark.parametrize('others', [0, 1])
@pytest.mark.parametrize(
    ('leak', 'told'),
    [
        ('device', 'GPUs'),
        ('directory', 'instance director'),
        ('allocation', 'Placement'),
        ('migration', 'migration'),
    ],
)
def test_what_is_not_given_back_fails_the_demo(openstack, capsys, leak, told, others):
    if others:
        openstack.boot('mine', 'gpu2')
    openstack.leaks = {leak}
    assert play(openstack) == 1
    assert re.search(f'NOT SO: .*{told}', capsys.readouterr().out)


def test_a_release_that_ends_by_itself_is_waited_for(openstack):
    openstack.at_work = 3.0
    assert play(openstack) == 0


def test_work_that_stays_in_flight_fails_the_demo(openstack, capsys):
    openstack.at_work = 1000.0
    assert play(openstack) == 1
    assert re.search(r'NOT SO: .*in flight.*\n?.*release of id-', capsys.readouterr().out)


def test_an_audit_that_disagrees_fails_the_demo(openstack, capsys):
    delete = openstack.server_delete

    def delete_and_disagree(words):
        openstack.disagreement = 'database: device gpu1 0000:08:00.0 is claimed by nobody'
        return delete(words)

    openstack.server_delete = delete_and_disagree
    assert play(openstack) == 1
    assert openstack.disagreement in capsys.readouterr().out


@pytest.mark.parametrize('trouble', ['in flight', 'disagreement'])
def test_a_cloud_that_is_not_at_rest_is_refused(openstack, capsys, trouble):
    text = 'resize of id-7'
    if trouble == 'in flight':
        openstack.in_flight[text] = 1000.0
    else:
        openstack.disagreement = text
    assert play(openstack) == 1
    assert text in capsys.readouterr().out
    assert not [line for line in openstack.ran if line.startswith('server create')]


def test_a_server_that_is_about_to_boot_is_waited_for(openstack):
    openstack.in_flight['boot of id-7'] = 3.0
    assert play(openstack) == 0


def test_a_flavor_that_is_not_as_wanted_is_made_anew(openstack):
    assert play(openstack) == 0
    openstack.flavors['tmp2']['RAM'] = 1
    first = len(openstack.ran)
    assert play(openstack) == 0
    assert openstack.flavors['tmp2']['RAM'] == 65536
    assert [line for line in openstack.ran[first:] if line.startswith('flavor delete')] == ['flavor delete tmp2']


def test_a_command_that_does_not_end_fails_the_demo(openstack, capsys):
    openstack.silent = ('server', 'resize')
    assert play(openstack) == 1
    said = capsys.readouterr().out
    assert re.search(
        r'NOT SO: openstack --os-cloud kilonova-demo server resize --flavor tmp2 --wait \S+ ends within '
        '300 s',
        said,
    )
    assert 'demo failed' in said


@pytest.mark.parametrize(
    ('free', 'servers', 'hosts'),
    [
        ({'a': 4, 'b': 4}, 2, ['a', 'b']),
        ({'a': 3, 'b': 4}, 2, ['a', 'b']),
        ({'a': 1, 'b': 4}, 1, ['a']),
        ({'a': 1, 'b': 4}, 2, ['a']),
        ({'a': 2, 'b': 2}, 2, []),
        ({'a': 0, 'b': 4}, 1, []),
        ({'a': 1, 'b': 1, 'c': 2}, 1, ['a', 'b']),
        # One host: a resize stays on it, beside the device that the server has.
        ({'a': 5}, 2, ['a']),
        ({'a': 4}, 2, []),
        ({}, 1, []),
    ],
)
def test_hosts_from_which_the_resizes_find_room(free, servers, hosts):
    assert demo.starts(free, servers) == hosts
