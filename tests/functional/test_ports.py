"""Servers with ports of Neutron: booted, tried on another host, deleted, and what is left behind: nothing.

``tests/fixtures/neutron.py`` plays Neutron; ``tests/integration/test_neutron.py`` has the real one.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute.waiting import Waiting
from kilonova.conductor.flows import FLOWS
from kilonova.db.queries import info_caches, instances, operations, servers
from kilonova.objects.vif import Vif
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud, Crash
from tests.fixtures.neutron import DETAILS, FakeNeutron
from tests.flows.cases import bring_back, disturb, force_down, lose_host

HOSTS = ('gpu1', 'gpu2')


class Networked:
    """A cloud with Neutron and one network, and two hosts whose agents bind ports. ``told``: the codes of the compute
    API for each event that Neutron told."""

    def __init__(self, make_cloud: Callable[..., Cloud], **options: Any) -> None:
        self.neutron = FakeNeutron(hosts=HOSTS)
        self.cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']}, neutron=self.neutron, **options)
        self.told: list[int] = []
        self.neutron.notify = self.notify
        self.neutron.users.update({f'{user}:{PROJECT}': PROJECT for user in ('admin', 'demo')})
        self.network = self.neutron.add_network('private', PROJECT, cidr='10.2.0.0/24')
        self.flavor = self.cloud.flavor()

    def notify(self, events: list[dict[str, str]]) -> None:
        response = self.cloud.request('POST', '/os-server-external-events', {'events': events})
        self.told += [event['code'] for event in response.json['events']]

    def create(self, *networks: dict[str, Any], **more: Any) -> str:
        server: str = self.cloud.create(self.flavor, networks=list(networks or ({'uuid': self.network},)), **more)[
            'server'
        ]['id']
        return server

    def boot(self, *networks: dict[str, Any], status: str = 'ACTIVE', **more: Any) -> str:
        server = self.create(*networks, **more)
        self.cloud.settle(kinds_left=('release',))
        assert self.cloud.status(server) == status, self.cloud.story(server)
        return server

    def service(self, host: str) -> str:
        """The id of a host's compute service."""
        (found,) = self.cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
        return str(found['id'])

    def evacuate(self, server: str) -> None:
        """What its dead host has still to give back stays."""
        assert self.cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}).status_int == 200
        self.cloud.settle(kinds_left=('release',))

    def lose_its_host(self, server: str) -> str:
        """It is evacuated from its host, which is dead, and there again then; that host."""
        cloud, host = self.cloud, self.cloud.host_of(server)
        lose_host(cloud, host)
        force_down(cloud, host, True)
        self.evacuate(server)
        bring_back(cloud, host)
        cloud.settle()
        return host

    def moved(self, server: str, kind: str, end: str, port: str) -> str:
        """The host of a server that was moved by an operation of this kind, while its port vanished between the choice
        of a host and the arrival there. ``end``: 'fails', an action of the API's, or whatever else it is."""
        cloud, flow = self.cloud, FLOWS[kind]
        if kind == 'unshelve':
            cloud.action(server, 'shelve')
        source = None if kind == 'unshelve' else cloud.host_of(server)
        with pytest.MonkeyPatch.context() as patch:
            disturb(
                patch,
                kind,
                flow.index('select') + 1,
                lambda real, work: (self.neutron.ports.pop(port, None), real(work)),
            )
            if end == 'fails':
                driver = cloud.computes[other(source)].host.driver
                patch.setattr(driver.guests, 'spawn', broken)
                patch.setattr(driver.moves, 'finish_migration', broken)
            if kind == 'evacuate':
                self.lose_its_host(server)
            else:
                cloud.action(
                    server,
                    *{
                        'resize': ('migrate',),
                        'unshelve': ('unshelve',),
                        'live_migrate': ('os-migrateLive', {'host': None, 'block_migration': 'auto'}),
                    }[kind],
                )
            if end.endswith('Resize'):
                cloud.action(server, end)
        assert cloud.status(server) in ('ACTIVE', 'SHUTOFF'), cloud.story(server)
        assert (cloud.host_of(server) == source) == (end in ('fails', 'revertResize')), cloud.story(server)
        return str(cloud.host_of(server))

    def delete(self, server: str) -> None:
        self.cloud.ok('DELETE', f'/servers/{server}')
        self.cloud.settle()

    def of(self, server: str) -> list[dict[str, Any]]:
        """The ports of a server."""
        return [port for port in self.neutron.ports.values() if port['device_id'] == server]

    def cache(self, server: str) -> list[dict[str, Any]]:
        with self.cloud.cell.read() as conn:
            text = (
                conn.execute(info_caches.caches.select().where(info_caches.caches.c.instance_uuid == server))
                .mappings()
                .one()['network_info']
            )
        found: list[dict[str, Any]] = json.loads(text)
        return found

    def addresses(self, server: str) -> dict[str, list[str]]:
        """{network: addresses} as the API shows them."""
        return {label: [one['addr'] for one in found] for label, found in self.cloud.show(server)['addresses'].items()}

    def assert_empty(self, kept: int = 0) -> None:
        """No server is left, and nothing of one in Neutron but ports of users, which belong to nobody."""
        self.cloud.assert_empty()
        assert self.neutron.bound() == []
        assert [port['device_id'] for port in self.neutron.ports.values()] == [''] * kept


