"""NetworkClient against a network service with the rules of the real one; ``tests/integration/test_neutron.py`` asks
that."""

from __future__ import annotations

import json
import uuid
from urllib.parse import parse_qs, urlsplit

import pytest

from kilonova import errors
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron import request
from kilonova.clients.neutron.floating_ips import FloatingIp
from kilonova.clients.neutron.ports import FixedIp, Port, PortQuota, name_in_dns
from kilonova.clients.neutron.refusals import (
    FixedIpInUse,
    FixedIpNotOfNetwork,
    NetworkAccountRefused,
    NetworkConflict,
    NetworkForbidden,
    NetworkInvalid,
    NetworkNotFound,
    NoMoreFixedIps,
    PortChanged,
    PortNotFound,
    PortQuotaFull,
    SecurityGroupNotApplicable,
    SecurityGroupNotFound,
    SecurityGroupNotUnique,
)
from kilonova.clients.query import LIMIT
from kilonova.context import RequestContext
from tests.fixtures.neutron import FakeNeutron

PROJECT, OTHER, SERVER = '1' * 32, '2' * 32, str(uuid.uuid4())
USER = RequestContext(auth_token='of-user', user_id='u', project_id=PROJECT)


@pytest.fixture
def neutron() -> FakeNeutron:
    made = FakeNeutron(hosts={'gpu1'})
    made.users = {'of-user': PROJECT}
    return made


@pytest.fixture
def private(neutron: FakeNeutron) -> str:
    return neutron.add_network('private', PROJECT, cidr='10.2.0.0/29')


def create(neutron: FakeNeutron, network: str, host: str | None = 'gpu1', **fields: object) -> Port:
    return neutron.client.create_port(
        network, project_id=PROJECT, device_id=SERVER, device_owner='compute:nova', host=host, **fields
    )  # type: ignore[arg-type]


def test_a_port_is_made_and_bound_by_one_request(neutron, private):
    web = neutron.add_group('web', PROJECT)
    port = create(neutron, private, fixed_ip='10.2.0.5', security_groups=[web])
    assert [method for method, _path in neutron.asked] == ['POST']
    subnet = neutron.networks[private]['subnets'][0]
    assert port == Port(
        id=port.id,
        network_id=private,
        project_id=PROJECT,
        mac=port.mac,
        status='ACTIVE',
        admin_state_up=True,
        device_id=SERVER,
        device_owner='compute:nova',
        fixed_ips=(FixedIp(subnet, '10.2.0.5'),),
        security_groups=(web,),
        vif_type='ovs',
        vif_details=port.vif_details,
        host='gpu1',
        revision=1,
        dns_name='',
    )
    assert (port.vif_details['bridge_name'], port.binding_failed, port.active) == ('br-int', False, True)


def test_ports_have_names_where_neutron_knows_such(neutron, private):
    """Whether it does is asked once. A port that is given back has none."""
    ports = [create(neutron, private, name='web') for _ in range(2)]
    assert [port.dns_name for port in ports] == ['web', 'web']
    assert neutron.asked[0] == ('GET', '/extensions') and [method for method, _ in neutron.asked[1:]] == ['POST'] * 2
    own = neutron.client.port(None, neutron.add_port(private, PROJECT))
    bound = neutron.client.bind(own, host='gpu1', device_id=SERVER, device_owner='compute:nova', name='web.example.org')
    assert bound.dns_name == 'web.example.org'
    neutron.asked.clear()
    neutron.client.set_name(bound, 'web.example.org')
    assert neutron.asked == []
    neutron.client.set_name(bound, 'db')
    neutron.client.unbind(neutron.client.port(None, own.id))
    assert neutron.client.port(None, own.id).dns_name == ''


@pytest.mark.parametrize(
    ('hostname', 'name'),
    [
        ('Web.example.org', 'web.example.org'),
        ('123', '123'),
        ('a' * 63, 'a' * 63),
        ('ubuntu-24.04', ''),
        ('a..b', ''),
        ('a' * 64, ''),
        ('-a', ''),
        ('a-.b', ''),
        ('a.1b', 'a.1b'),
        ('', ''),
    ],
)
def test_hostnames_as_names_in_dns(hostname, name):
    assert name_in_dns(hostname) == name


