"""What clients of old versions ask this API for and other services have: who is asked, with whose token, and what is
shown of it.

``tests/api`` has the answers of each route, and who may ask for them.
"""

from __future__ import annotations

import pytest

from kilonova.objects.vif import Vif, VifAddress, VifSubnet
from tests.fixtures.cinder import MADE_AT, FakeCinder
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_vifs
from tests.unit.api.conftest import OTHER, PROJECT

NOSUCH = '11111111-2222-4333-8444-555555555555'
SERVER = '11111111-2222-4333-8444-666666666666'
USERS = {f'bob:{PROJECT}': PROJECT, f'eve:{OTHER}': OTHER, f'admin:{PROJECT}': None}


@pytest.fixture
def cinder():
    made = FakeCinder()
    made.users = USERS
    return made


@pytest.fixture
def neutron():
    made = FakeNeutron(hosts={'h1'})
    made.users = USERS
    made.public = made.add_network('public', 'p9', cidr='203.0.113.0/29', shared=True, **{'router:external': True})
    made.private = made.add_network('private', PROJECT, cidr='10.2.0.0/29')
    return made


@pytest.fixture
def site(make_site, cinder, neutron):
    return make_site(cinder=cinder, neutron=neutron)


def ask(site, method, path, body=None, **more):
    """The body of an answer, or (code, message) of a fault."""
    response = site.request(method, path, body, **{'user': 'bob', 'version': '2.35', **more})
    if response.status_int >= 400:
        (fault,) = response.json.values()
        return fault['code'], fault['message']
    return response.json if response.body else response.status_int


def broken(fake):
    """A service that can't be reached any more."""

    def fail(method, path):
        raise fake.broken()

    fake.before = fail


# --- volumes and snapshots -------------------------------------------------------------------------------------------
def test_a_volume_from_its_create_to_its_delete(site, cinder):
    """As its user, in Cinder's own words, and shown in those of old clients."""
    snapshot = cinder.add_snapshot(cinder.add_volume(PROJECT))
    asked = {
        'size': '3',
        'display_name': 'data',
        'display_description': 'of a run',
        'metadata': {'team': 'a'},
        'volume_type': 'shared',
        'availability_zone': 'nova',
        'snapshot_id': snapshot,
    }
    made = ask(site, 'POST', '/os-volumes', {'volume': asked})['volume']
    volume = cinder.volumes[made['id']]
    assert (volume['size'], volume['description'], volume['snapshot_id']) == (3, 'of a run', snapshot)
    assert cinder.headers[-1]['X-Auth-Token'] == f'bob:{PROJECT}'
    assert made == {
        'id': volume['id'],
        'status': 'creating',
        'size': 3,
        'displayName': 'data',
        'metadata': {'team': 'a'},
        'displayDescription': 'of a run',
        'createdAt': MADE_AT,
        'availabilityZone': 'nova',
        'volumeType': 'shared',
        'snapshotId': snapshot,
        'attachments': [{}],
    }
    path = f'/os-volumes/{made["id"]}'
    assert ask(site, 'GET', path)['volume'] == made | {'status': 'available'}
    assert ask(site, 'DELETE', path) == 202 and volume['id'] not in cinder.volumes
    gone = f'Volume {volume["id"]} could not be found.'
    assert ask(site, 'DELETE', path) == ask(site, 'GET', path) == (404, gone)


def test_a_volume_says_which_server_has_it(site, cinder):
    volume = cinder.add_volume(PROJECT)
    made = cinder.client.create_attachment(volume, SERVER, {'host': 'gpu1', 'mountpoint': '/dev/vdb'})
    cinder.client.complete_attachment(made.id)
    path = f'/os-volumes/{volume}'
    assert ask(site, 'GET', path)['volume']['attachments'] == [
        {'id': volume, 'volumeId': volume, 'serverId': SERVER, 'device': '/dev/vdb'}
    ]
    code, message = ask(site, 'DELETE', path)
    assert code == 400 and 'must not be migrating, attached' in message and volume in cinder.volumes