@pytest.fixture
def networked(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Networked:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Networked(make_cloud)


def test_a_boot_makes_one_port_and_shows_its_address(networked: Networked) -> None:
    """One request makes and binds it; six of Neutron in all, and the list of its extensions; the guest has it in its
    XML, DNS has it by the server's hostname; a delete leaves none."""
    server = networked.boot(user='demo', hostname='web.example.org')
    host = networked.cloud.host_of(server)
    (port,) = networked.of(server)
    assert (port['binding:host_id'], port['device_owner'], port['project_id']) == (host, 'compute:nova', PROJECT)
    address = port['fixed_ips'][0]['ip_address']
    assert networked.addresses(server) == {'private': [address]}
    assert networked.cloud.show(server)['security_groups'] == [{'name': 'default'}]
    assert [method for method, _ in networked.neutron.asked].count('POST') == 1
    assert port['dns_name'] == 'web.example.org'
    assert len([path for _, path in networked.neutron.asked if path != '/extensions']) <= 6, networked.neutron.asked
    xml = networked.cloud.xml(server)
    assert port['mac_address'] in xml and port['id'] in xml
    networked.cloud.assert_clean()
    networked.delete(server)
    networked.assert_empty()


def test_ports_come_in_the_order_that_was_asked_for(networked: Networked) -> None:
    """Of two networks and a port of the user's own, which stays when the server goes."""
    neutron, second = networked.neutron, networked.neutron.add_network('second', PROJECT, cidr='10.3.0.0/24')
    own = neutron.add_port(networked.network, PROJECT)
    server = networked.boot({'uuid': second}, {'port': own}, {'uuid': networked.network, 'fixed_ip': '10.2.0.77'})
    cache = networked.cache(server)
    assert [vif['network']['label'] for vif in cache] == ['second', 'private', 'private']
    assert cache[1]['id'] == own and [vif['preserve_on_delete'] for vif in cache] == [False, True, False]
    assert '10.2.0.77' in networked.addresses(server)['private']
    xml = networked.cloud.xml(server)
    places = [xml.index(vif['address']) for vif in cache]
    assert places == sorted(places)
    networked.cloud.assert_clean()
    networked.delete(server)
    networked.assert_empty(kept=1)
    assert list(neutron.ports) == [own]


def test_the_way_to_an_address_of_ipv6_is_kept(networked: Networked) -> None:
    """Guests are told it."""
    neutron, network = networked.neutron, networked.neutron.add_network('six', PROJECT, cidr='2001:db8::/64')
    neutron.subnets[neutron.networks[network]['subnets'][0]].update(ip_version=6, ipv6_address_mode='slaac')
    (vif,) = map(Vif.read, networked.cache(networked.boot({'uuid': network})))
    assert [(one.version, one.ipv6_mode) for one in vif.subnets] == [(6, 'slaac')]


def test_security_groups_go_to_the_port(networked: Networked) -> None:
    group = networked.neutron.add_group('web', PROJECT)
    server = networked.boot(security_groups=[{'name': 'web'}])
    assert networked.of(server)[0]['security_groups'] == [group]
    assert networked.cloud.show(server)['security_groups'] == [{'name': 'web'}]


def test_a_network_that_guarantees_bandwidth_is_refused(networked: Networked) -> None:
    """By a policy of its own: only the port that was made says so. It goes again."""
    networked.neutron.networks[networked.network]['resource_request'] = {'request_groups': []}
    server = networked.boot(status='ERROR')
    assert 'gives its ports a guaranteed bandwidth or packet rate' in networked.cloud.show(server)['fault']['message']
    assert networked.neutron.ports == {}


def test_a_guest_waits_for_its_port(networked: Networked) -> None:
    """It is BUILD until the port is ACTIVE; an event that is heard ends the waiting."""
    networked.neutron.plugging = False
    server = networked.create()
    deadline = time.monotonic() + 30
    while not networked.of(server) or sum('device_id' in path for _, path in networked.neutron.asked) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert networked.cloud.status(server) == 'BUILD'
    networked.neutron.plug(networked.of(server)[0]['id'])
    networked.cloud.settle()
    assert networked.cloud.status(server) == 'ACTIVE' and set(networked.told) == {200}


def test_a_port_that_is_never_plugged(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The build ends with a fault that names the port, and nothing is left."""
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    networked = Networked(make_cloud, vif_plugging_timeout=1)
    networked.neutron.plugging = False
    server = networked.boot(status='ERROR')
    message = networked.cloud.show(server)['fault']['message']
    assert 'Virtual Interface creation failed: port' in message and 'not ACTIVE after 1 s' in message
    assert networked.neutron.ports == {} and networked.addresses(server) == {}
    networked.delete(server)
    networked.assert_empty()


class PassedAtOnce(threading.Event):
    """An event that never happens: who waits for it finds that the time has passed. ``now`` is the time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


def test_a_port_that_is_never_plugged_may_be_no_reason(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no event comes, Neutron is asked less and less often."""
    networked = Networked(make_cloud, vif_plugging_timeout=200, vif_plugging_is_fatal=False)
    networked.neutron.plugging = False
    clock, asked_at = PassedAtOnce(), list[float]()
    monkeypatch.setattr('kilonova.compute.ports.time', clock)
    monkeypatch.setattr(Waiting, 'heard', lambda self, about: contextlib.nullcontext(clock))
    networked.neutron.before = lambda method, path: asked_at.append(clock.now) if clock.now else None
    server = networked.boot()
    networked.neutron.before = None
    assert asked_at == [5, 15, 35, 75, 115, 155, 195, 200]
    networked.cloud.assert_clean()
    networked.delete(server)
    networked.assert_empty()


def test_a_host_that_can_not_bind_is_no_reason_to_fail(networked: Networked) -> None:
    """binding_failed comes as 200: the next host is tried, with the same port."""
    first = networked.boot()
    (broken,) = [host for host in HOSTS if host != networked.cloud.host_of(first)]
    networked.neutron.hosts.discard(broken)
    posts = [method for method, _ in networked.neutron.asked].count('POST')
    servers = [networked.boot() for _ in range(2)]
    assert {networked.cloud.host_of(server) for server in servers} == {networked.cloud.host_of(first)}
    assert [method for method, _ in networked.neutron.asked].count('POST') == posts + 2
    networked.cloud.assert_clean()


def test_no_host_can_bind(networked: Networked) -> None:
    """The fault names the port and the host; nothing is left."""
    networked.neutron.hosts.clear()
    server = networked.boot(status='ERROR')
    assert 'Binding failed for port' in networked.cloud.show(server)['fault']['message']
    assert networked.neutron.ports == {}
    networked.delete(server)
    networked.assert_empty()


def test_one_port_is_never_two_servers(networked: Networked) -> None:
    """Another takes the port between our look and our binding: the server isn't given it."""
    own = networked.neutron.add_port(networked.network, PROJECT)

    def taken(method: str, path: str) -> None:
        if method == 'PUT':
            networked.neutron.before = None
            networked.neutron.ports[own].update(device_id='another', revision_number=17)

    networked.neutron.before = taken
    server = networked.boot({'port': own}, status='ERROR')
    assert networked.cloud.show(server)['fault']['message'] == f'Port {own} is still in use.'
    assert networked.neutron.ports[own]['device_id'] == 'another'


def test_ports_have_the_server_s_hostname_in_dns(networked: Networked, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the boot on, also the user's own, which is without a name again when the server goes; after a change of the
    hostname the new one, unless DNS can't have it; after a rebuild that fails the one before."""
    own = networked.neutron.add_port(networked.network, PROJECT)
    server = networked.boot({'uuid': networked.network}, {'port': own}, hostname='web')

    def names() -> set[str]:
        networked.cloud.settle()
        return {port['dns_name'] for port in networked.of(server)}

    def fail(*args: Any, **kwargs: Any) -> None:
        raise GuestFailed(act='define', uuid=server, reason='injected')

    assert names() == {'web'}
    networked.cloud.ok('PUT', f'/servers/{server}', {'server': {'hostname': 'db.example.org'}}, version='2.94')
    assert names() == {'db.example.org'}
    networked.cloud.ok('PUT', f'/servers/{server}', {'server': {'hostname': 'ubuntu-24.04'}}, version='2.94')
    assert names() == {'db.example.org'}
    again = {'imageRef': IMAGE_ID, 'hostname': 'other'}
    networked.cloud.ok('POST', f'/servers/{server}/action', {'rebuild': again}, version='2.94')
    assert names() == {'other'}
    monkeypatch.setattr(
        type(networked.cloud.computes[networked.cloud.host_of(server)].host.driver.guests), 'prepare_rebuild', fail
    )
    networked.cloud.ok('POST', f'/servers/{server}/action', {'rebuild': {**again, 'hostname': 'last'}}, version='2.94')
    assert names() == {'other'}
    networked.delete(server)
    assert networked.neutron.ports[own]['dns_name'] == ''


@pytest.mark.parametrize('way', ['update', 'rebuild'])
def test_the_api_process_dies_behind_a_new_hostname(
    networked: Networked, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """If the API process dies after the cell stored a new hostname, the ports in Neutron get that name later.

    The transaction that stores the hostname also inserts an operation row, and a conductor completes it.
    """
    server = networked.boot({'uuid': networked.network}, hostname='web')
    owner: Any = servers if way == 'update' else operations
    name = 'update' if way == 'update' else 'accept'
    real = getattr(owner, name)

    def die(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise Crash

    monkeypatch.setattr(owner, name, die)
    request: Any = (
        ('PUT', f'/servers/{server}', {'server': {'hostname': 'db'}})
        if way == 'update'
        else ('POST', f'/servers/{server}/action', {'rebuild': {'imageRef': IMAGE_ID, 'hostname': 'db'}})
    )
    with pytest.raises(Crash):
        networked.cloud.request(*request, version='2.94')
    monkeypatch.setattr(owner, name, real)
    networked.cloud.settle()
    assert {port['dns_name'] for port in networked.of(server)} == {'db'}
    networked.cloud.assert_clean()


def test_the_last_of_two_new_hostnames_is_in_dns(networked: Networked) -> None:
    """The one before is written late: when the last was looked at, each port had it."""
    server, late = networked.boot(hostname='web'), []

    def rename(method: str, path: str) -> None:
        if method == 'PUT' and not late:
            late.append(path)
            with networked.cloud.cell.write() as conn:
                instances.update(conn, server, {'hostname': 'web'})

    networked.neutron.before = rename
    networked.cloud.ok('PUT', f'/servers/{server}', {'server': {'hostname': 'db'}}, version='2.94')
    networked.cloud.settle()
    assert late and [port['dns_name'] for port in networked.of(server)] == ['web']
    networked.cloud.assert_clean()


def test_a_port_with_another_name_is_not_taken(networked: Networked) -> None:
    """But by a server whose hostname is no name in DNS, as no top-level domain is a number."""
    own = networked.neutron.add_port(networked.network, PROJECT, dns_name='mail')
    server = networked.boot({'port': own}, status='ERROR', hostname='web')
    assert networked.cloud.show(server)['fault']['message'].startswith(f"Port {own} has dns_name 'mail'")
    assert (networked.neutron.ports[own]['dns_name'], networked.neutron.ports[own]['device_id']) == ('mail', '')
    networked.boot({'port': own}, hostname='ubuntu-24.04')
    assert networked.neutron.ports[own]['dns_name'] == 'mail'


def test_a_network_is_made_for_a_project_that_has_none(networked: Networked) -> None:
    """For its first server, also where the answer is lost; the next one finds it."""
    neutron, lost = networked.neutron, []
    neutron.networks.clear()
    neutron.subnets.clear()

    def lose(method: str, path: str) -> None:
        if path.startswith('/auto-allocated') and neutron.topologies and not lost:
            lost.append(path)
            raise neutron.broken()

    neutron.after = lose
    for _ in range(2):
        server = str(networked.cloud.create(networked.flavor, networks='auto')['server']['id'])
        networked.cloud.settle()
        assert networked.cloud.status(server) == 'ACTIVE', networked.cloud.story(server)
        assert set(networked.addresses(server)) == {'auto_allocated_network'}
    assert lost and list(neutron.networks) == [neutron.topologies[PROJECT]]
    networked.cloud.assert_clean()


def test_a_port_that_comes_late_goes(networked: Networked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without an answer makes its port after the next look: in the end the server has one."""
    monkeypatch.setattr('kilonova.conductor.flows.network.ports.LATE', 1.0)
    failed: list[str] = []

    def broken(method: str, path: str) -> None:
        if method == 'POST' and not failed:
            failed.append(path)
            raise networked.neutron.broken()

    networked.neutron.before = broken
    server = networked.boot()
    (port,) = networked.of(server)
    late = networked.neutron.add_port(networked.network, PROJECT, device_id=server, device_owner='compute:nova')
    networked.cloud.settle()
    assert failed and late not in networked.neutron.ports
    assert [one['id'] for one in networked.of(server)] == [port['id']]
    networked.cloud.assert_clean()


def test_a_server_that_no_host_takes_leaves_no_port(networked: Networked) -> None:
    """Deleted while its guest waits for the port: the port goes as well."""
    networked.neutron.plugging = False
    server = networked.create()
    deadline = time.monotonic() + 30
    while not networked.of(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    networked.delete(server)
    networked.assert_empty()


def test_the_audit_compares_ports(networked: Networked) -> None:
    """A port that a server lacks, one that it has besides, one on another host, one of no server."""
    server, other = networked.boot(), networked.boot()
    (port,), (second,) = networked.of(server), networked.of(other)
    del networked.neutron.ports[port['id']]
    extra = networked.neutron.add_port(networked.network, PROJECT, device_id=server, device_owner='compute:nova')
    second['binding:host_id'] = 'elsewhere'
    stray = networked.neutron.add_port(networked.network, PROJECT, device_id=IMAGE_ID, device_owner='compute:nova')
    networked.neutron.add_port(networked.network, PROJECT, device_id='router', device_owner='network:router')
    assert sorted(networked.cloud.audit().disagreements) == sorted(
        [
            (
                f'ports: server {server} has port {port["id"]} in its info cache, and in Neutron the port does not '
                f'belong to '
                f'the server'
            ),
            f'ports: port {extra} belongs to server {server}, and is not in its info cache',
            (
                f'ports: port {second["id"]} of server {other} is bound to elsewhere, and the server is on '
                f'{networked.cloud.host_of(other)}'
            ),
            f'ports: port {stray} belongs to {IMAGE_ID}, which is not a server',
        ]
    )
    networked.neutron.before = lambda method, path: (_ for _ in ()).throw(networked.neutron.broken())
    (silent,) = networked.cloud.audit().silent
    assert silent.startswith('ports: The network service does not answer: ')


# --- what others change ----------------------------------------------------------------------------------------------
def test_what_neutron_says_of_a_port_is_shown(networked: Networked) -> None:
    """A floating address, a security group, and a port that its owner deletes. Those of one request are one look."""
    own = networked.neutron.add_port(networked.network, PROJECT)
    server = networked.boot({'uuid': networked.network}, {'port': own})
    (made,) = [port for port in networked.of(server) if port['id'] != own]
    networked.neutron.add_floating_ip('198.51.100.7', made['id'])
    made['security_groups'] = [networked.neutron.add_group('web', PROJECT)]
    networked.neutron.asked.clear()
    networked.told.clear()
    networked.notify([{'name': 'network-changed', 'server_uuid': server, 'tag': tag} for tag in (made['id'], own)])
    networked.cloud.settle()
    assert '198.51.100.7' in networked.addresses(server)['private'] and set(networked.told) == {200}
    assert networked.cloud.show(server)['security_groups'] == [{'name': 'default'}, {'name': 'web'}]
    assert len(networked.neutron.asked) == 5
    # An administrator may ask for that, where no event came.
    made['security_groups'].clear()
    networked.cloud.ok('POST', f'/servers/{server}/action', {'injectNetworkInfo': None})
    networked.cloud.settle()
    assert networked.cache(server)[0]['meta']['security_groups'] == []
    assert (
        networked.cloud.request(
            'POST', f'/servers/{server}/action', {'injectNetworkInfo': None}, user='demo'
        ).status_int
        == 403
    )
    del networked.neutron.ports[own]
    networked.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': own}])
    networked.cloud.settle()
    assert [vif['id'] for vif in networked.cache(server)] == [made['id']]
    networked.cloud.assert_clean()


def test_groups_of_a_server_that_is_there(networked: Networked) -> None:
    """What is added is shown at once, whether Neutron's event comes or not, and goes along with the server."""
    networked.neutron.add_group('web', PROJECT)
    server = networked.boot()
    networked.neutron.notify = None

    def act(name: str, group: str) -> list[dict[str, str]]:
        networked.cloud.ok('POST', f'/servers/{server}/action', {name: {'name': group}})
        networked.cloud.settle()
        shown: list[dict[str, str]] = networked.cloud.show(server)['security_groups']
        return shown

    assert act('addSecurityGroup', 'web') == [{'name': 'default'}, {'name': 'web'}]
    listed = networked.cloud.ok('GET', f'/servers/{server}/os-security-groups')['security_groups']
    assert [group['name'] for group in listed] == ['default', 'web']
    assert act('removeSecurityGroup', 'default') == [{'name': 'web'}]
    networked.cloud.assert_clean()
    networked.delete(server)
    networked.assert_empty()


def test_a_change_while_neutron_is_silent(networked: Networked) -> None:
    """It is looked at when Neutron is back; a delete waits for nothing of it."""
    server, other_one = networked.boot(), networked.boot()
    for number, each in enumerate((server, other_one)):
        networked.neutron.add_floating_ip(f'198.51.100.{number + 7}', networked.of(each)[0]['id'])

    def broken(method: str, path: str) -> None:
        raise networked.neutron.broken()

    networked.neutron.before = broken
    networked.notify([{'name': 'network-changed', 'server_uuid': each} for each in (server, other_one)])
    networked.cloud.ok('DELETE', f'/servers/{other_one}')
    networked.cloud.settle(kinds_left=('release', 'network_changed'))
    assert networked.cloud.status(other_one) == 'GONE'
    assert '198.51.100.7' not in networked.addresses(server)['private']
    networked.neutron.before = None
    networked.cloud.settle()
    assert '198.51.100.7' in networked.addresses(server)['private']
    networked.cloud.assert_clean()


def test_caches_are_healed_in_turn(networked: Networked) -> None:
    """If Neutron's events are lost, each run of the healing task refreshes the info cache of the next server with
    ports."""
    servers = [networked.boot() for _ in range(2)]
    networked.cloud.boot(networked.flavor, networks='none')
    for number, server in enumerate(servers):
        networked.neutron.add_floating_ip(f'198.51.100.{number}', networked.of(server)[0]['id'])
    (conductor,) = networked.cloud.conductors
    for shown in ([1, 0], [1, 1], [1, 1]):
        assert conductor.expiry.heal() == 1
        networked.cloud.settle()
        assert [len(networked.addresses(server)['private']) - 1 for server in servers] == shown
    for server in servers:
        networked.delete(server)
    assert conductor.expiry.heal() == 0


def test_the_access_address_is_one_of_a_network(make_cloud: Callable[..., Cloud]) -> None:
    """The address in the network default_access_ip_network_name becomes accessIPv4, unless the request sets one."""
    networked = Networked(make_cloud, default_access_ip_network_name='front')
    front = networked.neutron.add_network('front', PROJECT, cidr='10.3.0.0/24')
    server = networked.boot({'uuid': networked.network}, {'uuid': front})
    (address,) = networked.addresses(server)['front']
    assert networked.cloud.show(server)['accessIPv4'] == address
    named = networked.boot({'uuid': front}, accessIPv4='192.0.2.9')
    assert networked.cloud.show(named)['accessIPv4'] == '192.0.2.9'


def test_a_server_without_ports_has_no_changes(networked: Networked) -> None:
    server = networked.cloud.boot(networked.flavor, networks='none')
    networked.notify([{'name': 'network-changed', 'server_uuid': server}])
    assert networked.told == [422] and networked.cloud.rows() == []


# --- moves -----------------------------------------------------------------------------------------------------------
def other(host: str) -> str:
    (found,) = [each for each in HOSTS if each != host]
    return found


def assert_at(networked: Networked, server: str, host: str, address: list[str]) -> None:
    """The server and its only port are on this host, with the address that it had, and nowhere else."""
    networked.cloud.assert_clean()
    (port,) = networked.of(server)
    assert networked.cloud.host_of(server) == host
    assert networked.neutron.bindings(port['id']) == [host]
    assert networked.addresses(server) == {'private': address}


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize_takes_the_port_along(networked: Networked, end: str) -> None:
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    assert_at(networked, server, other(source), address)
    assert port_xml(networked, server)
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE'
    assert_at(networked, server, other(source) if end == 'confirmResize' else source, address)
    assert port_xml(networked, server)
    networked.delete(server)
    networked.assert_empty()


def port_xml(networked: Networked, server: str) -> bool:
    """Whether the guest has its only port."""
    return networked.of(server)[0]['mac_address'] in networked.cloud.xml(server)


def test_a_move_to_a_host_that_can_not_bind_comes_back(networked: Networked) -> None:
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']
    networked.neutron.hosts.discard(other(source))
    cloud.action(server, 'migrate')
    assert 'Binding failed for port' in json.dumps(cloud.story(server))
    assert cloud.status(server) == 'ACTIVE' and port_xml(networked, server)
    assert_at(networked, server, source, address)


def test_a_server_is_deleted_while_its_port_comes_back(networked: Networked) -> None:
    server = networked.boot()

    def bound_to(port: dict[str, Any]) -> None:
        # What is known of the port differs from host to host.
        port['binding:vif_details']['of'] = port['binding:host_id']
        networked.neutron.plug(port['id'])

    networked.neutron.bound_to = bound_to
    cloud, source = networked.cloud, networked.cloud.host_of(server)
    cloud.computes[other(source)].host.driver.moves.finish_migration = broken
    deleted: list[int] = []

    def delete(method: str, path: str) -> None:
        moved = [port for port in networked.of(server) if port['binding:host_id'] == other(source)]
        if method == 'PUT' and moved and not deleted:
            deleted.append(cloud.request('DELETE', f'/servers/{server}').status_int)

    networked.neutron.before = delete
    cloud.action(server, 'migrate')
    assert deleted == [204] and cloud.status(server) == 'GONE'
    networked.assert_empty()


def test_a_resize_on_its_host_leaves_ports_alone(make_cloud: Callable[..., Cloud]) -> None:
    networked = Networked(make_cloud, allow_resize_to_same_host=True)
    networked.neutron.hosts = {'gpu1'}
    networked.cloud.ok('PUT', f'/os-services/{networked.service("gpu2")}', {'status': 'disabled'})
    server = networked.boot()
    asked = len(networked.neutron.asked)
    networked.cloud.action(server, 'resize', {'flavorRef': networked.cloud.flavor(vcpus=2)})
    assert networked.cloud.status(server) == 'VERIFY_RESIZE', networked.cloud.story(server)
    # Whether they guarantee something.
    assert networked.neutron.asked[asked:] == [('GET', f'/ports?device_id={server}')]
    networked.cloud.assert_clean()


def test_an_unshelve_that_fails_leaves_the_port_off(networked: Networked) -> None:
    server = networked.boot()
    cloud = networked.cloud
    cloud.action(server, 'shelve')
    networked.neutron.hosts.clear()
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED'
    assert [port['binding:host_id'] for port in networked.of(server)] == ['']
    cloud.assert_clean()


def test_an_evacuation_that_fails(networked: Networked) -> None:
    """The port is the dead host's again, which nothing binds there; its start when it is back binds it."""
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']
    lose_host(cloud, source)
    force_down(cloud, source, True)
    networked.neutron.hosts.discard(source)
    cloud.computes[other(source)].host.driver.guests.spawn = broken
    networked.evacuate(server)
    assert 'no room for a guest' in json.dumps(cloud.story(server))
    assert [port['binding:host_id'] for port in networked.of(server)] == [source]
    networked.neutron.hosts.add(source)
    bring_back(cloud, source)
    cloud.settle()
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('ACTIVE', 1), cloud.story(server)
    assert networked.of(server)[0]['binding:vif_type'] == 'ovs'
    assert_at(networked, server, source, address)


def broken(*args: Any, **kwargs: Any) -> None:
    raise errors.HostRejected('no room for a guest')


def test_a_live_migration_takes_the_port_along(networked: Networked) -> None:
    """Bound at both while the guest moves, active where it is."""
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']
    networked.neutron.asked.clear()
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert_at(networked, server, other(source), address)
    (port,) = networked.of(server)
    assert [
        (method, path.removeprefix(f'/ports/{port["id"]}'))
        for method, path in networked.neutron.asked
        if method != 'GET'
    ] == [('POST', '/bindings'), ('PUT', f'/bindings/{other(source)}/activate'), ('DELETE', f'/bindings/{source}')]


def test_a_live_migration_to_a_host_that_can_not_bind(networked: Networked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or binds in another way. Refused before the guest moves; nothing is left of it."""
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']
    with monkeypatch.context() as patched:
        patched.setitem(DETAILS, 'ovs_hybrid_plug', True)
        cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert f'would have another vif_type or bridge on host {other(source)}' in json.dumps(cloud.story(server))
    assert_at(networked, server, source, address)
    networked.neutron.hosts.discard(other(source))
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert 'Binding failed for port' in json.dumps(cloud.story(server))
    assert_at(networked, server, source, address)


def test_a_live_migration_that_fails(networked: Networked) -> None:
    """The guest stays, and its port is bound where it is alone."""
    server = networked.boot()
    cloud, source, address = networked.cloud, networked.cloud.host_of(server), networked.addresses(server)['private']

    def failed(*args: Any, **kwargs: Any) -> None:
        raise errors.MigrationError(reason='the guest is too busy')

    cloud.computes[source].host.driver.live_migrations.migrate = failed
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert 'the guest is too busy' in json.dumps(cloud.story(server))
    assert_at(networked, server, source, address)
