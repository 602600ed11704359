"""What a create asks of the network service: the forms of networks and groups, what is refused, and what it costs."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
import sqlalchemy as sa

from kilonova.db.queries import instances, operations
from kilonova.objects.vif import Vif, VifAddress, VifSubnet
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_vifs
from tests.unit.api.conftest import IMAGE, OTHER, PROJECT

NOSUCH = '11111111-2222-4333-8444-555555555555'


@pytest.fixture
def neutron():
    made = FakeNeutron(hosts={'h1'})
    made.users = {f'bob:{PROJECT}': PROJECT, f'eve:{OTHER}': OTHER, f'admin:{PROJECT}': None}
    return made


@pytest.fixture
def site(make_site, neutron):
    made = make_site(neutron=neutron)
    made.small = made.flavor()
    return made


@pytest.fixture
def private(neutron):
    return neutron.add_network('private', PROJECT, cidr='10.2.0.0/24')


def post(site, networks, user='bob', project=PROJECT, version='2.104', **values):
    body = {'name': 's', 'flavorRef': site.small, 'imageRef': IMAGE, **values}
    if networks is not None:
        body['networks'] = networks
    return site.request('POST', '/servers', {'server': body}, user=user, project=project, version=version)


def created(site, networks, **values):
    """(network, port, address) of each interface that the conductor is told of, per server."""
    response = post(site, networks, **values)
    assert response.status_int == 202, response.text
    return [
        [
            (one.network_id, one.port_id, None if one.address is None else str(one.address))
            for one in spec.requested_networks
        ]
        for spec in site.asked_for('request_spec')
    ]


def refused(site, networks, **values):
    response = post(site, networks, **values)
    (fault,) = response.json.values()
    assert site.conductor.calls == [] and fault['code'] == response.status_int
    return fault['code'], fault['message']


# --- what is asked for -----------------------------------------------------------------------------------------------
def test_forms_of_networks(site, neutron, private):
    """In the user's order; a port is told with its network."""
    other = neutron.add_network('other', PROJECT, cidr='10.3.0.0/24')
    port = neutron.add_port(other, PROJECT)
    asked = [
        {'uuid': private, 'fixed_ip': '10.2.0.9'},
        {'port': port},
        {'uuid': other.upper(), 'port': None},
        {'uuid': private},
    ]
    assert created(site, asked) == [
        [(private, None, '10.2.0.9'), (other, port, None), (other, None, None), (private, None, None)]
    ]


def test_tags_go_along(site, neutron, private):
    """One may be said more than once."""
    for bad in ('', 'x' * 61, 'a,b', 'a/b', 1, None):
        assert refused(site, [{'uuid': private, 'tag': bad}])[0] == 400, bad
    port = neutron.add_port(private, PROJECT)
    created(
        site,
        [
            {'uuid': private, 'tag': 'x' * 60},
            {'port': port, 'tag': 'nic1'},
            {'uuid': private, 'tag': 'nic1'},
            {'uuid': private},
        ],
    )
    (spec,) = site.asked_for('request_spec')
    assert [one.tag for one in spec.requested_networks] == ['x' * 60, 'nic1', 'nic1', None]


def test_none_asks_for_nothing(site, neutron, private):
    neutron.add_port(private, PROJECT)
    assert created(site, 'none') == [[]] and neutron.asked == []


@pytest.mark.parametrize(('networks', 'version'), [('auto', '2.104'), ([], '2.104'), ([], '2.36'), (None, '2.36')])
def test_the_only_network(site, neutron, private, networks, version):
    """External networks, those that are switched off and those of other projects are none of it."""
    neutron.add_network('public', 'p9', cidr='10.4.0.0/24', shared=True, **{'router:external': True})
    neutron.add_network('off', PROJECT, cidr='10.5.0.0/24', admin_state_up=False)
    neutron.add_network('theirs', OTHER, cidr='10.6.0.0/24')
    assert created(site, networks, version=version) == [[(private, None, None)]]


def test_a_shared_one_counts(site, neutron, private):
    shared = neutron.add_network('shared', OTHER, cidr='10.4.0.0/24', shared=True)
    assert refused(site, 'auto') == (409, 'Multiple possible networks found, use a Network ID to be more specific.')
    neutron.networks.pop(private)
    assert created(site, 'auto') == [[(shared, None, None)]]


def test_no_network_at_all(site, neutron):
    """One is made later, where that can be done."""
    neutron.limits[PROJECT] = 0
    assert refused(site, 'auto') == (403, 'Maximum number of ports exceeded')
    del neutron.limits[PROJECT]
    assert created(site, 'auto', security_groups=[{'name': neutron.add_group('web', PROJECT)}]) == [
        [('auto', None, None)]
    ]
    assert neutron.topologies == {}


def test_no_network_and_none_is_made(site, neutron):
    text = (
        f'Unable to automatically allocate a network for project {PROJECT}: The network service refuses the request: '
    )
    neutron.has_pool = False
    assert refused(site, 'auto') == (400, text + 'Deployment error: No default subnetpools defined.')
    neutron.extensions.clear()
    assert refused(site, 'auto') == (400, text + 'The resource could not be found.')
    assert created(site, [], version='2.36') == [[]]