def test_a_snapshot_from_its_create_to_its_delete(site, cinder):
    volume = cinder.add_volume(PROJECT, status='in-use', size=2)
    asked = {'volume_id': volume, 'display_name': 'before', 'display_description': 'the run'}
    code, message = ask(site, 'POST', '/os-snapshots', {'snapshot': asked})
    assert code == 400 and 'status must be available' in message
    made = ask(site, 'POST', '/os-snapshots', {'snapshot': {**asked, 'force': 'True'}})['snapshot']
    assert made == {
        'id': next(iter(cinder.snapshots)),
        'volumeId': volume,
        'status': 'creating',
        'size': 2,
        'displayName': 'before',
        'displayDescription': 'the run',
        'createdAt': MADE_AT,
    }
    path = f'/os-snapshots/{made["id"]}'
    assert ask(site, 'GET', path)['snapshot'] == made | {'status': 'available'}
    assert ask(site, 'GET', path, user='eve', project=OTHER)[0] == 404
    assert ask(site, 'DELETE', path) == 202 and cinder.snapshots == {}
    assert ask(site, 'DELETE', path) == (404, f'Snapshot {made["id"]} could not be found.')


@pytest.mark.parametrize('noun', ['volume', 'snapshot'])
@pytest.mark.parametrize('tail', ['', '/detail'])
def test_a_page_of_ones_own(site, cinder, noun, tail):
    """The newest first; Cinder is asked for no more than is shown."""
    made = [cinder.add_volume(PROJECT) for _ in range(3)]
    theirs = cinder.add_volume(OTHER)
    if noun == 'snapshot':
        made = [cinder.add_snapshot(one) for one in made]
        cinder.add_snapshot(theirs)

    def listed(query=''):
        return [one['id'] for one in ask(site, 'GET', f'/os-{noun}s{tail}{query}')[f'{noun}s']]

    assert listed() == made[::-1]
    assert cinder.asked[-1][1] == f'/{noun}s/detail?limit=1000&offset=0'
    assert listed('?limit=1&offset=1') == [made[1]] and cinder.asked[-1][1].endswith('limit=1&offset=1')
    del cinder.asked[:]
    assert listed('?limit=0') == [] == cinder.asked
    assert ask(site, 'GET', f'/os-{noun}s{tail}?limit=-1')[0] == 400


@pytest.mark.parametrize(
    ('path', 'body', 'code', 'says'),
    [
        ('/os-volumes', {'volume': {'size': '#$%'}}, 400, 'size'),
        ('/os-volumes', {'volume': {'size': 0}}, 400, 'less than the minimum of 1'),
        ('/os-volumes', {'volume': {'display_name': 'x'}}, 400, "'size' is a required property"),
        ('/os-volumes', {'volume': {'size': 1, 'imageRef': NOSUCH}}, 400, 'imageRef'),
        ('/os-volumes', {'volume': {'size': 1, 'snapshot_id': NOSUCH}}, 404, f'Snapshot {NOSUCH} could not be found.'),
        ('/os-volumes', {'volume': {'size': 1, 'volume_type': 'gold'}}, 404, 'Volume type gold could not be found.'),
        ('/os-volumes', {'volume': {'size': 1, 'availability_zone': 'x'}}, 400, "Availability zone 'x' is invalid."),
        ('/os-snapshots', {'snapshot': {'volume_id': '../volumes'}}, 400, 'volume_id'),
        ('/os-snapshots', {'snapshot': {'volume_id': NOSUCH}}, 404, f'Volume {NOSUCH} could not be found.'),
    ],
)
def test_volumes_and_snapshots_that_are_refused(site, cinder, path, body, code, says):
    found, message = ask(site, 'POST', path, body)
    assert found == code and says in message and cinder.volumes == {}


def test_a_full_quota_of_volumes(site, cinder):
    """In Cinder's words."""
    cinder.limits.update({PROJECT: 0, 'snapshots': 0})
    code, message = ask(site, 'POST', '/os-volumes', {'volume': {'size': 1}})
    assert code == 403 and 'Maximum number of volumes allowed (0) exceeded' in message
    code, message = ask(site, 'POST', '/os-snapshots', {'snapshot': {'volume_id': cinder.add_volume(PROJECT)}})
    assert code == 403 and 'Maximum number of snapshots allowed exceeded' in message


def test_a_volume_service_that_does_not_answer(site, cinder):
    broken(cinder)
    code, message = ask(site, 'POST', '/os-volumes', {'volume': {'size': 1}})
    assert code == 503 and message.startswith('The volume service does not answer')