def test_ports_have_no_names_where_neutron_knows_none(private, neutron):
    neutron.extensions.clear()
    assert create(neutron, private, name='web').dns_name is None
    own = neutron.client.port(None, neutron.add_port(private, PROJECT))
    bound = neutron.client.bind(own, host='gpu1', device_id=SERVER, device_owner='compute:nova', name='web')
    neutron.client.set_name(bound, 'web')
    neutron.client.unbind(bound)
    assert 'dns_name' not in neutron.ports[own.id] and not neutron.ports[own.id]['device_id']


def test_a_host_that_can_not_bind(neutron, private):
    """Neutron answers 201."""
    port = create(neutron, private, 'gone')
    assert (port.binding_failed, port.active, port.host) == (True, False, 'gone')


def test_one_that_waits_for_its_guest(neutron, private):
    neutron.plugging = False
    port = create(neutron, private)
    assert (port.vif_type, port.active) == ('ovs', False)
    neutron.plug(port.id)
    assert neutron.client.port(None, port.id).active


def test_one_that_is_switched_off_is_not_waited_for(neutron, private):
    neutron.plugging = False
    port = neutron.client.port(None, neutron.add_port(private, PROJECT, admin_state_up=False))
    assert (port.status, port.active) == ('DOWN', True)


def test_a_user_s_port_is_bound_and_given_back(neutron, private):
    """What its owner wrote into the profile stays."""
    port_id = neutron.add_port(
        private, PROJECT, **{'binding:profile': {'capabilities': ['switchdev'], 'pci_slot': 'stale'}}
    )
    owned = neutron.client.port(None, port_id)
    assert (owned.host, owned.vif_type) == (None, 'unbound')
    bound = neutron.client.bind(
        owned, host='gpu1', device_id=SERVER, device_owner='compute:nova', profile={'pci_slot': '0000:02:00.1'}
    )
    assert (bound.host, bound.device_id, bound.vif_type) == ('gpu1', SERVER, 'ovs')
    assert bound.profile == {'capabilities': ['switchdev'], 'pci_slot': '0000:02:00.1'}
    neutron.client.unbind(bound)
    back = neutron.client.port(None, port_id)
    assert (back.host, back.device_id, back.device_owner, back.vif_type, back.profile, back.fixed_ips) == (
        None,
        '',
        '',
        'unbound',
        {'capabilities': ['switchdev']},
        owned.fixed_ips,
    )


def test_a_profile_that_stays_as_it_is_is_not_sent(neutron, private):
    """Writing one takes the role service."""
    owned = neutron.client.port(None, neutron.add_port(private, PROJECT))
    body = []
    real = neutron.send
    neutron.send = lambda request, **kwargs: (body.append(request.body), real(request, **kwargs))[1]
    neutron.client.bind(owned, host='gpu1', device_id=SERVER, device_owner='compute:nova')
    assert set(json.loads(body[0])['port']) == {'binding:host_id', 'device_id', 'device_owner'}


def test_giving_back_may_be_repeated(neutron, private):
    port = create(neutron, private)
    for _ in range(2):
        neutron.client.delete_port(port.id)
        neutron.client.unbind(port)
    assert neutron.ports == {}
    with pytest.raises(PortNotFound, match=f'Port id {port.id} could not be found'):
        neutron.client.bind(port, host='gpu1', device_id=SERVER, device_owner='compute:nova')


def test_ports_of_a_server_and_by_id(neutron, private):
    mine, other = create(neutron, private), neutron.client.port(None, neutron.add_port(private, OTHER))
    assert neutron.client.ports(device_id=SERVER) == [mine]
    assert neutron.client.ports(ids=[other.id, mine.id, str(uuid.uuid4())]) == [mine, other]
    assert neutron.client.ports(ids=[]) == []
    assert [port.id for port in neutron.client.ports(ids=[other.id, mine.id], ctxt=USER)] == [mine.id]
    assert neutron.client.ports_at(private, other.fixed_ips[0].address) == [other]


def test_a_port_that_this_user_may_not_see(neutron, private):
    other = neutron.add_port(private, OTHER)
    with pytest.raises(PortNotFound, match=f'^Port id {other} could not be found.$'):
        neutron.client.port(USER, other)
    assert neutron.client.port(None, other).id == other


