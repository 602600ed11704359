"""The real Neutron in the one-machine cloud (``make up NETWORK=1``), and our client of it."""
from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from kilonova import conf as kilonova_conf
from kilonova.clients import network as network_client
from kilonova.clients.network import NetworkClient, Port
from kilonova.cmd import parts
from kilonova.context import RequestContext
from tests.integration.site import Site
from tools.cloud import http, neutron, process

NAMES = ('neutron', 'ovn-hosts', 'ovn-nb', 'ovn-northd', 'ovn-sb')


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cloud with Neutron."""
    made = Site(tmp_path_factory.mktemp('neutron'), network=True)
    try:
        made.up()
        yield made
    finally:
        made.end()


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


def until(done: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def create(client: NetworkClient, user: RequestContext, network_id: str, host: str | None, *, server: str = '',
           **more: object) -> Port:
    return client.create_port(network_id, project_id=user.project_id, device_id=server or str(uuid.uuid4()),
                              device_owner='compute:nova', host=host, **more)  # type: ignore[arg-type]


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
    with pytest.raises(network_client.FixedIpInUse):
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
    made = http.call('POST', site.url('neutron') + '/v2.0/ports', {'port': {'network_id': private}},
                     token=site.token('demo')).data['port']
    port = client.port(None, made['id'])
    bound = client.bind(port, host='gpu1', device_id=str(uuid.uuid4()), device_owner='compute:nova',
                        profile={'migrating_to': 'gpu1'})
    assert (bound.vif_type, bound.profile) == ('ovs', {'migrating_to': 'gpu1'})
    client.unbind(bound)
    back = client.port(None, port.id)
    assert (back.vif_type, back.host, back.device_id, back.profile, back.fixed_ips) == (
        'unbound', None, '', {}, port.fixed_ips)
    until(lambda: client.port(None, port.id).status == 'DOWN')
    client.delete_port(port.id)
    client.unbind(bound)


def test_what_it_refuses(client: NetworkClient, user: RequestContext, private: str) -> None:
    """By the types on which our errors rest."""
    missing = str(uuid.uuid4())
    with pytest.raises(network_client.PortNotFound, match=missing):
        client.port(user, missing)
    with pytest.raises(network_client.NetworkNotFound, match=missing):
        create(client, user, missing, 'gpu1')
    with pytest.raises(network_client.SecurityGroupNotFound):
        create(client, user, private, 'gpu1', security_groups=[missing])
    with pytest.raises(network_client.SecurityGroupNotFound, match='nosuch'):
        client.security_groups(user, ['nosuch'])
    with pytest.raises(network_client.FixedIpNotOfNetwork, match=f'Fixed IP 10.99.0.1 .* for network {private}'):
        create(client, user, private, 'gpu1', fixed_ip='10.99.0.1')
    assert client.floating_ips([missing]) == []


def test_the_quota_of_ports(client: NetworkClient, site: Site, user: RequestContext, private: str) -> None:
    url, token = f'{site.url("neutron")}/v2.0/quotas/{user.project_id}', site.token('admin')
    used = client.port_quota(user.project_id).used
    http.call('PUT', url, {'quota': {'port': used + 1}}, token=token)
    port = create(client, user, private, None)
    quota = client.port_quota(user.project_id)
    assert (quota.limit, quota.used, quota.has_room(1)) == (used + 1, used + 1, False)
    with pytest.raises(network_client.PortQuotaFull):
        create(client, user, private, None)
    client.delete_port(port.id)
    http.call('DELETE', url, token=token)
    assert client.port_quota(user.project_id).used == used


def test_many_ids_are_asked_for(client: NetworkClient, private: str) -> None:
    """In requests that the server takes."""
    assert set(client.networks(None, [*(str(uuid.uuid4()) for _ in range(200)), private])) == {private}