# --- networks --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('kind', ['', 'tenant-'])
def test_networks_that_a_user_sees(site, neutron, kind):
    theirs = neutron.add_network('theirs', OTHER)
    path = f'/os-{kind}networks'
    listed = ask(site, 'GET', path)['networks']
    assert [(one['id'], one['label'], one['cidr']) for one in listed] == [
        (neutron.public, 'public', 'None' if kind else None),
        (neutron.private, 'private', 'None' if kind else None),
    ]
    assert neutron.headers[-1]['X-Auth-Token'] == f'bob:{PROJECT}'
    assert ask(site, 'GET', f'{path}/{neutron.private}')['network'] == listed[1]
    for unknown in (theirs, NOSUCH, '..'):
        assert ask(site, 'GET', f'{path}/{unknown}')[0] == 404


def test_a_list_has_an_end(make_site, neutron):
    """No more than [api]max_limit, of however many pages Neutron has; and no page more than that takes is asked for."""
    site = make_site(neutron=neutron, api__max_limit=3)
    neutron.page = 2
    for number in range(4):
        neutron.add_network(f'n{number}', PROJECT)
    assert len(ask(site, 'GET', '/os-networks')['networks']) == 3
    assert [path for _, path in neutron.asked] == ['/networks?limit=3']


# --- security groups -------------------------------------------------------------------------------------------------
def rule(site, group, **fields):
    """A rule that is made, or a fault."""
    found = ask(site, 'POST', '/os-security-group-rules', {'security_group_rule': {'parent_group_id': group, **fields}})
    return found['security_group_rule'] if isinstance(found, dict) else found


def test_a_group_from_its_create_to_its_delete(site, neutron):
    made = ask(site, 'POST', '/os-security-groups', {'security_group': {'name': ' web ', 'description': 'd'}})
    group = made['security_group']['id']
    assert made['security_group'] == {
        'id': group,
        'name': ' web ',
        'description': 'd',
        'tenant_id': PROJECT,
        'rules': [],
    }
    path = f'/os-security-groups/{group}'
    assert ask(site, 'GET', path) == made
    assert ask(site, 'PUT', path, {'security_group': {'name': 'web'}})['security_group'] == {
        **made['security_group'],
        'name': 'web',
    }
    first = rule(site, group, ip_protocol='TCP', from_port=80, to_port='443')
    assert first == {
        'id': first['id'],
        'parent_group_id': group,
        'ip_protocol': 'tcp',
        'from_port': 80,
        'to_port': 443,
        'ip_range': {'cidr': '0.0.0.0/0'},
        'group': {},
    }
    second = rule(site, group, group_id=group)
    assert (second['group'], second['ip_range']) == ({'name': 'web', 'tenant_id': PROJECT}, {})
    assert ask(site, 'GET', path)['security_group']['rules'] == [first, second]
    gone = f'/os-security-group-rules/{first["id"]}'
    assert ask(site, 'DELETE', gone) == 202
    assert ask(site, 'DELETE', gone) == (404, f'Security group rule {first["id"]} could not be found.')
    assert ask(site, 'GET', path)['security_group']['rules'] == [second]
    assert ask(site, 'DELETE', path) == 202 and neutron.security_groups == {}
    unknown = (404, f"Unable to find security_group with name or id '{group}'")
    assert ask(site, 'GET', path) == ask(site, 'DELETE', path) == unknown
    assert ask(site, 'PUT', path, {'security_group': {'name': 'web'}}) == unknown


def test_which_groups_are_listed(site, neutron):
    """A page of the project's own; an administrator's may be of all projects."""
    own = [neutron.add_group(name, PROJECT) for name in 'abc']
    theirs = neutron.add_group('d', OTHER)

    def listed(query='', **who):
        return [one['id'] for one in ask(site, 'GET', f'/os-security-groups{query}', **who)['security_groups']]

    assert listed() == listed('?all_tenants=1') == own
    assert listed('?limit=1&offset=1') == [own[1]] and listed('?limit=0') == []
    assert listed('?all_tenants=1', user='admin') == [*own, theirs]