def test_whom_it_asks_as(neutron, private):
    neutron.client.networks(USER, [private])
    neutron.client.networks(None, [private])
    user, service = neutron.headers
    assert user['X-Auth-Token'] == 'of-user'
    assert (service['X-Auth-Token'], service['X-Service-Token']) == ('notused', 'notused')


def test_networks_and_subnets(neutron, private):
    shared = neutron.add_network('shared', OTHER, shared=True, **{'provider:physical_network': 'physnet1'})
    hidden = neutron.add_network('hidden', OTHER)
    found = neutron.client.networks(USER, [private, shared, hidden])
    assert set(found) == {private, shared}
    assert (found[private].name, found[private].mtu, found[private].external) == ('private', 1442, False)
    assert neutron.client.networks(None, [shared])[shared].physical_network == 'physnet1'
    assert {one.id for one in neutron.client.available_networks(USER, PROJECT)} == {private, shared}
    (subnet,) = neutron.client.subnets(found[private].subnet_ids).values()
    assert (subnet.cidr, subnet.gateway_ip, subnet.dns_nameservers, subnet.host_routes) == (
        '10.2.0.0/29',
        '10.2.0.1',
        ('9.9.9.9',),
        (),
    )
    neutron.subnets[subnet.id]['ipv6_address_mode'] = 'slaac'
    assert neutron.client.subnets([subnet.id])[subnet.id].ipv6_address_mode == 'slaac'


def test_many_ids_come_in_requests_of_a_bounded_length(neutron, private):
    ids = [str(uuid.uuid4()) for _ in range(200)]
    assert set(neutron.client.networks(None, [*ids, private, private])) == {private}
    queries = [urlsplit(path).query for _method, path in neutron.asked]
    assert len(queries) == 3
    assert all(len(query) <= LIMIT for query in queries)
    assert [one for query in queries for one in parse_qs(query)['id']] == [*ids, private]


def test_answers_in_pages(neutron, private):
    """The address of the next page is that of the server as it sees itself."""
    ports = [create(neutron, private) for _ in range(3)]
    neutron.page = 2
    assert neutron.client.ports(device_id=SERVER) == ports


def test_a_list_that_leads_back_ends(neutron, private, monkeypatch):
    answer = {'ports': [], 'ports_links': [{'rel': 'next', 'href': 'http://neutron/v2.0/ports?marker=1'}]}
    monkeypatch.setattr(request, 'body_of', lambda response, ctxt: answer)
    with pytest.raises(errors.Unanswered, match=r'^The network service returned the same page of ports again'):
        neutron.client.ports(device_id=SERVER)


def test_floating_ips(neutron, private):
    port = create(neutron, private)
    made = neutron.add_floating_ip('203.0.113.7', port.id)
    assert neutron.client.floating_ips([port.id, SERVER]) == [
        FloatingIp(made, '203.0.113.7', port.id, port.fixed_ips[0].address, port.network_id)
    ]


def test_security_groups_by_name_and_id(neutron):
    web, other = neutron.add_group('web', PROJECT), neutron.add_group('db', PROJECT)
    neutron.add_group('web', OTHER)
    found = neutron.client.security_groups(USER, [other, 'web'])
    assert [group.id for group in found] == [other, web]
    admin = RequestContext(auth_token='of-admin', user_id='a', project_id=PROJECT)
    assert [group.id for group in neutron.client.security_groups(admin, ['web'])] == [web], 'who sees those of all'
    with pytest.raises(SecurityGroupNotFound, match=r"^Unable to find security_group with name or id 'no'$"):
        neutron.client.security_groups(USER, ['web', 'no'])
    neutron.add_group('web', PROJECT)
    with pytest.raises(SecurityGroupNotUnique, match="for name 'web'"):
        neutron.client.security_groups(USER, ['web'])


def test_groups_of_a_port_are_set_as_a_user(neutron, private):
    """Nothing else of the port is, also where its user sees how it is bound."""
    port, web = create(neutron, private), neutron.add_group('web', PROJECT)
    neutron.ports[port.id]['binding:profile'] = {'migrating_to': 'gpu2'}
    admin = RequestContext(auth_token='of-admin', user_id='a', project_id=PROJECT)
    seen = neutron.client.port(admin, port.id)
    neutron.client.set_security_groups(admin, seen, [web])
    assert neutron.headers[-1]['X-Auth-Token'] == 'of-admin'
    made = neutron.ports[port.id]
    assert (made['security_groups'], made['binding:profile']) == ([web], {'migrating_to': 'gpu2'})
    with pytest.raises(PortChanged):
        neutron.client.set_security_groups(USER, seen, [])
    with pytest.raises(SecurityGroupNotFound):
        neutron.client.set_security_groups(USER, neutron.client.port(USER, port.id), [PROJECT])


