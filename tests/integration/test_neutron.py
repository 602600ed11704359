"""The real Neutron in the one-machine cloud (``make up NETWORK=1``): our client of it, and servers with ports."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from kilonova import conf as kilonova_conf
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.networks import BANDWIDTH
from kilonova.clients.neutron.ports import Port, name_in_dns
from kilonova.clients.neutron.refusals import (
    FixedIpInUse,
    FixedIpNotOfNetwork,
    NetworkConflict,
    NetworkInvalid,
    NetworkNotFound,
    PortBindingRefused,
    PortChanged,
    PortNotFound,
    PortQuotaFull,
    SecurityGroupNotFound,
)
from kilonova.cmd.daemon import parts
from kilonova.context import RequestContext
from tests.integration.openstack_shell import Shells
from tests.integration.site import Site
from tools.cloud import http, identity, neutron, process

NAMES = ('neutron', 'ovn-hosts', 'ovn-nb', 'ovn-northd', 'ovn-sb')


@pytest.fixture
def site(site_with_services: Site) -> Site:
    return site_with_services


@pytest.fixture
def client(site: Site) -> NetworkClient:
    """As a daemon of this cloud has it."""
    conf = kilonova_conf.new()
    conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
    made = parts.networks(conf)
    assert made is not None
    return made


@pytest.fixture
def user(site: Site) -> RequestContext:
    """The demo project's."""
    return RequestContext(auth_token=site.token('demo'), user_id='u', project_id=project(site))


@pytest.fixture
def private(client: NetworkClient, user: RequestContext) -> str:
    """The id of the network that the cloud comes with."""
    (found,) = [one for one in client.available_networks(user, user.project_id) if one.name == neutron.NETWORK]
    return found.id


def project(site: Site) -> str:
    rows = http.call('GET', site.url('keystone') + '/projects?name=demo', token=site.token('admin')).data['projects']
    return str(rows[0]['id'])