@pytest.mark.parametrize(
    ('fields', 'code', 'says'),
    [
        ({'group': 'web'}, 400, 'parent_group_id'),
        ({'group': NOSUCH}, 404, NOSUCH),
        ({'from_port': 65536}, 400, 'greater than the maximum of 65535'),
        ({'to_port': '99999'}, 400, 'to_port'),
        ({'from_port': 22, 'to_port': 21}, 400, 'port_range_min must be'),
        ({'cidr': '10.2.3.4.5'}, 400, 'is not an IPv4 or IPv6 address range'),
        ({'ip_protocol': 'tcp', 'from_port': -1, 'to_port': -1}, 400, '-1 (any ICMP type or code)'),
        ({'ip_protocol': 'udp', 'from_port': 53, 'to_port': 53}, 400, 'Security group rule already exists.'),
    ],
)
def test_rules_that_are_refused(site, neutron, fields, code, says):
    group = neutron.add_group('web', PROJECT)
    rule(site, group, ip_protocol='udp', from_port=53, to_port=53)
    found, message = rule(site, **{'group': group, **fields})
    assert found == code and says in message and len(neutron.security_groups[group]['security_group_rules']) == 1


def test_rules_of_icmp_and_of_ipv6(site, neutron):
    group = neutron.add_group('web', PROJECT)
    rule(site, group, ip_protocol='icmp', from_port=-1, to_port='-1')
    rule(site, group, ip_protocol='tcp', from_port=22, to_port=22, cidr='2001:db8::1/64')
    icmp, six = neutron.security_groups[group]['security_group_rules']
    assert (icmp['ethertype'], icmp['port_range_min'], icmp['port_range_max']) == ('IPv4', None, None)
    assert (six['ethertype'], six['remote_ip_prefix']) == ('IPv6', '2001:db8::1/64')


def test_groups_that_stay(site, neutron):
    """Those that ports have, and a project's default."""
    web, default = (neutron.add_group(name, PROJECT) for name in ('web', 'default'))
    neutron.add_port(neutron.private, PROJECT, security_groups=[web])
    for group, says in ((web, 'in use'), (default, 'removing default')):
        code, message = ask(site, 'DELETE', f'/os-security-groups/{group}')
        assert code == 400 and says in message and group in neutron.security_groups


def test_full_quotas_of_neutron(site, neutron):
    neutron.limits.update(groups=0, floatingips=0)
    for path, body in (('/os-security-groups', {'security_group': {'name': 'web'}}), ('/os-floating-ips', {})):
        code, message = ask(site, 'POST', path, body)
        assert code == 403 and message.startswith('Quota exceeded for resources')


def test_a_network_service_that_does_not_answer(site, neutron):
    broken(neutron)
    code, message = ask(site, 'POST', '/os-security-groups', {'security_group': {'name': 'web'}})
    assert code == 503 and message.startswith('The network service does not answer')


# --- floating addresses ----------------------------------------------------------------------------------------------
def test_a_floating_address_from_its_allocation_to_its_end(site, neutron):
    assert ask(site, 'GET', '/os-floating-ip-pools') == {'floating_ip_pools': [{'name': 'public'}]}
    made = ask(site, 'POST', '/os-floating-ips', {'pool': 'public'})['floating_ip']
    assert made == {'id': made['id'], 'ip': '203.0.113.2', 'pool': 'public', 'fixed_ip': None, 'instance_id': None}
    path = f'/os-floating-ips/{made["id"]}'
    assert ask(site, 'GET', path)['floating_ip'] == made
    assert ask(site, 'GET', '/os-floating-ips')['floating_ips'] == [made]
    assert ask(site, 'GET', '/os-floating-ips', user='eve', project=OTHER)['floating_ips'] == []
    assert ask(site, 'DELETE', path, user='eve', project=OTHER)[0] == 404
    assert ask(site, 'DELETE', path) == 202 and neutron.floatingips == {}
    assert ask(site, 'DELETE', path) == ask(site, 'GET', path) == (404, f'Floating IP not found for ID {made["id"]}.')


def test_pools(site, neutron):
    """By name or id, or the only one; one that is used up."""
    assert ask(site, 'POST', '/os-floating-ips', {'pool': 'nosuch'}) == (404, 'Floating IP pool nosuch not found.')
    assert ask(site, 'POST', '/os-floating-ips', {'pool': 'private'})[0] == 404
    for body in ({}, {'pool': neutron.public}, {'pool': None}, {}, {}):
        assert ask(site, 'POST', '/os-floating-ips', body)['floating_ip']['pool'] == 'public'
    assert ask(site, 'POST', '/os-floating-ips', {}) == (404, 'No more floating IPs in pool public.')
    neutron.add_network('second', 'p9', shared=True, **{'router:external': True})
    assert ask(site, 'POST', '/os-floating-ips', {}) == (
        400,
        'There are 2 external networks: pool must name one of them.',
    )


