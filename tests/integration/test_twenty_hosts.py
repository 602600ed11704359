"""Twenty hosts, two schedulers, many creates at once: each server runs or is told truly why not, and no host is
overrun while the others stand idle."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import session
from keystoneauth1.token_endpoint import Token

from tests.integration.beside import Beside, free_port
from tests.integration.site import ALIAS, MICROVERSION, Site
from tools.cloud import control
from tools.cloud.layout import DEFAULT_HOSTS

HOSTS = 20
CLIENTS = 8
EQUAL = 100
SETTLED_WITHIN = 240.0
# A host of 64 CPUs and 256 GiB like the shipped ones, with a GPU on each of its two NUMA nodes.
_NODE = """<node>
  <cpu><mhz>2600</mhz><model>x86_64</model><nodes>2</nodes><sockets>1</sockets><cores>16</cores><threads>2</threads>\
<active>64</active></cpu>
  <memory>268435456</memory>
  <device><name>computer</name><capability type="system"><hardware><vendor>Kilonova</vendor><version>1</version>
    <serial>{name}</serial><uuid>7c1f0f0e-5d0b-4f6e-9d6a-0a6d3f1b9e{number:02}</uuid></hardware></capability></device>
{devices}</node>
"""
_DEVICE = """  <device><name>pci_0000_{bus:02x}_00_0</name><parent>computer</parent><capability type="pci">
    <class>0x030000</class><domain>0</domain><bus>{bus}</bus><slot>0</slot><function>0</function>
    <product id="0x13f1">GM204GL [Quadro M4000]</product><vendor id="0x10de">NVIDIA Corporation</vendor>
    <iommuGroup number="{bus}"><address domain="0x0000" bus="{bus:#04x}" slot="0x00" function="0x0"/></iommuGroup>
    <numa node="{cell}"/></capability></device>