def test_the_quota_of_ports(neutron, private):
    neutron.limits[PROJECT] = 2
    create(neutron, private)
    quota = neutron.client.port_quota(PROJECT)
    assert quota == PortQuota(limit=2, used=1)
    neutron.limits[PROJECT] = -1
    assert neutron.client.port_quota(PROJECT).limit is None


def test_what_a_port_is_refused_for(neutron, private):
    missing = str(uuid.uuid4())
    bare = neutron.add_network('bare', PROJECT)
    group = neutron.add_group('web', PROJECT)
    taken = create(neutron, private).fixed_ips[0].address
    for network, fields, error, text in (
        (missing, {}, NetworkNotFound, f'Network {missing} could not be found.'),
        (private, {'security_groups': [missing]}, SecurityGroupNotFound, missing),
        (
            bare,
            {'security_groups': [group]},
            SecurityGroupNotApplicable,
            'Network requires port_security_enabled and subnet associated in order to apply security groups.',
        ),
        (private, {'fixed_ip': taken}, FixedIpInUse, f'Fixed IP address {taken} is already in use.'),
        (
            private,
            {'fixed_ip': '10.99.0.1'},
            FixedIpNotOfNetwork,
            f'Invalid input received: Fixed IP 10.99.0.1 is not a valid ip address for network {private}.',
        ),
    ):
        with pytest.raises(error) as caught:
            create(neutron, network, **fields)
        assert text in str(caught.value)
    while len(neutron.ports) < 5:
        create(neutron, private)
    with pytest.raises(NoMoreFixedIps, match=f'for network: {private}'):
        create(neutron, private)
    neutron.limits[PROJECT] = len(neutron.ports)
    with pytest.raises(PortQuotaFull, match=r'^Maximum number of ports exceeded$'):
        create(neutron, private)


@pytest.mark.parametrize(
    ('status', 'ctxt', 'error'),
    [
        (400, None, NetworkInvalid),
        (404, None, NetworkInvalid),
        (409, None, NetworkConflict),
        (403, None, NetworkAccountRefused),
        (403, USER, NetworkForbidden),
    ],
)
def test_refusals_of_other_types(neutron, monkeypatch, status, ctxt, error):
    def refuse(*_args):
        return status, {'NeutronError': {'type': 'Strange', 'message': 'no\nway', 'detail': ''}}

    monkeypatch.setattr(neutron, '_route', refuse)
    with pytest.raises(error, match='no way'):
        neutron.client.port(ctxt, 'x')


@pytest.mark.parametrize('body', [None, 'no', ['no'], {'NeutronError': 'no'}])
def test_a_refusal_that_is_not_neutron_s(neutron, monkeypatch, body):
    monkeypatch.setattr(neutron, '_route', lambda *_args: (404, body))
    with pytest.raises(NetworkInvalid, match='The network service refuses the request: '):
        neutron.client.port(None, 'x')
    with pytest.raises(NetworkInvalid):
        neutron.client.networks(None, ['x'])


def test_an_answer_that_is_lost(neutron, private):
    """The port is there: it is found by its server."""

    def broken(method, path):
        raise neutron.broken()

    neutron.after = broken
    with pytest.raises(errors.Unanswered):
        create(neutron, private)
    neutron.after = None
    (port,) = neutron.client.ports(device_id=SERVER)
    assert port.host == 'gpu1'


def test_an_id_leads_to_no_other_resource(neutron):
    with pytest.raises(PortNotFound):
        neutron.client.port(None, '../networks')
    assert neutron.asked == [('GET', '/ports/..%2Fnetworks')]


def test_no_account_at_all():
    from keystoneauth1 import adapter as ks_adapter
    from keystoneauth1 import session as ks_session

    nobody = NetworkClient(ks_adapter.Adapter(ks_session.Session(), service_type='network'))
    with pytest.raises(errors.Unanswered):
        nobody.port(None, 'x')