# --- addresses of servers --------------------------------------------------------------------------------------------
def networked(site, neutron):
    """A server with a port: both ids."""
    server = site.server()
    return server, neutron.add_port(neutron.private, PROJECT, device_id=server, device_owner='compute:nova')


def act(site, server, action, version='2.43', **body):
    """The status of an action, or (code, message)."""
    return ask(site, 'POST', f'/servers/{server}/action', {action: body}, version=version)


def looks(site, *servers):
    """How often a conductor is told to look at these servers' ports again."""
    rows = [row for server in servers for row in site.rows(server)]
    assert {row['kind'] for row in rows} == {'network_changed'} and len(rows) == len(servers)
    return sum(name == 'run_operation' for name, _ in site.conductor.calls)


def test_a_floating_address_of_a_server(site, neutron):
    """Another server gets it, and may give it back; conductors look again at all of them."""
    (first, port), (second, other) = networked(site, neutron), networked(site, neutron)
    made = ask(site, 'POST', '/os-floating-ips', {})['floating_ip']
    path, address = f'/os-floating-ips/{made["id"]}', made['ip']
    assert act(site, first, 'addFloatingIp', address=address) == 202
    shown = ask(site, 'GET', path)['floating_ip']
    assert (shown['instance_id'], shown['fixed_ip']) == (first, neutron.ports[port]['fixed_ips'][0]['ip_address'])
    fixed = neutron.ports[other]['fixed_ips'][0]['ip_address']
    assert act(site, second, 'addFloatingIp', address=address, fixed_address=fixed) == 202
    assert ask(site, 'GET', path)['floating_ip']['instance_id'] == second
    assert act(site, first, 'removeFloatingIp', address=address) == (
        409,
        f'Floating IP {address} is not associated with instance {first}.',
    )
    assert act(site, second, 'removeFloatingIp', address=address) == 202
    assert ask(site, 'GET', path)['floating_ip'] == made
    act(site, first, 'addFloatingIp', address=address)
    ask(site, 'DELETE', path)
    assert looks(site, first, second) == 6


def test_the_answer_to_a_change_of_floating_addresses_comes_after_the_change_is_shown(site, neutron):
    """No conductor has looked at the ports: the server that gets the address is shown with it, the one that had it
    without it."""
    servers = []
    for number in range(2):
        server, port = networked(site, neutron)
        fixed = neutron.ports[port]['fixed_ips'][0]['ip_address']
        subnet = VifSubnet('10.2.0.0/29', 4, addresses=(VifAddress(fixed), VifAddress(f'10.2.0.{7 - number}')))
        with site.cell1.write() as conn:
            put_vifs(
                conn,
                server,
                [
                    Vif(
                        id=port,
                        mac='fa:16:3e:00:00:01',
                        network_id=neutron.private,
                        label='private',
                        project_id=PROJECT,
                        type='ovs',
                        subnets=(subnet,),
                    )
                ],
            )
        servers.append(server)
    first, second = servers

    def shown(server):
        return [
            one['addr']
            for one in ask(site, 'GET', f'/servers/{server}')['server']['addresses']['private']
            if one['OS-EXT-IPS:type'] == 'floating'
        ]

    made = ask(site, 'POST', '/os-floating-ips', {})['floating_ip']
    assert act(site, first, 'addFloatingIp', address=made['ip']) == 202
    assert (shown(first), shown(second)) == ([made['ip']], [])
    assert act(site, second, 'addFloatingIp', address=made['ip']) == 202
    assert (shown(first), shown(second)) == ([], [made['ip']])
    assert act(site, second, 'removeFloatingIp', address=made['ip']) == 202
    assert (shown(first), shown(second)) == ([], [])
    act(site, first, 'addFloatingIp', address=made['ip'])
    assert ask(site, 'DELETE', f'/os-floating-ips/{made["id"]}') == 202
    assert shown(first) == []