"""
_SECOND = """[DEFAULT]
host = ctl2
default_log_levels = kilonova.scheduler.manager=DEBUG
[health]
scheduler_port = {port}
"""


def describe(directory: Path) -> None:
    """Descriptions of twenty hosts: the shipped ones, which the cloud runs already, and further ones."""
    directory.mkdir()
    for path in DEFAULT_HOSTS.glob('*.xml'):
        (directory / path.name).symlink_to(path)
    for number in range(1, HOSTS + 1 - len(list(directory.iterdir()))):
        name = f'plain{number:02}'
        devices = ''.join(_DEVICE.format(bus=bus, cell=cell) for cell, bus in enumerate((0x08, 0x88)))
        (directory / f'{name}.xml').write_text(_NODE.format(name=name, number=number, devices=devices))
        (directory / f'{name}.conf').write_text('[pci]\ndevice_spec = {"vendor_id": "10de", "product_id": "13f1"}\n')


@dataclass
class Wide:
    """The cloud of twenty hosts, and how it is asked by several clients at once."""

    site: Site
    second: Beside
    seconds: float

    def sessions(self, number: int) -> list[session.Session]:
        """Clients of the plain project, each with connections of its own that stay open."""
        return [session.Session(auth=Token(self.site.url('api'), self.site.token('demo'))) for _ in range(number)]

    def create(self, client: session.Session, body: Mapping[str, Any]) -> str:
        """A server's id; it is being built."""
        hints = {'os:scheduler_hints': body['hints']} if 'hints' in body else {}
        server = {'name': body['name'], 'flavorRef': body['flavor'], 'imageRef': self.site.image, 'networks': 'none'}
        reply = client.post(
            '/servers',
            json={'server': server, **hints},
            raise_exc=False,
            endpoint_override=self.site.url('api'),
            headers={'OpenStack-API-Version': f'compute {MICROVERSION}'},
        )
        assert reply.status_code == 202, f'{reply.status_code} {reply.text}'
        identifier: str = reply.json()['server']['id']
        return identifier

    def settle(self, servers: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Wait until all have ended; each as the administrator sees it."""
        self._await_none('status=BUILD&limit=1')
        return self.site.settle(servers)

    def asked_of_second(self) -> int:
        """How often the second scheduler was asked."""
        return self.second.log().count('Starting to schedule for instances')

    def end(self) -> None:
        """Delete all servers; nothing is left of any."""
        self.site.at_once(lambda name: self.site.send('DELETE', f'/servers/{name}', user='admin'), self.site.servers())
        self._await_none('limit=1')
        self.site.clean()
        self.site.assert_nothing_held()

    def _await_none(self, which: str) -> None:
        """Wait until no server answers the question, which costs little however many there are."""
        deadline = time.monotonic() + SETTLED_WITHIN
        while self.site.call('GET', f'/servers?all_tenants=1&{which}', user='admin')['servers']:
            assert time.monotonic() < deadline, self.site.tell(self.site.servers())
            time.sleep(0.2)


def narrow(site: Site) -> None:
    """The cloud as the other tests know it; nothing stays of the further hosts and the second scheduler."""
    site.clean()
    site.up()
    for row in site.call('GET', '/os-services', user='admin')['services']:
        if row['host'] == 'ctl2' or (row['binary'] == 'nova-compute' and row['host'] not in site.cloud.hosts):
            site.call('DELETE', f'/os-services/{row["id"]}', user='admin')
    # Which hosts are mapped; those that went would have to be mapped again.
    (site.layout.data('kilonova') / 'mapped').unlink()
    site.audit()


@pytest.fixture(scope='module')
def wide(running_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wide]:
    """Eighteen computes and a scheduler more than the other tests have, all started together."""
    site, directory = running_site, tmp_path_factory.mktemp('twenty')
    describe(directory / 'hosts')
    site.configure('')
    site.up()
    site.clean()
    began = time.monotonic()
    try:
        # The second scheduler afterwards: ``up`` ends what the cloud doesn't know.
        site.cloud = control.up(site.layout, hosts=directory / 'hosts', extra=site.extra)
        assert len(site.cloud.hosts) == HOSTS
        with Beside(
            site, 'kilonova-scheduler', directory=directory, settings=_SECOND.format(port=free_port())
        ) as second:
            second.await_log('Weighers: ')
            # Asked for once, not by each of many clients at the same time.
            assert site.image
            yield Wide(site, second, time.monotonic() - began)
            assert second.terminate() == 0
    finally:
        narrow(site)


# -- what a refusal says ---------------------------------------------------------------------------------------------
@dataclass
class State:
    """How the hosts stand: {host: free GPUs}, {host: free MiB}, {host: servers of the group}."""

    gpus: Counter[str]
    memory: dict[str, int]
    group: Counter[str]


def state_of(site: Site, members: Mapping[str, Mapping[str, Any]]) -> State:
    gpus = Counter(dict.fromkeys(site.cloud.hosts, 0))
    gpus.update(row['host'] for row in site.devices() if row['status'] == 'available' and row['product_id'] == '13f1')
    nodes = site.call('GET', '/os-hypervisors/detail', user='admin', version='2.87')['hypervisors']
    memory = {row['hypervisor_hostname']: row['memory_mb'] - row['memory_mb_used'] for row in nodes}
    return State(
        gpus, memory, Counter(row['OS-EXT-SRV-ATTR:host'] for row in members.values() if row['status'] == 'ACTIVE')
    )


def fewer(has: Mapping[str, int], words: re.Match[str]) -> int:
    """Of how many hosts it is true. Servers only came since it was said: what is too little now may have been more."""
    assert int(words['best']) < int(words['wanted']), words[0]
    return sum(number < int(words['wanted']) for number in has.values())


# {what a refusal may say of hosts: of how many it is true}
REASONS: Mapping[str, Callable[[State, re.Match[str]], int]] = {
    rf'ha(s|ve) fewer than (?P<wanted>\d+) free {ALIAS} \(best: (?P<best>\d+) free\)': lambda state, words: fewer(
        state.gpus, words
    ),
    r'ha(s|ve) less than (?P<wanted>\d+) MiB free memory \(best: (?P<best>\d+) MiB\)': lambda state, words: fewer(
        state.memory, words
    ),
    r'ha(s|ve) too many servers of the server group': lambda state, words: sum(
        number > 0 for number in state.group.values()
    ),
    # Rare: every choice lost its race. What was taken then is still taken.
    r'claimed by other requests at the same time': lambda state, words: sum(
        not state.gpus[host] or state.group[host] > 0 for host in state.memory
    ),
}


def untrue(message: str, state: State) -> list[str]:
    """What a refusal says that isn't so; [] when all of it is true and nothing is left out."""
    told = re.fullmatch(rf'No valid host was found\. {HOSTS} hosts considered: (.*)\.', message)
    if told is None:
        return [f'not in these words: {message}']
    wrong, total = [], 0
    for part in re.split(r', (?=\d+ )', told[1]):
        count, _, said = part.partition(' ')
        total += int(count)
        for reason in said.split(' and '):
            found = [(words, true) for pattern, true in REASONS.items() if (words := re.fullmatch(pattern, reason))]
            if not found or found[0][1](state, found[0][0]) < int(count):
                wrong.append(f'{part}: {state}')
    return wrong + ([] if total == HOSTS else [f'{total} of {HOSTS} hosts: {message}'])


# -- the tests -------------------------------------------------------------------------------------------------------
def mixture(site: Site) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A hundred requests in random order, and the group that some are of."""
    group = site.call('POST', '/os-server-groups', {'server_group': {'name': 'apart', 'policy': 'anti-affinity'}})
    group = group['server_group']
    site.call(
        'PUT', f'/os-quota-sets/{group["project_id"]}', {'quota_set': {'server_group_members': 100}}, user='admin'
    )
    kinds = {
        'flat': (26, site.flavor('twenty-flat')),
        'apart': (22, site.flavor('twenty-flat')),
        'gpu': (24, site.flavor('twenty-gpu', gpus=1)),
        'gpus': (14, site.flavor('twenty-gpus', gpus=2, vcpus=4, ram=4096)),
        'numa': (8, site.flavor('twenty-numa', vcpus=4, ram=2048, specs={'hw:numa_nodes': '2'})),
        'many': (3, site.flavor('twenty-many', gpus=5)),
        'huge': (3, site.flavor('twenty-huge', ram=512 * 1024)),
    }
    requests = [
        {'name': kind, 'flavor': flavor, **({'hints': {'group': group['id']}} if kind == 'apart' else {})}
        for kind, (count, flavor) in kinds.items()
        for _ in range(count)
    ]
    random.shuffle(requests)
    return requests, group


def assert_devices_are_owned_once(site: Site, shown: Mapping[str, Mapping[str, Any]]) -> None:
    """What libvirt gives the servers is what the database says, and none is given twice."""
    given = [
        (row['OS-EXT-SRV-ATTR:host'], address, name)
        for name, row in shown.items()
        if row['status'] == 'ACTIVE'
        for address in site.hostdevs(row['OS-EXT-SRV-ATTR:host'], name)
    ]
    assert sorted(given) == sorted(
        (row['host'], row['address'], row['instance_uuid']) for row in site.devices() if row['status'] == 'allocated'
    )
    assert len({(host, address) for host, address, _ in given}) == len(given)


def test_a_hundred_mixed_creates_of_eight_clients(wide: Wide, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight clients create a hundred servers of several kinds at once on twenty hosts. The policy of the server
    group holds, each device has one owner, and each refusal gives a true reason."""
    site = wide.site
    requests, group = mixture(site)
    before, began = wide.asked_of_second(), time.monotonic()

    def client(number: int, http: session.Session) -> dict[str, str]:
        return {wide.create(http, request): request['name'] for request in requests[number::CLIENTS]}

    kinds: dict[str, str] = {}
    for made in site.at_once(lambda item: client(*item), enumerate(wide.sessions(CLIENTS)), threads=CLIENTS):
        kinds |= made
    asked = time.monotonic() - began
    shown = wide.settle(list(kinds))
    took = time.monotonic() - began
    ends = Counter((kinds[name], row['status']) for name, row in shown.items())
    faults = Counter((kinds[name], row['fault']['message']) for name, row in shown.items() if row['status'] == 'ERROR')
    with capsys.disabled():
        print(
            f'\n{HOSTS} hosts up after {wide.seconds:.0f} s; {len(shown)} creates of {CLIENTS} clients: accepted '
            f'after {asked:.1f} s, ended after {took:.1f} s; the second scheduler was asked '
            f'{wide.asked_of_second() - before} times'
        )
        for kind in sorted(set(kinds.values())):
            print(f'  {kind}: {ends[kind, "ACTIVE"]} run, {ends[kind, "ERROR"]} refused')
        for (kind, message), count in sorted(faults.items()):
            print(f'  {count} x {kind}: {message}')
    state = state_of(site, {name: row for name, row in shown.items() if kinds[name] == 'apart'})
    assert {row['status'] for row in shown.values()} == {'ACTIVE', 'ERROR'}
    assert [wrong for _, message in faults for wrong in untrue(message, state)] == []
    refused = {kind: ends[kind, 'ERROR'] for kind in set(kinds.values())}
    assert (refused['flat'], refused['numa'], refused['many'], refused['huge']) == (0, 0, 3, 3)
    assert set(state.group.values()) == {1}
    assert_devices_are_owned_once(site, shown)
    site.audit()
    wide.end()
    site.call('DELETE', f'/os-server-groups/{group["id"]}')
    site.call('DELETE', f'/os-quota-sets/{group["project_id"]}', user='admin')


def test_a_hundred_equal_creates(wide: Wide, capsys: pytest.CaptureFixture[str]) -> None:
    """At once and of a flavor that any host could take many of: no host gets more than twice its even share."""
    site = wide.site
    flavor = site.flavor('twenty-flat')
    before, began = wide.asked_of_second(), time.monotonic()

    def insist(number: int) -> str:
        """A writer to SQLite waits for ten seconds at most; who is told to try again does so."""
        while (reply := site.ask_create(f'equal-{number}', flavor)).status == 503:
            assert time.monotonic() - began < SETTLED_WITHIN
            time.sleep(1)
        assert reply.status == 202, f'{reply.status} {reply.body.decode(errors="replace")}'
        identifier: str = reply.data['server']['id']
        return identifier

    servers = site.at_once(insist, range(EQUAL), threads=EQUAL)
    asked = time.monotonic() - began
    shown = wide.settle(servers)
    took = time.monotonic() - began
    share = Counter(dict.fromkeys(site.cloud.hosts, 0))
    share.update(row['OS-EXT-SRV-ATTR:host'] for row in shown.values())
    second = wide.asked_of_second() - before
    with capsys.disabled():
        print(
            f'\n{EQUAL} equal creates: accepted after {asked:.1f} s, ended after {took:.1f} s; the second scheduler '
            f'was asked {second} times; servers a host: {sorted(share.values())}'
        )
    assert {row['status'] for row in shown.values()} == {'ACTIVE'}, site.tell(shown)
    assert max(share.values()) <= 2 * EQUAL / HOSTS, share
    assert EQUAL / 5 <= second <= EQUAL * 4 / 5
    site.audit()
    wide.end()