def test_several_servers_cost_as_much_as_one(site, neutron, private):
    assert len(created(site, [{'uuid': private}], min_count=3)) == 3
    assert [path.partition('?')[0] for _, path in neutron.asked] == ['/networks', f'/quotas/{PROJECT}/details.json']


def test_what_ports_cost(site, neutron, private):
    """The quota counts what is made: the user's port is there."""
    port = neutron.add_port(private, PROJECT)
    neutron.limits[PROJECT] = 1
    assert created(site, [{'port': port}]) == [[(private, port, None)]]
    assert [path.partition('?')[0] for _, path in neutron.asked] == ['/ports', '/networks']


# --- what is refused -------------------------------------------------------------------------------------------------
def test_what_is_not_there(site, neutron, private):
    """A create that names a network, port or security group that does not exist, or belongs to another project, is
    refused with 400."""
    theirs = neutron.add_port(neutron.add_network('theirs', OTHER, cidr='10.6.0.0/24'), OTHER)
    assert refused(site, [{'uuid': NOSUCH}]) == (400, f'Network {NOSUCH} could not be found.')
    assert refused(site, [{'uuid': 'br-x'}], version='2.36') == (400, 'Network br-x could not be found.')
    for port in (NOSUCH, theirs):
        assert refused(site, [{'port': port}]) == (400, f'Port id {port} could not be found.')
        assert refused(site, [{'port': port}], user='admin') == (400, f'Port id {port} could not be found.')
    assert refused(site, [{'uuid': private}], security_groups=[{'name': 'nosuch'}]) == (
        400,
        "Unable to find security_group with name or id 'nosuch'",
    )
    port = neutron.add_port(private, PROJECT)
    del neutron.networks[private]
    assert refused(site, [{'port': port}]) == (400, f'Network {private} could not be found.')


def test_ports_in_use(site, neutron, private):
    """A create that names a port of another server is refused with 409."""
    port = neutron.add_port(private, PROJECT, device_id=str(uuid.uuid4()))
    assert refused(site, [{'port': port}]) == (409, f'Port {port} is still in use.')


def test_networks_without_subnet(site, neutron):
    bare = neutron.add_network('bare', PROJECT)
    text = f'Network {bare} requires a subnet in order to boot instances on.'
    assert refused(site, [{'uuid': bare}]) == refused(site, 'auto') == (400, text)


def test_fixed_addresses(site, neutron, private):
    """A create with a fixed address that is in use, or that no subnet of the network contains, is refused with 400."""
    server = str(uuid.uuid4())
    neutron.add_port(private, PROJECT, device_id=server, fixed_ips=[{'ip_address': '10.2.0.203'}])
    neutron.add_port(private, PROJECT, fixed_ips=[{'ip_address': '10.2.0.204'}])
    of = [{'uuid': private, 'fixed_ip': '10.2.0.203'}]
    assert refused(site, of) == (400, f'Fixed IP address 10.2.0.203 is already in use on instance {server}.')
    neutron.add_port(private, 'another', device_id=server, fixed_ips=[{'ip_address': '10.2.0.205'}])
    assert refused(site, [{'uuid': private, 'fixed_ip': '10.2.0.205'}]) == (
        400,
        'Fixed IP address 10.2.0.205 is already in use.',
    )
    of[0]['fixed_ip'] = '10.2.0.204'
    assert refused(site, of) == (400, 'Fixed IP address 10.2.0.204 is already in use.')
    for address in ('10.99.0.1', 'fd00::1'):
        of[0]['fixed_ip'] = address
        assert refused(site, of) == (
            400,
            (f'Invalid input received: Fixed IP {address} is not a valid ip address for network {private}.'),
        )
    of[0]['fixed_ip'] = '10.2.0.9'
    assert refused(site, of * 2) == (400, f"Fixed IP '10.2.0.9' was specified twice for network {private}.")
    assert refused(site, of, max_count=2) == (
        400,
        'Failed to launch instances: max_count cannot be greater than 1 if an fixed_ip is specified.',
    )