def test_floating_addresses_that_are_refused(site, neutron):
    server, _ = networked(site, neutron)
    one, two = (ask(site, 'POST', '/os-floating-ips', {})['floating_ip']['ip'] for _ in range(2))
    unknown = (404, 'Floating IP not found for address 0.0.0.0.')
    assert act(site, server, 'addFloatingIp', address='0.0.0.0') == unknown
    assert act(site, server, 'removeFloatingIp', address='0.0.0.0') == unknown
    assert act(site, server, 'addFloatingIp', address='')[0] == 400
    assert act(site, server, 'addFloatingIp', address=one, fixed_address='10.2.0.6') == (
        400,
        f'Specified fixed address 10.2.0.6 not assigned to instance {server}',
    )
    bare = site.server()
    assert act(site, bare, 'addFloatingIp', address=one) == (400, f'No fixed IPs associated to instance {bare}')
    assert act(site, server, 'addFloatingIp', address=one) == 202
    code, message = act(site, server, 'addFloatingIp', address=two)
    assert code == 400 and 'already has a floating IP' in message


def test_a_fixed_address_more_and_one_less(site, neutron):
    server, port = networked(site, neutron)
    (first,) = neutron.ports[port]['fixed_ips']
    assert act(site, server, 'addFixedIp', networkId=neutron.private) == 202
    kept, more = neutron.ports[port]['fixed_ips']
    assert kept == first and more['ip_address'] != first['ip_address']
    assert act(site, server, 'removeFixedIp', address=first['ip_address']) == 202
    assert neutron.ports[port]['fixed_ips'] == [more]
    assert looks(site, server) == 2
    assert act(site, server, 'removeFixedIp', address=first['ip_address']) == (
        400,
        f"Instance {server} doesn't have fixed IP '{first['ip_address']}'.",
    )
    assert act(site, server, 'addFixedIp', networkId=NOSUCH) == (
        404,
        f'Instance {server} has no port of network {NOSUCH}.',
    )
    for _ in range(4):
        assert act(site, server, 'addFixedIp', networkId=neutron.private) == 202
    assert act(site, server, 'addFixedIp', networkId=neutron.private) == (
        400,
        f'No fixed IP addresses available for network: {neutron.private}',
    )


def test_a_locked_server_keeps_its_fixed_addresses(site, neutron):
    server, port = networked(site, neutron)
    before = list(neutron.ports[port]['fixed_ips'])
    ask(site, 'POST', f'/servers/{server}/action', {'lock': None})
    for action, body in (
        ('addFixedIp', {'networkId': neutron.private}),
        ('removeFixedIp', {'address': before[0]['ip_address']}),
    ):
        assert act(site, server, action, **body) == (409, f'Instance {server} is locked')
    assert neutron.ports[port]['fixed_ips'] == before


@pytest.mark.parametrize(
    ('action', 'body'),
    [
        ('addFixedIp', {'networkId': NOSUCH}),
        ('removeFixedIp', {'address': '10.2.0.3'}),
        ('addFloatingIp', {'address': '203.0.113.2'}),
        ('removeFloatingIp', {'address': '203.0.113.2'}),
    ],
)
def test_actions_of_addresses_in_clouds_without_networks(make_site, action, body):
    site = make_site()
    server = site.server()
    code, message = act(site, server, action, **body)
    assert code == 400 and message.startswith('There is no network service in this cloud')
    assert act(site, server, action, version='2.44', **body) == (404, 'The resource could not be found.')


# --- clouds without them ---------------------------------------------------------------------------------------------
PATHS = [
    '/os-volumes',
    '/os-volumes/detail',
    f'/os-volumes/{NOSUCH}',
    '/os-snapshots',
    '/os-snapshots/detail',
    f'/os-snapshots/{NOSUCH}',
    '/os-networks',
    f'/os-tenant-networks/{NOSUCH}',
    '/os-security-groups',
    f'/os-security-groups/{NOSUCH}',
    '/os-floating-ips',
    f'/os-floating-ips/{NOSUCH}',
    '/os-floating-ip-pools',
]


@pytest.mark.parametrize('path', PATHS)
def test_clouds_without_the_service_have_no_such_path(make_site, path):
    site = make_site()
    assert ask(site, 'GET', path) == ask(site, 'GET', path, version='2.36') == (404, 'The resource could not be found.')