def until(done: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def create(
    client: NetworkClient, user: RequestContext, network_id: str, host: str | None, *, server: str = '', **more: object
) -> Port:
    return client.create_port(
        network_id,
        project_id=user.project_id,
        device_id=server or str(uuid.uuid4()),
        device_owner='compute:nova',
        host=host,
        **more,
    )  # type: ignore[arg-type]


def active(client: NetworkClient, port: Port) -> bool:
    return client.port(None, port.id).active


def test_its_processes_are_of_the_cloud(site: Site) -> None:
    """Each answers, and up again restarts nothing."""
    before = {name: site.pid(name) for name in NAMES}
    assert neutron.hosts_known(site.layout, ['gpu1', 'gpu2'])
    site.up()
    assert {name: site.pid(name) for name in NAMES} == before
    assert set(NAMES) <= set(process.recorded(site.layout))


def test_the_network_that_servers_find(client: NetworkClient, user: RequestContext, private: str) -> None:
    seen, known = client.networks(user, [private])[private], client.networks(None, [private])[private]
    assert (seen.shared, seen.external, seen.network_type) == (True, False, None)
    assert (known.network_type, known.project_id) == ('geneve', user.project_id)
    (subnet,) = client.subnets(known.subnet_ids).values()
    assert (subnet.cidr, subnet.network_id, subnet.enable_dhcp) == (neutron.CIDR, private, True)
    assert client.networks(user, [str(uuid.uuid4())]) == {}


def test_a_port_is_bound_where_a_host_is(client: NetworkClient, user: RequestContext, private: str) -> None:
    """Made, bound and given an address by one request; ACTIVE when the host has taken it."""
    (group,) = client.security_groups(user, ['default'])
    server = str(uuid.uuid4())
    port = create(client, user, private, 'gpu1', server=server, fixed_ip='10.20.7.7', security_groups=[group.id])
    assert (port.vif_type, port.host, port.binding_failed) == ('ovs', 'gpu1', False)
    assert ([one.address for one in port.fixed_ips], port.security_groups) == (['10.20.7.7'], (group.id,))
    assert port.vif_details['bridge_name'] == 'br-int'
    until(lambda: active(client, port))
    assert [one.id for one in client.ports(device_id=server)] == [port.id]
    assert [one.id for one in client.ports_at(private, '10.20.7.7')] == [port.id]
    assert client.port(user, port.id).host is None, 'a user does not see hosts'
    with pytest.raises(FixedIpInUse):
        create(client, user, private, 'gpu1', fixed_ip='10.20.7.7')
    for _ in range(2):
        client.delete_port(port.id)
    assert client.ports(ids=[port.id]) == []


def test_a_host_that_is_not_there_fails_to_bind(client: NetworkClient, user: RequestContext, private: str) -> None:
    port = create(client, user, private, 'nowhere')
    assert (port.binding_failed, port.status) == (True, 'DOWN')
    bound = client.bind(port, host='gpu2', device_id=port.device_id, device_owner='compute:nova')
    assert (bound.vif_type, bound.host) == ('ovs', 'gpu2')
    until(lambda: active(client, port))
    client.delete_port(port.id)


def test_a_user_s_port_is_given_back(client: NetworkClient, site: Site, user: RequestContext, private: str) -> None:
    """With its address, and without what we wrote into its profile."""
    made = http.call(
        'POST', site.url('neutron') + '/v2.0/ports', {'port': {'network_id': private}}, token=site.token('demo')
    ).data['port']
    port = client.port(None, made['id'])
    bound = client.bind(
        port, host='gpu1', device_id=str(uuid.uuid4()), device_owner='compute:nova', profile={'migrating_to': 'gpu1'}
    )
    assert (bound.vif_type, bound.profile) == ('ovs', {'migrating_to': 'gpu1'})
    client.unbind(bound)
    back = client.port(None, port.id)
    assert (back.vif_type, back.host, back.device_id, back.profile, back.fixed_ips) == (
        'unbound',
        None,
        '',
        {},
        port.fixed_ips,
    )
    until(lambda: client.port(None, port.id).status == 'DOWN')
    client.delete_port(port.id)
    client.unbind(bound)


def test_ports_have_names_in_dns(client: NetworkClient, site: Site, user: RequestContext, private: str) -> None:
    """Of new ports, of users' own, also with dots; given back they have none."""
    port = create(client, user, private, None, name='web')
    assert port.dns_name == 'web'
    client.set_name(port, 'web.example.org')
    assert client.port(None, port.id).dns_name == 'web.example.org'
    for hostname in ('123', 'a-b', 'x' * 63, 'Web.1b'):
        client.set_name(client.port(None, port.id), name_in_dns(hostname))
        assert client.port(None, port.id).dns_name == hostname.lower()
    for refused in ('web..org', 'ubuntu-24.04', 'x' * 64, 'a-.b'):
        assert name_in_dns(refused) == ''
        with pytest.raises(NetworkInvalid, match='dns_name'):
            client.set_name(client.port(None, port.id), refused)
    client.unbind(client.port(None, port.id))
    bare = client.port(None, port.id)
    assert bare.dns_name == ''
    assert (
        client.bind(bare, host='gpu1', device_id=port.device_id, device_owner='compute:nova', name='db').dns_name
        == 'db'
    )
    client.delete_port(port.id)


def test_a_network_is_made_for_a_project(client: NetworkClient, site: Site, user: RequestContext) -> None:
    """Once there is what it is made of: a default external network, and a default pool of subnets."""
    url, token = f'{site.url("neutron")}/v2.0', site.token('admin')
    with pytest.raises(NetworkConflict, match='No default router:external network'):
        client.check_topology(user)
    outer = http.call(
        'POST',
        f'{url}/networks',
        {'network': {'name': 'outer', 'router:external': True, 'is_default': True}},
        token=token,
    ).data['network']['id']
    http.call(
        'POST',
        f'{url}/subnets',
        {'subnet': {'network_id': outer, 'ip_version': 4, 'cidr': '203.0.113.0/24'}},
        token=token,
    )
    with pytest.raises(NetworkConflict, match='No default subnetpools'):
        client.check_topology(user)
    pool = http.call(
        'POST',
        f'{url}/subnetpools',
        {
            'subnetpool': {
                'name': 'pool',
                'is_default': True,
                'shared': True,
                'prefixes': ['10.200.0.0/16'],
                'default_prefixlen': 26,
            }
        },
        token=token,
    ).data['subnetpool']['id']
    client.check_topology(user)
    made = client.topology(user.project_id)
    assert client.topology(user.project_id) == made
    network = client.networks(user, [made])[made]
    assert (network.project_id, len(network.subnet_ids), network.admin_state_up) == (user.project_id, 1, True)
    for path in (f'auto-allocated-topology/{user.project_id}', f'subnetpools/{pool}', f'networks/{outer}'):
        http.call('DELETE', f'{url}/{path}', token=token)


def test_a_port_that_was_changed_is_not_taken(client: NetworkClient, user: RequestContext, private: str) -> None:
    read = create(client, user, private, None)
    client.bind(read, host='gpu1', device_id=read.device_id, device_owner='compute:nova')
    with pytest.raises(PortChanged, match=read.id):
        client.bind(read, host='gpu2', device_id=str(uuid.uuid4()), device_owner='compute:nova')
    assert client.port(None, read.id).host == 'gpu1'
    client.delete_port(read.id)


def test_a_port_of_two_hosts(client: NetworkClient, site: Site, user: RequestContext, private: str) -> None:
    """As while its guest moves; each request may be repeated."""
    port = create(client, user, private, 'gpu1')
    until(lambda: active(client, port))
    for _ in range(2):
        added = client.add_binding(port, 'gpu2', {})
        assert (added.vif_type, added.vif_details['bridge_name']) == ('ovs', 'br-int')
    with pytest.raises(PortBindingRefused):
        client.add_binding(port, 'nowhere', {})
    assert bindings(site, port) == {'gpu1': ('ACTIVE', 'ovs'), 'gpu2': ('INACTIVE', 'ovs')}
    for _ in range(2):
        client.activate_binding(port.id, 'gpu2')
    assert bindings(site, port) == {'gpu1': ('INACTIVE', 'unbound'), 'gpu2': ('ACTIVE', 'ovs')}
    for _ in range(2):
        client.delete_binding(port.id, 'gpu1')
    until(lambda: active(client, port))
    assert bindings(site, port) == {'gpu2': ('ACTIVE', 'ovs')} and client.port(None, port.id).host == 'gpu2'
    client.delete_port(port.id)


def bindings(site: Site, port: Port) -> dict[str, tuple[str, str]]:
    """{host: (status, VIF)} of a port."""
    token = identity.issue_token(site.url('keystone'), 'kilonova', 'service', site.cloud.secrets['kilonova'])
    rows = http.call('GET', f'{site.url("neutron")}/v2.0/ports/{port.id}/bindings', token=token).data['bindings']
    return {row['host']: (row['status'], row['vif_type']) for row in rows}


def test_what_it_refuses(client: NetworkClient, user: RequestContext, private: str) -> None:
    """By the types on which our errors rest."""
    missing = str(uuid.uuid4())
    with pytest.raises(PortNotFound, match=missing):
        client.port(user, missing)
    with pytest.raises(NetworkNotFound, match=missing):
        create(client, user, missing, 'gpu1')
    with pytest.raises(SecurityGroupNotFound):
        create(client, user, private, 'gpu1', security_groups=[missing])
    with pytest.raises(SecurityGroupNotFound, match='nosuch'):
        client.security_groups(user, ['nosuch'])
    with pytest.raises(FixedIpNotOfNetwork, match=f'Fixed IP 10.99.0.1 .* for network {private}'):
        create(client, user, private, 'gpu1', fixed_ip='10.99.0.1')
    assert client.floating_ips([missing]) == []


def test_the_quota_of_ports_counts_a_new_port_and_refuses_one_more(
    client: NetworkClient, site: Site, private: str
) -> None:
    """The project is the test's own, as ports of other tests in the demo project may be deleted in the meantime."""
    owner = RequestContext(user_id='u', project_id=uuid.uuid4().hex)
    url, token = f'{site.url("neutron")}/v2.0/quotas/{owner.project_id}', site.token('admin')
    http.call('PUT', url, {'quota': {'port': 1}}, token=token)
    port = create(client, owner, private, None)
    quota = client.port_quota(owner.project_id)
    assert (quota.limit, quota.used) == (1, 1)
    with pytest.raises(PortQuotaFull):
        create(client, owner, private, None)
    client.delete_port(port.id)
    http.call('DELETE', url, token=token)
    assert client.port_quota(owner.project_id).used == 0


def test_many_ids_are_asked_for(client: NetworkClient, private: str) -> None:
    """In requests that the server takes."""
    assert set(client.networks(None, [*(str(uuid.uuid4()) for _ in range(200)), private])) == {private}


# --- SR-IOV ----------------------------------------------------------------------------------------------------------
def know_agent(site: Site, host: str) -> None:
    """Neutron binds functions of network devices on hosts where it knows an agent of theirs that is alive."""
    mappings = json.dumps({'device_mappings': {neutron.PHYSICAL_NETWORK: ['nic0']}, 'devices': 2, 'extensions': []})
    row = {
        'id': str(uuid.uuid4()),
        'agent_type': 'NIC Switch agent',
        'binary': 'neutron-sriov-nic-agent',
        'topic': 'N/A',
        'host': host,
        'admin_state_up': 1,
        'configurations': mappings,
        'load': 0,
        **dict.fromkeys(('created_at', 'started_at'), '2026-01-01 00:00:00'),
        'heartbeat_timestamp': '2099-01-01 00:00:00',
    }
    with contextlib.closing(sqlite3.connect(site.layout.data('neutron') / 'neutron.sqlite', timeout=60)) as database:
        database.execute(
            f'INSERT INTO agents ({", ".join(row)}) VALUES ({", ".join("?" * len(row))})', tuple(row.values())
        )
        database.commit()


def test_functions_of_network_devices(site: Site, client: NetworkClient) -> None:
    """Bound with the device that their profile names, to another one of another host, and to none again; a physical one
    takes its MAC address over. Where no agent is known the binding fails."""
    url = site.url('neutron') + '/v2.0'
    wire = http.call(
        'POST',
        f'{url}/networks',
        {
            'network': {
                'name': 'wire',
                'shared': True,
                'provider:network_type': 'vlan',
                'provider:physical_network': neutron.PHYSICAL_NETWORK,
            }
        },
        token=site.token('admin'),
    ).data['network']
    http.call(
        'POST',
        f'{url}/subnets',
        {'subnet': {'network_id': wire['id'], 'ip_version': 4, 'cidr': '10.50.0.0/24'}},
        token=site.token('admin'),
    )
    assert client.networks(None, [wire['id']])[wire['id']].physical_network == neutron.PHYSICAL_NETWORK
    know_agent(site, 'gpu1')
    server = str(uuid.uuid4())

    def profile(number: int) -> dict[str, Any]:
        return {
            'pci_slot': f'0000:81:00.{number}',
            'pci_vendor_info': '8086:1520',
            'pf_mac_address': '52:54:00:00:00:01',
            'physical_network': neutron.PHYSICAL_NETWORK,
            'vf_num': number,
        }

    for vnic_type in ('direct', 'macvtap'):
        made = http.call(
            'POST',
            f'{url}/ports',
            {'port': {'network_id': wire['id'], 'binding:vnic_type': vnic_type}},
            token=site.token('demo'),
        ).data['port']
        owned = client.bind(client.port(None, made['id']), host=None, device_id=server, device_owner='compute:nova')
        assert (owned.vif_type, owned.host, owned.device_id) == ('unbound', None, server)
        for number in (1, 2):
            owned = client.bind(
                owned, host='gpu1', device_id=server, device_owner='compute:nova', profile=profile(number)
            )
            assert (owned.vif_type, owned.vnic_type, owned.profile) == ('hw_veb', vnic_type, profile(number))
            assert 100 <= int(owned.vif_details['vlan']) < 200
        failed = client.bind(owned, host='gpu2', device_id=server, device_owner='compute:nova', profile=profile(3))
        assert failed.binding_failed and failed.profile == profile(3)
        left = client.release_host(failed)
        assert (left.vif_type, left.host, left.profile, left.device_id) == ('unbound', None, {}, server)
        client.unbind(left)
        client.delete_port(left.id)
    made = http.call(
        'POST',
        f'{url}/ports',
        {'port': {'network_id': wire['id'], 'binding:vnic_type': 'direct-physical'}},
        token=site.token('demo'),
    ).data['port']
    bound = client.bind(
        client.port(None, made['id']),
        host='gpu1',
        device_id=server,
        device_owner='compute:nova',
        profile={**profile(0), 'device_mac_address': '52:54:00:00:00:01'},
    )
    assert (bound.vif_type, bound.mac, bound.active) == ('hostdev_physical', '52:54:00:00:00:01', True)
    client.unbind(bound)
    assert client.port(None, made['id']).profile == {}
    client.delete_port(made['id'])
    http.call('DELETE', f'{url}/networks/{wire["id"]}', token=site.token('admin'))


def test_functions_that_ovn_binds(site: Site, client: NetworkClient, private: str) -> None:
    """Those of a DPU where a chassis has the serial number of their card, whatever host they are on; their profile is
    there whole, or not at all. And those whose owner asks for switchdev, and those that are vDPA."""
    chassis = [str(neutron.SBCTL), f'--db={neutron.remote(site.layout, "sb")}']
    subprocess.run(
        [*chassis, 'set', 'Chassis', 'gpu2', 'other_config:ovn-cms-options="card-serial-number=MT1"'],
        check=True,
        timeout=30,
    )
    server = {'device_id': str(uuid.uuid4()), 'device_owner': 'compute:nova'}
    device = {
        'pci_slot': '0000:81:00.3',
        'pci_vendor_info': '15b3:101e',
        'physical_network': None,
        'pf_mac_address': '52:54:00:00:00:01',
        'vf_num': 1,
    }
    for vnic_type, theirs, more in (
        ('remote-managed', {}, {'card_serial_number': 'MT1'}),
        ('direct', {'capabilities': ['switchdev']}, {}),
        ('vdpa', {}, {}),
    ):
        made = http.call(
            'POST',
            f'{site.url("neutron")}/v2.0/ports',
            {'port': {'network_id': private, 'binding:vnic_type': vnic_type}},
            token=site.token('demo'),
        ).data['port']
        owned = client.bind(client.port(None, made['id']), host=None, **server, profile=theirs)
        assert (owned.vif_type, owned.profile) == ('unbound', theirs)
        if vnic_type != 'vdpa':
            with pytest.raises(NetworkInvalid, match='are all required'):
                client.bind(owned, host='gpu1', **server, profile={'pci_slot': device['pci_slot']})
        bound = client.bind(owned, host='gpu1', **server, profile={**device, **more})
        assert (bound.vif_type, bound.host, bound.profile) == ('ovs', 'gpu1', {**theirs, **device, **more})
        left = client.release_host(bound)
        assert (left.vif_type, left.profile) == ('unbound', theirs)
        client.unbind(left)
        client.delete_port(left.id)
    subprocess.run([*chassis, 'remove', 'Chassis', 'gpu2', 'other_config', 'ovn-cms-options'], check=True, timeout=30)


# --- servers ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def flavor(site: Site) -> str:
    return site.flavor('plain')


def of(client: NetworkClient, server: str) -> Port:
    """The only port of a server."""
    (port,) = client.ports(device_id=server)
    return port


def addresses(site: Site, server: str) -> dict[str, list[tuple[str, str]]]:
    """{network: [(address, MAC)]} as a user is shown them."""
    shown = site.call('GET', f'/servers/{server}')['server']['addresses']
    return {label: [(one['addr'], one['OS-EXT-IPS-MAC:mac_addr']) for one in rows] for label, rows in shown.items()}


def gone(site: Site, server: str) -> bool:
    return site.send('GET', f'/servers/{server}').status == 404


def test_a_member_makes_a_server_with_the_openstack_command(site: Site, client: NetworkClient, flavor: str) -> None:
    """A server that is created with the openstack command has a port that is bound to its host and ACTIVE.
    Neutron's event is taken, and the addresses that the server shows are those of Neutron."""
    shells = Shells(site.layout.bin('python'), site.layout.clouds, site.extra.parent)

    def command(*arguments: str) -> Any:
        done = shells.run('kilonova-demo', '2.90', *arguments, '-f', 'json')
        assert done.code == 0, done.errors
        return done.data

    try:
        (group,) = [row['ID'] for row in command('security', 'group', 'list') if row['Name'] == 'default']
        size = site.log_size('neutron')
        made = command(
            'server',
            'create',
            '--flavor',
            flavor,
            '--image',
            'demo',
            '--network',
            neutron.NETWORK,
            '--security-group',
            group,
            '--wait',
            'one',
        )
        server = made['id']
        (port,) = command('port', 'list', '--server', server)
        attached = site.call('GET', f'/servers/{server}/os-interface')['interfaceAttachments']
        command('security', 'group', 'create', 'web')
        groups = []
        for verb in ('add', 'remove'):
            done = shells.run('kilonova-demo', '2.90', 'server', verb, 'security', 'group', server, 'web')
            assert done.code == 0, done.errors
            groups.append(
                sorted(
                    one['name'] for one in site.call('GET', f'/servers/{server}/os-security-groups')['security_groups']
                )
            )
        assert groups == [['default', 'web'], ['default']]
        until(lambda: site.call('GET', f'/servers/{server}')['server']['security_groups'] == [{'name': 'default'}])
        assert shells.run('kilonova-demo', '2.90', 'security', 'group', 'delete', 'web').code == 0
    finally:
        shells.end()
    assert made['status'] == 'ACTIVE' and port['Status'] == 'ACTIVE'
    address, mac = port['Fixed IP Addresses'][0]['ip_address'], port['MAC Address']
    assert made['addresses'] == {neutron.NETWORK: [address]}
    assert addresses(site, server) == {neutron.NETWORK: [(address, mac)]}
    assert [(one['port_id'], one['mac_addr'], one['port_state']) for one in attached] == [(port['ID'], mac, 'ACTIVE')]
    seen, host = of(client, server), site.at(server)
    assert (seen.host, seen.device_owner, seen.security_groups) == (host, 'compute:nova', (group,))
    xml = (site.layout.instances(host) / server / 'libvirt.xml').read_text()
    assert mac in xml and port['ID'] in xml
    site.audit()
    until(lambda: events(site, size, 'network-vif-plugged', port['ID']) == {'200'})
    site.call('DELETE', f'/servers/{server}')
    until(lambda: gone(site, server))
    assert client.ports(ids=[seen.id]) == []


def events(site: Site, size: int, name: str, port: str) -> set[str]:
    """How the compute API answered Neutron's events of this kind."""
    return {
        code
        for line in site.log_after('neutron', size).splitlines()
        if 'Nova event matching' in line and name in line and port in line
        for code in re.findall(r"'code': (\d+)", line)
    }


def test_ports_come_in_order_and_a_user_s_own_stays(
    site: Site, client: NetworkClient, private: str, flavor: str
) -> None:
    url, token = site.url('neutron') + '/v2.0', site.token('demo')
    own = http.call('POST', f'{url}/ports', {'port': {'network_id': private}}, token=token).data['port']
    second = http.call('POST', f'{url}/networks', {'network': {'name': 'second'}}, token=token).data['network']['id']
    http.call(
        'POST',
        f'{url}/subnets',
        {'subnet': {'network_id': second, 'ip_version': 4, 'cidr': '10.30.0.0/24'}},
        token=token,
    )
    (server,) = site.boot(
        1, flavor, networks=[{'uuid': second, 'fixed_ip': '10.30.0.77'}, {'port': own['id']}, {'uuid': private}]
    )
    attached = site.call('GET', f'/servers/{server}/os-interface')['interfaceAttachments']
    assert [one['net_id'] for one in attached] == [second, private, private] and attached[1]['port_id'] == own['id']
    assert {one['port_state'] for one in attached} == {'ACTIVE'}
    host = site.at(server)
    xml = (site.layout.instances(host) / server / 'libvirt.xml').read_text()
    places = [xml.index(one['mac_addr']) for one in attached]
    assert places == sorted(places)
    assert addresses(site, server)['second'] == [('10.30.0.77', attached[0]['mac_addr'])]
    assert {port.host for port in client.ports(device_id=server)} == {host}
    site.audit()
    taken = site.ask_create('other', flavor, networks=[{'port': own['id']}])
    assert taken.status == 409 and b'still in use' in taken.body
    site.call('DELETE', f'/servers/{server}')
    until(lambda: gone(site, server))
    until(lambda: len(client.ports(ids=[one['port_id'] for one in attached])) == 1)
    back = client.port(None, own['id'])
    assert (back.device_id, back.device_owner, back.host, back.mac) == ('', '', None, own['mac_address'])
    site.audit()
    http.call('DELETE', f'{url}/ports/{own["id"]}', token=token)
    http.call('DELETE', f'{url}/networks/{second}', token=token)


def test_addresses_and_groups_for_old_clients(site: Site, flavor: str) -> None:
    """By the compute API until 2.35 and 2.43, each request as the user."""
    url, admin, token = site.url('neutron') + '/v2.0', site.token('admin'), site.token('demo')

    def make(noun: str, by: str, **fields: object) -> str:
        return str(http.call('POST', f'{url}/{noun}s', {noun: fields}, token=by).data[noun]['id'])

    def ask(method: str, path: str, body: object = None) -> Any:
        return site.call(method, path, body, version='2.35')

    def act(action: str, **body: str) -> None:
        site.call('POST', f'/servers/{server}/action', {action: body}, version='2.43')

    outside = make(
        'network',
        admin,
        name='outside',
        **{'router:external': True, 'provider:network_type': 'flat', 'provider:physical_network': 'outside'},
    )
    make('subnet', admin, network_id=outside, ip_version=4, cidr='203.0.113.0/24', enable_dhcp=False)
    inside = make('network', token, name='inside')
    subnet = make('subnet', token, network_id=inside, ip_version=4, cidr='10.31.0.0/24')
    router = make('router', token, external_gateway_info={'network_id': outside})
    http.call('PUT', f'{url}/routers/{router}/add_router_interface', {'subnet_id': subnet}, token=token)
    (server,) = site.boot(1, flavor, networks=[{'uuid': inside}])
    ((first, _),) = addresses(site, server)['inside']

    def shown(count: int) -> set[str]:
        until(lambda: len(addresses(site, server)['inside']) == count)
        return {address for address, _ in addresses(site, server)['inside']}

    assert {'outside', 'inside'} <= {one['label'] for one in ask('GET', '/os-networks')['networks']}
    assert ask('GET', f'/os-tenant-networks/{inside}')['network'] == {'id': inside, 'label': 'inside', 'cidr': 'None'}
    assert {'name': 'outside'} in ask('GET', '/os-floating-ip-pools')['floating_ip_pools']
    floating = ask('POST', '/os-floating-ips', {'pool': 'outside'})['floating_ip']
    act('addFloatingIp', address=floating['ip'])
    assert shown(2) == {first, floating['ip']}
    assert ask('GET', f'/os-floating-ips/{floating["id"]}')['floating_ip'] == {
        **floating,
        'fixed_ip': first,
        'instance_id': server,
    }
    act('removeFloatingIp', address=floating['ip'])
    assert shown(1) == {first} and floating in ask('GET', '/os-floating-ips')['floating_ips']
    act('addFixedIp', networkId=inside)
    both = shown(2)
    act('removeFixedIp', address=first)
    assert shown(1) == both - {first}
    group = ask('POST', '/os-security-groups', {'security_group': {'name': 'web', 'description': 'd'}})[
        'security_group'
    ]['id']
    rule = {'security_group_rule': {'parent_group_id': group, 'ip_protocol': 'tcp', 'from_port': 80, 'to_port': 80}}
    made = ask('POST', '/os-security-group-rules', rule)['security_group_rule']
    assert ask('GET', f'/os-security-groups/{group}')['security_group']['rules'] == [made]
    assert made['ip_range'] == {'cidr': '0.0.0.0/0'}
    assert site.send('POST', '/os-security-group-rules', rule, version='2.35').status == 400
    ask('DELETE', f'/os-security-group-rules/{made["id"]}')
    act('addSecurityGroup', name='web')
    assert site.send('DELETE', f'/os-security-groups/{group}', version='2.35').status == 400
    site.call('DELETE', f'/servers/{server}')
    until(lambda: gone(site, server))
    until(lambda: site.send('DELETE', f'/os-security-groups/{group}', version='2.35').status == 202)
    ask('DELETE', f'/os-floating-ips/{floating["id"]}')
    http.call('PUT', f'{url}/routers/{router}/remove_router_interface', {'subnet_id': subnet}, token=token)
    for path, by in ((f'routers/{router}', token), (f'networks/{inside}', token), (f'networks/{outside}', admin)):
        http.call('DELETE', f'{url}/{path}', token=by)


def test_what_a_boot_asks(site: Site, client: NetworkClient, private: str, flavor: str) -> None:
    """Five requests; where the server goes from there its port goes: test_cinder.py, with its volumes."""
    # Neutron logs a request after its answer: what was asked before has its lines when this has one.
    last = str(uuid.uuid4())
    client.networks(None, [last])
    until(lambda: last in site.log('neutron'))
    size = site.log_size('neutron')
    (server,) = site.boot(1, flavor, networks=[{'uuid': private}])
    # Once in ten minutes a conductor asks for the extensions, too.
    asked = [
        one
        for one in re.findall(r'"(\S+) /v2.0/([a-z]+)\S* HTTP/1.1" (\d+)', site.log_after('neutron', size))
        if one[1] != 'extensions'
    ]
    # The host looks when it hears of the port, or after a while.
    looks = asked.count(('GET', 'ports', '200'))
    assert asked[:5] == [
        ('GET', 'networks', '200'),
        ('GET', 'quotas', '200'),
        ('POST', 'ports', '201'),
        ('GET', 'networks', '200'),
        ('GET', 'subnets', '200'),
    ]
    assert len(asked) == 5 + looks and 1 <= looks <= 3
    port = of(client, server)
    site.clean()
    until(lambda: client.ports(ids=[port.id]) == [] and 'in flight' not in site.audit())
    site.assert_nothing_held()


def offer_bandwidth(site: Site, host: str) -> str:
    """A host's chassis says that its bridge is in the physical network, and has so much; the name of what Neutron
    reports of it to Placement."""
    options = f'resource_provider_bandwidths=br-ex:1000:1000,resource_provider_hypervisors=br-ex:{host}'
    subprocess.run(
        [
            str(neutron.SBCTL),
            f'--db={neutron.remote(site.layout, "sb")}',
            'set',
            'Chassis',
            host,
            f'other_config:ovn-bridge-mappings={neutron.PHYSICAL_NETWORK}:br-ex',
            f'other_config:ovn-cms-options="{options}"',
        ],
        check=True,
        timeout=30,
    )
    return f'{host}:OVN Controller agent:br-ex'


def test_a_port_that_guarantees_a_bandwidth(site: Site, client: NetworkClient, flavor: str) -> None:
    """It is held where the server is, and the port says on which of Neutron's providers; a network that gives its ports
    one is refused."""
    url, token = site.url('neutron') + '/v2.0', site.token('admin')

    def make(noun: str, path: str, **fields: object) -> Any:
        return http.call('POST', f'{url}/{path}', {noun: fields}, token=token).data[noun]

    def providers(**query: str) -> list[Any]:
        found: list[Any] = http.call(
            'GET', f'{site.url("placement")}/resource_providers?{urlencode(query)}', token=token
        ).data['resource_providers']
        return found

    names = {host: offer_bandwidth(site, host) for host in ('gpu1', 'gpu2')}
    until(lambda: all(providers(name=name) for name in names.values()))
    bridges = {providers(name=name)[0]['uuid']: host for host, name in names.items()}
    policy = make('policy', 'qos/policies', name='gold', shared=True)['id']
    make('minimum_bandwidth_rule', f'qos/policies/{policy}/minimum_bandwidth_rules', min_kbps=600, direction='egress')
    assert client.rules_of(policy) == {BANDWIDTH}
    wire = make(
        'network',
        'networks',
        name='gold-wire',
        shared=True,
        qos_policy_id=policy,
        **{'provider:network_type': 'vlan', 'provider:physical_network': neutron.PHYSICAL_NETWORK},
    )['id']
    make('subnet', 'subnets', network_id=wire, ip_version=4, cidr='10.51.0.0/24')
    refused = site.ask_create('refused', flavor, networks=[{'uuid': wire}])
    assert refused.status == 400 and policy in str(refused.data)
    port = http.call('POST', f'{url}/ports', {'port': {'network_id': wire}}, token=site.token('demo')).data['port'][
        'id'
    ]
    (server,) = site.boot(1, flavor, networks=[{'port': port}])

    def is_held() -> None:
        found = client.port(None, port)
        assert [bridges[uuid] for uuid in found.profile['allocation'].values()] == [site.at(server)]
        until(lambda: active(client, found))
        site.audit()

    is_held()
    site.act(server, 'migrate')
    site.await_status([server], 'VERIFY_RESIZE')
    is_held()
    site.act(server, 'revertResize')
    site.await_status([server], 'ACTIVE')
    is_held()
    site.call('DELETE', f'/servers/{server}/os-interface/{port}')
    until(lambda: client.port(None, port).profile == {} and 'in flight' not in site.audit())
    site.call('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': port}})
    is_held()
    site.clean()
    until(lambda: 'in flight' not in site.audit())
    site.assert_nothing_held()
    assert client.port(None, port).profile == {}
    client.delete_port(port)
    http.call('DELETE', f'{url}/networks/{wire}', token=token)


def test_a_delete_while_neutron_is_away(site: Site, client: NetworkClient, private: str, flavor: str) -> None:
    """The server is gone at once, its port when Neutron is back."""
    (server,) = site.boot(1, flavor, networks=[{'uuid': private}])
    port = of(client, server)
    site.stop('neutron')
    site.call('DELETE', f'/servers/{server}')
    until(lambda: gone(site, server), within=20.0)
    site.start('neutron')
    until(lambda: client.ports(ids=[port.id]) == [])
    site.assert_nothing_held()