def test_forms_that_are_none(site, neutron, private):
    """Invalid forms of networks are refused with 400 before the network service is asked."""
    port = neutron.add_port(private, PROJECT)
    assert refused(site, [{'port': port}], min_count=2) == (
        400,
        (
            'Failed to launch instances: Unable to launch multiple instances with a single configured port ID. Please '
            'launch your instance one by one with different ports.'
        ),
    )
    assert refused(site, [{'port': port, 'fixed_ip': '10.2.0.9'}]) == (
        400,
        f"Specified Fixed IP '10.2.0.9' cannot be used with port '{port}': the two cannot be specified together.",
    )
    assert refused(site, [{'port': port}, {'port': port.upper()}]) == (
        400,
        f"Port ID '{port}' was specified twice: you cannot attach a port multiple times.",
    )
    assert refused(site, [{'fixed_ip': '10.2.0.9'}]) == (
        400,
        'Bad network format: each of networks names a network (uuid) or a port.',
    )
    assert neutron.asked == []


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        (
            {'binding:vnic_type': 'smart-nic'},
            (
                "its vnic_type is 'smart-nic'; supported are normal, direct, "
                'remote-managed, macvtap, direct-physical, vdpa, accelerator-direct, '
                'accelerator-direct-physical'
            ),
        ),
        (
            {'binding:vnic_type': 'macvtap', 'binding:profile': {'capabilities': ['switchdev']}},
            ("its binding:profile asks for the capability switchdev, but its vnic_type is 'macvtap', not direct"),
        ),
        (
            {
                'resource_request': {'request_groups': []},
                'binding:vnic_type': 'direct',
                'binding:profile': {'capabilities': ['switchdev']},
            },
            (
                'it has a resource request (QoS minimum bandwidth or packet rate), which is not supported for '
                "vnic_type 'direct' with the capability switchdev"
            ),
        ),
        *(
            (
                {'resource_request': {'request_groups': []}, 'binding:vnic_type': kind},
                (
                    'it has a resource request (QoS minimum bandwidth or packet rate), which is not supported for '
                    f"vnic_type '{kind}'"
                ),
            )
            for kind in ('remote-managed', 'vdpa')
        ),
        ({'device_profile': 'fpga'}, "it has the device profile 'fpga', but its vnic_type is 'normal'"),
    ],
)
def test_ports_that_no_server_can_have_yet(site, neutron, private, fields, reason):
    port = neutron.add_port(private, PROJECT, **fields)
    assert refused(site, [{'port': port}]) == (400, f'Port {port} is not supported by this cloud: {reason}.')


@pytest.mark.parametrize(
    ('vnic_type', 'profile', 'spec'),
    [
        ('direct', {}, {'dev_type': 'type-VF'}),
        ('macvtap', {'capabilities': 5}, {'dev_type': 'type-VF'}),
        ('direct-physical', {}, {'dev_type': 'type-PF'}),
        ('remote-managed', {'capabilities': ['switchdev']}, {'dev_type': 'type-VF', 'remote_managed': 'true'}),
        ('direct', {'capabilities': ['switchdev']}, {'dev_type': 'type-VF', 'switchdev': 'true'}),
        ('vdpa', {}, {'dev_type': 'vdpa', 'switchdev': 'true'}),
        ('vdpa', {'capabilities': ['switchdev']}, {'dev_type': 'vdpa', 'switchdev': 'true'}),
    ],
)
@pytest.mark.parametrize('physical', ['physnet1', None])
def test_ports_that_are_functions(site, neutron, private, vnic_type, profile, spec, physical):
    """Each asks for a device in the physical network of its own, in one request to Neutron more."""
    wire = neutron.add_network('wire', PROJECT, cidr='10.9.0.0/24', **{'provider:physical_network': physical})
    ports = [
        neutron.add_port(wire, PROJECT, **{'binding:vnic_type': vnic_type, 'binding:profile': profile})
        for _ in range(2)
    ]
    plain = neutron.add_port(private, PROJECT)
    neutron.asked.clear()
    (asked,) = created(site, [{'port': port} for port in (*ports, plain)])
    assert asked == [(wire, ports[0], None), (wire, ports[1], None), (private, plain, None)]
    assert len(neutron.asked) == 3
    (stored,), (server,) = site.asked_for('request_spec'), site.asked_for('instance')
    for requests in (stored.pci_requests.requests, server.pci_requests.requests):
        assert [(one.count, one.spec, one.alias_name, one.requester_id, one.numa_policy) for one in requests] == [
            (1, [{'physical_network': physical, **spec}], None, port, None) for port in ports
        ]
    ids = [one.request_id for one in stored.pci_requests.requests]
    assert len(set(ids)) == 2 and [one.pci_request_id for one in stored.requested_networks] == [*ids, None]


def test_how_near_a_function_must_be(site, neutron, private):
    """The port's own word goes before the flavor's."""
    ports = [
        neutron.add_port(private, PROJECT, **{'binding:vnic_type': 'direct', 'numa_affinity_policy': policy})
        for policy in ('required', None)
    ]
    site.small = site.flavor(extra_specs={'hw:pci_numa_affinity_policy': 'preferred'})
    created(site, [{'port': port} for port in ports])
    (spec,) = site.asked_for('request_spec')
    assert [one.numa_policy for one in spec.pci_requests.requests] == ['required', 'preferred']


GUARANTEE = {
    'request_groups': [{'id': 'g1', 'required': ['CUSTOM_PHYSNET_X'], 'resources': {'NET_BW_EGR': 5}}],
    'same_subtree': ['g1'],
}


def test_ports_that_guarantee_something(site, neutron, private):
    """Ports that guarantee bandwidth or packets are accepted from 2.72 on, and their amounts are added to what the
    flavor asks for. Older microversions refuse them."""
    flat = {'required': [], 'resources': {'NET_PACKET_RATE': 7}}
    ports = [
        neutron.add_port(private, PROJECT, resource_request=one, **{'binding:vnic_type': kind})
        for one, kind in ((GUARANTEE, 'direct'), (flat, 'normal'), (None, 'direct'))
    ]
    networks = [{'port': port} for port in ports]
    assert refused(site, networks, version='2.71') == (
        400,
        (
            f'Creating servers with ports having resource requests, like port {ports[0]} with a QoS minimum bandwidth '
            'policy, is not supported until microversion 2.72.'
        ),
    )
    created(site, networks, version='2.72')
    (spec,) = site.asked_for('request_spec')
    assert [
        (one.requester_id, one.resources, one.required_traits, one.use_same_provider)
        for one in spec.requested_resources
    ] == [('g1', {'NET_BW_EGR': 5}, {'CUSTOM_PHYSNET_X'}, True), (ports[1], {'NET_PACKET_RATE': 7}, set(), True)]
    assert spec.same_subtree == [['g1']]
    assert [one.spec[0].get('port_groups') for one in spec.pci_requests.requests] == ['g1', None]
    created(site, [{'port': ports[2]}], version='2.71')


@pytest.mark.parametrize(
    ('rules', 'physical', 'is_refused'),
    [
        (['bandwidth_limit', 'minimum_bandwidth'], 'physnet1', True),
        (['minimum_bandwidth'], None, False),
        (['minimum_packet_rate'], None, True),
        (['bandwidth_limit'], 'physnet1', False),
        (None, 'physnet1', False),
    ],
)
def test_networks_whose_ports_guarantee_something(site, neutron, rules, physical, is_refused):
    """What a port of them asks of Placement is known too late. No bandwidth is guaranteed without physical network."""
    network = neutron.add_network(
        'wire', PROJECT, cidr='10.9.0.0/24', qos_policy_id=NOSUCH, **{'provider:physical_network': physical}
    )
    neutron.policies = {} if rules is None else {NOSUCH: rules}
    if is_refused:
        assert refused(site, [{'uuid': network}]) == (
            400,
            (
                f'Network {network} has QoS policy {NOSUCH} with a minimum bandwidth or packet rate, which can be '
                'allocated only for existing ports: create a port in the network and use that port.'
            ),
        )
    else:
        created(site, [{'uuid': network}])


def test_external_networks(site, neutron):
    """Members may use those that are shared."""
    external = {'router:external': True}
    public = neutron.add_network('public', PROJECT, cidr='10.4.0.0/24', **external)
    shared = neutron.add_network('shared', 'p9', cidr='10.5.0.0/24', shared=True, **external)
    assert refused(site, [{'uuid': public}]) == (
        403,
        f'It is not allowed to create an interface on external network {public}.',
    )
    assert created(site, [{'uuid': shared}]) == [[(shared, None, None)]]
    assert created(site, [{'uuid': public}], user='admin') == [[(public, None, None)]]


def test_the_quota_of_ports(site, neutron, private, caplog):
    """A create of several servers makes as many as the quota of ports leaves room for, and is refused if these are
    fewer than min_count."""
    caplog.set_level('INFO')
    neutron.limits[PROJECT] = 5
    both = [{'uuid': private}, {'uuid': private}]
    assert refused(site, both, min_count=3) == (403, 'Maximum number of ports exceeded')
    assert len(created(site, both, min_count=1, max_count=9)) == 2
    assert 'Max count reduced from 9 to 2' in caplog.text
    neutron.limits[PROJECT] = -1
    assert len(created(site, both, min_count=8)) == 8


@pytest.mark.parametrize('path', ['/networks', '/quotas', '/ports', '/subnets', '/security-groups'])
def test_a_silent_network_service(site, neutron, private, path):
    port = neutron.add_port(private, PROJECT)

    def silent(method, asked):
        if asked.startswith(path):
            raise neutron.broken()

    neutron.before = silent
    code, text = refused(
        site,
        [{'uuid': private, 'fixed_ip': '10.2.0.9'}, {'port': port}],
        security_groups=[{'name': 'web'}] if path == '/security-groups' else [],
    )
    assert code == 503 and text.startswith('The network service does not answer: ')


# --- security groups -------------------------------------------------------------------------------------------------
def groups(site):
    (spec,) = site.asked_for('request_spec')
    return [(group.name, group.uuid if 'uuid' in group else None) for group in spec.security_groups]


def test_groups_by_name_and_by_id(site, neutron, private):
    web, default = neutron.add_group('web', PROJECT), neutron.add_group('default', PROJECT)
    db = neutron.add_group('db', PROJECT)
    created(site, [{'uuid': private}], security_groups=[{'name': 'web'}, {'name': db}, {'name': 'default'}])
    assert groups(site) == [('web', web), ('db', db), ('default', default)]


@pytest.mark.parametrize('names', [[], ['default']])
def test_the_default_group_needs_no_question(site, neutron, private, names):
    response = post(site, [{'uuid': private}], security_groups=[{'name': name} for name in names])
    assert response.json['server']['security_groups'] == [{'name': 'default'}]
    assert groups(site) == [(name, None) for name in names]
    assert len(neutron.asked) == 2


def test_groups_that_cannot_be_had(site, neutron, private):
    neutron.add_group('web', PROJECT), neutron.add_group('web', PROJECT)
    assert refused(site, [{'uuid': private}], security_groups=[{'name': 'web'}]) == (
        409,
        "Multiple security_group matches found for name 'web', use an ID to be more specific.",
    )
    free = neutron.add_network('free', PROJECT, cidr='10.7.0.0/24', port_security_enabled=False)
    db = neutron.add_group('db', PROJECT)
    assert refused(site, [{'uuid': free}], security_groups=[{'name': 'db'}]) == (
        400,
        ('Network requires port_security_enabled and subnet associated in order to apply security groups.'),
    )
    created(site, 'none', security_groups=[{'name': 'db'}])
    assert groups(site) == [('db', db)]


# --- without a network service ---------------------------------------------------------------------------------------
def test_a_cloud_without_network_service(make_site):
    site = make_site()
    site.small = site.flavor()
    assert refused(site, [{'uuid': NOSUCH, 'tag': 'x'}, {'port': NOSUCH}], min_count=2) == (
        400,
        (
            "There is no network service in this cloud: networks must be 'none', 'auto' or left out, not network "
            f'{NOSUCH}, port {NOSUCH}.'
        ),
    )
    assert refused(site, 'auto', security_groups=[{'name': 'web'}]) == (
        400,
        f'Security group web not found for project {PROJECT}.',
    )
    assert created(site, 'auto', security_groups=[{'name': 'default'}]) == [[]]
    assert groups(site) == [('default', None)]


# --- servers that have ports -----------------------------------------------------------------------------------------
VIF = Vif(
    id=NOSUCH, mac='fa:16:3e:00:00:01', network_id=str(uuid.uuid4()), label='private', project_id=PROJECT, type='ovs'
)


def with_ports(site, *vifs, **values):
    server = site.server(**values)
    with site.cell1.write() as conn:
        put_vifs(conn, server, vifs)
    return server


def test_servers_with_ports_that_stay(site):
    for action in ('os-stop', 'pause', 'rescue'):
        server = with_ports(site, VIF)
        assert site.request('POST', f'/servers/{server}/action', {action: None}).status_int < 300


def test_groups_and_addresses_are_those_of_the_ports(site, neutron):
    """Nobody asks the network service: what is shown stands in the server's row."""
    subnet = VifSubnet('10.2.0.0/24', 4, addresses=(VifAddress('10.2.0.9', ('198.51.100.7',)),))
    server = with_ports(
        site,
        replace(VIF, subnets=(subnet,), security_groups=('web', 'default')),
        replace(VIF, id=str(uuid.uuid4()), label='other', security_groups=('db', 'web')),
    )
    shown = site.ok('GET', f'/servers/{server}')['server']
    assert shown['security_groups'] == [{'name': 'db'}, {'name': 'default'}, {'name': 'web'}]
    address = {'version': 4, 'OS-EXT-IPS-MAC:mac_addr': VIF.mac}
    assert shown['addresses'] == {
        'private': [
            {**address, 'addr': '10.2.0.9', 'OS-EXT-IPS:type': 'fixed'},
            {**address, 'addr': '198.51.100.7', 'OS-EXT-IPS:type': 'floating'},
        ],
        'other': [],
    }
    (listed,) = site.ok('GET', '/servers/detail')['servers']
    assert (listed['security_groups'], listed['addresses']) == (shown['security_groups'], shown['addresses'])
    assert site.ok('GET', f'/servers/{server}/ips/private') == {
        'private': [{'version': 4, 'addr': '10.2.0.9'}, {'version': 4, 'addr': '198.51.100.7'}]
    }
    plain = {
        label: [{name: one[name] for name in ('version', 'addr')} for one in found]
        for label, found in shown['addresses'].items()
    }
    for version, wanted in (('2.74', plain), ('2.75', shown['addresses'])):
        for method, path, body in (
            ('PUT', '', {'server': {'name': 'n'}}),
            ('POST', '/action', {'rebuild': {'imageRef': IMAGE}}),
        ):
            answer = site.ok(method, f'/servers/{server}{path}', body, version=version)['server']
            assert answer['addresses'] == wanted
            for row in site.rows(server):
                with site.cell1.write() as conn:
                    operations.end(conn, row['uuid'], server)
                    instances.transition(conn, server, 'rebuild.failed')
    assert neutron.asked == []
    assert 'security_groups' not in site.ok('GET', f'/servers/{site.server()}')['server']


# --- interfaces ------------------------------------------------------------------------------------------------------
def interface(neutron, port, **more):
    found = neutron.ports[port]
    return {
        'fixed_ips': found['fixed_ips'],
        'mac_addr': found['mac_address'],
        'net_id': found['network_id'],
        'port_id': port,
        'port_state': found['status'],
        **more,
    }


def test_interfaces(site, neutron, private):
    """Asked of the network service, in the guest's order."""
    server, other = site.server(), site.server()
    ports = [neutron.add_port(private, PROJECT, device_id=server) for _ in range(3)]
    stray = neutron.add_port(private, PROJECT, device_id=other)
    with site.cell1.write() as conn:
        put_vifs(conn, server, [replace(VIF, id=ports[1], tag='nic1'), replace(VIF, id=ports[0])])
    path, bob = f'/servers/{server}/os-interface', {'user': 'bob'}
    neutron.asked.clear()
    assert site.ok('GET', path, **bob) == {
        'interfaceAttachments': [
            interface(neutron, ports[number], tag='nic1' if number == 1 else None) for number in (1, 0, 2)
        ]
    }
    assert neutron.asked == [('GET', f'/ports?device_id={server}')]
    assert neutron.headers[-1]['X-Auth-Token'] == f'bob:{PROJECT}'
    assert site.ok('GET', f'{path}/{ports[1]}', **bob) == {
        'interfaceAttachment': interface(neutron, ports[1], tag='nic1')
    }
    assert site.ok('GET', f'{path}/{ports[1]}', version='2.69', **bob) == {
        'interfaceAttachment': interface(neutron, ports[1])
    }
    for unknown in (stray, NOSUCH):
        assert site.fault('GET', f'{path}/{unknown}', **bob) == (404, f'Port id {unknown} could not be found.')
    assert site.ok('GET', f'/servers/{site.create()}/os-interface') == {'interfaceAttachments': []}
    neutron.asked.clear()
    assert site.fault('GET', f'{path}/%2E%2E', **bob)[0] == 404 and neutron.asked == []


def test_interfaces_of_a_silent_network_service(site, neutron):
    def silent(method, path):
        raise neutron.broken()

    server, neutron.before = site.server(), silent
    assert site.fault('GET', f'/servers/{server}/os-interface')[0] == 503
    assert site.fault('GET', f'/servers/{server}/os-interface/{NOSUCH}')[0] == 503


def test_interfaces_without_a_network_service(make_site):
    site = make_site()
    path = f'/servers/{site.server()}/os-interface'
    assert site.ok('GET', path) == {'interfaceAttachments': []}
    assert site.fault('GET', f'{path}/{NOSUCH}') == (404, f'Port id {NOSUCH} could not be found.')
    assert site.fault('POST', path, {'interfaceAttachment': {'net_id': NOSUCH}}) == (
        400,
        (
            "There is no network service in this cloud: networks must be 'none', 'auto' or left out, not network "
            f'{NOSUCH}.'
        ),
    )
    assert site.fault('DELETE', f'{path}/{NOSUCH}') == (404, f'Port id {NOSUCH} could not be found.')


# --- attach and detach: tests/functional/test_interfaces.py has those that are done -----------------------------------
def attach_refused(site, server, user='bob', version='2.104', **wanted):
    """(code, message) of an attach that writes nothing."""
    found = site.fault(
        'POST', f'/servers/{server}/os-interface', {'interfaceAttachment': wanted}, user=user, version=version
    )
    assert site.rows(server) == []
    return found


def test_an_attach_that_can_not_be(site, neutron, private):
    server = site.server()
    theirs, port = neutron.add_port(private, OTHER), neutron.add_port(private, PROJECT)
    used = neutron.add_port(private, PROJECT, device_id=NOSUCH)
    bare, public = (
        neutron.add_network('bare', PROJECT),
        neutron.add_network('public', OTHER, cidr='198.51.100.0/24', **{'router:external': True}),
    )
    neutron.networks[public]['project_id'] = PROJECT
    for wanted, answer in (
        (
            {'net_id': private, 'port_id': port},
            (400, f'Must not input both network_id and port_id: net_id is {private}, and port_id {port}.'),
        ),
        (
            {'fixed_ips': [{'ip_address': '10.2.0.9'}]},
            (400, ('Must input network_id when request IP address: fixed_ips names 10.2.0.9, and there is no net_id.')),
        ),
        (
            {'port_id': port, 'fixed_ips': [{'ip_address': '10.2.0.9'}]},
            (
                400,
                (
                    f"Specified Fixed IP '10.2.0.9' cannot be used with port '{port}': the two cannot be specified "
                    f'together.'
                ),
            ),
        ),
        ({'port_id': NOSUCH}, (404, f'Port id {NOSUCH} could not be found.')),
        ({'port_id': theirs}, (404, f'Port id {theirs} could not be found.')),
        ({'net_id': NOSUCH}, (404, f'Network {NOSUCH} could not be found.')),
        ({'port_id': used}, (409, f'Port {used} is still in use.')),
        ({'net_id': bare}, (400, f'Network {bare} requires a subnet in order to boot instances on.')),
        ({'net_id': public}, (403, f'It is not allowed to create an interface on external network {public}.')),
        (
            {'net_id': private, 'fixed_ips': [{'ip_address': '10.9.0.9'}]},
            (400, f'Invalid input received: Fixed IP 10.9.0.9 is not a valid ip address for network {private}.'),
        ),
        ({}, (400, 'Multiple possible networks found, use a Network ID to be more specific.')),
    ):
        assert attach_refused(site, server, **wanted) == answer
    neutron.limits[PROJECT] = 1
    assert attach_refused(site, server, net_id=private) == (403, 'Maximum number of ports exceeded')
    neutron.networks.clear()
    assert attach_refused(site, server) == (
        400,
        f"No specific network was requested and none are available for project '{PROJECT}'.",
    )


def test_a_tag_is_unknown_until_2_49(site, private):
    code, message = attach_refused(site, site.server(), version='2.48', net_id=private, tag='nic1')
    assert code == 400 and "'tag' was unexpected" in message


@pytest.mark.parametrize(
    ('state', 'said'),
    [
        ({'vm_state': 'suspended'}, 'vm_state suspended'),
        ({'vm_state': 'error'}, 'vm_state error'),
        ({'vm_state': 'resized'}, 'vm_state resized'),
        ({'task_state': 'rebooting'}, 'task_state rebooting'),
    ],
)
def test_states_in_which_interfaces_stay(site, private, state, said):
    server = site.server(**state)
    with site.cell1.write() as conn:
        put_vifs(conn, server, [VIF])
    assert attach_refused(site, server, net_id=private) == (
        409,
        f"Cannot 'attach_interface' instance {server} while it is in {said}",
    )
    assert site.fault('DELETE', f'/servers/{server}/os-interface/{VIF.id}', user='bob') == (
        409,
        f"Cannot 'detach_interface' instance {server} while it is in {said}",
    )


def test_a_detach_names_the_port(site, private):
    server = site.server()
    with site.cell1.write() as conn:
        put_vifs(conn, server, [VIF])
    path = f'/servers/{server}/os-interface'
    assert site.fault('DELETE', f'{path}/{server}', user='bob') == (404, f'Port id {server} could not be found.')
    assert site.rows(server) == []
    assert site.request('DELETE', f'{path}/{VIF.id}', user='bob').status_int == 202
    (row,) = site.rows(server)
    assert row['kind'] == 'detach_interface' and VIF.id in str(row['args'])


# --- security groups of servers that are there -----------------------------------------------------------------------
def act(site, server, name, group, **who):
    """(code, message) of addSecurityGroup or removeSecurityGroup; (202, '') of one that is done."""
    response = site.request('POST', f'/servers/{server}/action', {name: {'name': group}}, **{'user': 'bob', **who})
    if response.status_int < 400:
        return response.status_int, response.text
    (fault,) = response.json.values()
    return fault['code'], fault['message']


def ports_of(neutron, network, server, count=1):
    return [neutron.ports[neutron.add_port(network, PROJECT, device_id=server)] for _ in range(count)]


@pytest.mark.parametrize('state', ['active', 'stopped', 'shelved_offloaded', 'error'])
def test_groups_are_added_and_removed(site, neutron, private, state):
    """By name and by id, of all ports that can have groups, in any state; with the user's token."""
    server, web = site.server(vm_state=state), neutron.add_group('web', PROJECT)
    ports = ports_of(neutron, private, server, 2)
    free = neutron.add_network('free', PROJECT, cidr='10.7.0.0/24', port_security_enabled=False)
    (open_port,), (stray,) = ports_of(neutron, free, server), ports_of(neutron, private, site.server())
    (default,) = stray['security_groups']
    neutron.asked.clear()
    site.conductor.calls.clear()
    assert act(site, server, 'addSecurityGroup', 'web') == (202, '')
    assert [port['security_groups'] for port in (*ports, open_port, stray)] == [
        [default, web],
        [default, web],
        [],
        [default],
    ]
    assert [method for method, _ in neutron.asked] == ['GET', 'GET', 'PUT', 'PUT']
    assert {headers.get('X-Auth-Token') for headers in neutron.headers[-4:]} == {f'bob:{PROJECT}'}
    (row,) = site.rows(server)
    assert (row['kind'], row['slot'], row['args']) == ('network_changed', row['uuid'], {})
    assert [call[0] for call in site.conductor.calls] == ['run_operation']
    assert act(site, server, 'addSecurityGroup', web, version='2.1') == (202, '')
    assert [method for method, _ in neutron.asked].count('PUT') == 2, 'they have it already'
    ports[0]['security_groups'] = [default]
    assert act(site, server, 'removeSecurityGroup', web) == (202, '')
    assert [port['security_groups'] for port in ports] == [[default], [default]]
    assert act(site, server, 'removeSecurityGroup', 'web') == (
        404,
        (f'Security group web is not associated with server {server}: none of its ports has it.'),
    )


def shown_groups(site, server):
    """Names of the groups with which the server is shown; None if it is shown without any."""
    groups = site.request('GET', f'/servers/{server}', user='bob').json['server'].get('security_groups')
    return groups and [group['name'] for group in groups]


def test_the_answer_to_a_change_of_groups_comes_after_the_change_is_shown(site, neutron, private):
    """No conductor has looked at the ports: what the request changed is shown; other ports' groups are as they were."""
    server = site.server()
    web = neutron.add_group('web', PROJECT)
    ports = ports_of(neutron, private, server, 2)
    with site.cell1.write() as conn:
        put_vifs(conn, server, [replace(VIF, id=port['id'], security_groups=('default',)) for port in ports])
    assert act(site, server, 'addSecurityGroup', 'web') == (202, '')
    assert shown_groups(site, server) == ['default', 'web']
    ports[1]['security_groups'] = [web]
    assert act(site, server, 'removeSecurityGroup', 'default') == (202, '')
    assert shown_groups(site, server) == ['default', 'web'], 'one port lost the group, of the other nobody told'
    with site.cell1.write() as conn:
        put_vifs(conn, server, [replace(VIF, id=port['id'], security_groups=('web',)) for port in ports])
    assert act(site, server, 'removeSecurityGroup', web) == (202, '')
    assert shown_groups(site, server) is None


@pytest.mark.parametrize('text', ['', '{', '[{}]', 'null', '[1]'])
def test_groups_change_though_what_is_known_of_the_ports_is_broken(site, neutron, private, text):
    server, web = site.server(), neutron.add_group('web', PROJECT)
    (port,) = ports_of(neutron, private, server)
    with site.cell1.write() as conn:
        put_vifs(conn, server, [replace(VIF, id=port['id'])])
        conn.execute(sa.text('UPDATE instance_info_caches SET network_info = :text'), {'text': text})
    assert act(site, server, 'addSecurityGroup', 'web') == (202, '')
    assert web in port['security_groups'] and [row['kind'] for row in site.rows(server)] == ['network_changed']


def test_groups_that_cannot_be_added(site, neutron, private):
    server, web = site.server(), neutron.add_group('web', PROJECT)
    neutron.add_group('theirs', OTHER)
    for name in ('addSecurityGroup', 'removeSecurityGroup'):
        assert act(site, server, name, 'web') == (
            400,
            f'Server {server} has no ports, so it cannot have security groups.',
        )
        assert act(site, server, name, 'theirs') == (404, "Unable to find security_group with name or id 'theirs'")
        assert act(site, server, name, web, user='eve', project=OTHER)[0] == 404
    assert act(site, site.create(), 'addSecurityGroup', 'web')[0] == 409, 'no cell has it yet'
    site.conductor.calls.clear()
    bare = neutron.add_network('bare', PROJECT)
    ports_of(neutron, bare, server)
    assert act(site, server, 'addSecurityGroup', 'web') == (
        400,
        ('Network requires port_security_enabled and subnet associated in order to apply security groups.'),
    )
    neutron.add_group('web', PROJECT)
    assert act(site, server, 'addSecurityGroup', 'web') == (
        409,
        "Multiple security_group matches found for name 'web', use an ID to be more specific.",
    )
    assert 'PUT' not in [method for method, _ in neutron.asked]
    assert site.conductor.calls == [] and site.rows(server) == []


@pytest.mark.parametrize(('changes', 'wanted'), [(2, 202), (3, 409)])
def test_groups_that_somebody_else_changes_at_the_same_moment(site, neutron, private, changes, wanted):
    """Both changes count; after three times the request is refused."""
    server, web = site.server(), neutron.add_group('web', PROJECT)
    (port,) = ports_of(neutron, private, server)
    others = [neutron.add_group(f'other{number}', PROJECT) for number in range(changes)]
    left, default = list(others), port['security_groups'][0]

    def change(method, path):
        if method == 'PUT' and left:
            port['security_groups'] = [*port['security_groups'], left.pop(0)]
            port['revision_number'] += 1

    neutron.before = change
    assert act(site, server, 'addSecurityGroup', 'web')[0] == wanted
    assert port['security_groups'] == [default, *others, *([web] if wanted == 202 else [])]


def test_a_port_that_goes_while_groups_change(site, neutron, private):
    server = site.server()
    neutron.add_group('web', PROJECT)
    gone, port = ports_of(neutron, private, server, 2)
    neutron.before = lambda method, path: neutron.ports.pop(gone['id'], None) if method == 'PUT' else None
    assert act(site, server, 'addSecurityGroup', 'web') == (202, '')
    assert len(port['security_groups']) == 2


def test_groups_are_listed(site, neutron, private):
    """As the network service has them now, with the rules of what comes in; for what a rule names too."""
    server, path = site.server(), f'/servers/{site.server()}/os-security-groups'
    db = neutron.add_group('db', PROJECT)
    web = neutron.add_group(
        'web',
        PROJECT,
        {'protocol': 'tcp', 'port_range_min': 80, 'port_range_max': 81},
        {'remote_group_id': db},
        {'ethertype': 'IPv6', 'protocol': 'udp'},
        {'remote_ip_prefix': '10.0.0.0/8'},
        {'direction': 'egress'},
        {'remote_address_group_id': NOSUCH},
        {'remote_group_id': NOSUCH},
    )
    for port in ports_of(neutron, private, server, 2):
        port['security_groups'] = [web]
    assert site.ok('GET', path, user='bob') == {'security_groups': []}
    neutron.asked.clear()
    (group,) = site.ok('GET', f'/servers/{server}/os-security-groups', user='bob')['security_groups']
    rules = group.pop('rules')
    assert group == {'id': web, 'name': 'web', 'description': 'group web', 'tenant_id': PROJECT}
    assert len(neutron.asked) == 3 and neutron.headers[-1]['X-Auth-Token'] == f'bob:{PROJECT}'
    assert {rule['parent_group_id'] for rule in rules} == {web} and len({rule['id'] for rule in rules}) == 6
    assert [
        (rule['ip_protocol'], rule['from_port'], rule['to_port'], rule['ip_range'], rule['group']) for rule in rules
    ] == [
        ('tcp', 80, 81, {'cidr': '0.0.0.0/0'}, {}),
        (None, None, None, {}, {'name': 'db', 'tenant_id': PROJECT}),
        ('udp', None, None, {'cidr': '::/0'}, {}),
        (None, None, None, {'cidr': '10.0.0.0/8'}, {}),
        (None, None, None, {}, {}),
        (None, None, None, {}, {}),
    ]


def test_groups_of_servers_without_a_network_service(make_site):
    site = make_site()
    server = site.server()
    assert site.ok('GET', f'/servers/{server}/os-security-groups') == {'security_groups': []}
    for name in ('addSecurityGroup', 'removeSecurityGroup'):
        assert act(site, server, name, 'web') == (
            400,
            (
                "There is no network service in this cloud: networks must be 'none', 'auto' or left out, not security "
                'group web.'
            ),
        )
