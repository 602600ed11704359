"""Bodies of servers in every version, and PUT."""

from __future__ import annotations

import pytest

from kilonova.api.v2.servers.show import host_id
from kilonova.db.queries import instances, servers, services
from kilonova.errors import Unanswered
from tests.unit.api.conftest import OTHER, moment

BASE = {
    'OS-DCF:diskConfig',
    'OS-EXT-AZ:availability_zone',
    'OS-EXT-STS:power_state',
    'OS-EXT-STS:task_state',
    'OS-EXT-STS:vm_state',
    'OS-SRV-USG:launched_at',
    'OS-SRV-USG:terminated_at',
    'accessIPv4',
    'accessIPv6',
    'addresses',
    'config_drive',
    'created',
    'flavor',
    'hostId',
    'id',
    'image',
    'key_name',
    'links',
    'metadata',
    'name',
    'os-extended-volumes:volumes_attached',
    'progress',
    'status',
    'tenant_id',
    'updated',
    'user_id',
}
ATTRIBUTES = {'OS-EXT-SRV-ATTR:host', 'OS-EXT-SRV-ATTR:hypervisor_hostname', 'OS-EXT-SRV-ATTR:instance_name'}
SINCE_3 = {
    f'OS-EXT-SRV-ATTR:{name}'
    for name in (
        'hostname',
        'kernel_id',
        'launch_index',
        'ramdisk_id',
        'reservation_id',
        'root_device_name',
        'user_data',
    )
}
ADDED = [
    (3, SINCE_3),
    (9, {'locked'}),
    (16, {'host_status'}),
    (19, {'description'}),
    (26, {'tags'}),
    (63, {'trusted_image_certificates'}),
    (71, {'server_groups'}),
    (73, {'locked_reason'}),
    (96, {'pinned_availability_zone'}),
    (100, {'scheduler_hints'}),
]


def expected(version):
    return (BASE | ATTRIBUTES).union(*(names for since, names in ADDED if since <= version))


@pytest.mark.parametrize('version', sorted({1, 104, *(v for s, _ in ADDED for v in (s - 1, s))}))
def test_keys_of_each_version(site, version):
    server = site.server()
    text = f'2.{version}'
    assert set(site.ok('GET', f'/servers/{server}', version=text)['server']) == expected(version)
    (listed,) = site.ok('GET', '/servers/detail', version=text)['servers']
    assert set(listed) == expected(version) - {'server_groups'}


@pytest.mark.parametrize(
    ('version', 'hidden'),
    [
        (1, ATTRIBUTES),
        (89, ATTRIBUTES | SINCE_3 | {'host_status'}),
        (104, (ATTRIBUTES | SINCE_3 | {'host_status'}) - {'OS-EXT-SRV-ATTR:hostname'}),
    ],
)
def test_what_members_see(site, version, hidden):
    server = site.server()
    body = site.ok('GET', f'/servers/{server}', version=f'2.{version}', user='bob')['server']
    assert set(body) == expected(version) - hidden


def test_a_build_request_has_the_same_keys_as_a_server(site):
    waiting = site.create(metadata={'a': 'b'}, tags=['t'])
    body = site.ok('GET', f'/servers/{waiting}')['server']
    assert set(body) == expected(104)
    assert (body['status'], body['OS-EXT-STS:task_state']) == ('BUILD', 'scheduling')
    assert (body['metadata'], body['tags']) == ({'a': 'b'}, ['t'])
    assert body['OS-EXT-SRV-ATTR:instance_name'] == ''


def test_values(site):
    flavor = site.flavor(
        {'a:b': 'c'}, name='big', ram=2048, vcpus=2, disk=3, swap=4, **{'OS-FLV-EXT-DATA:ephemeral': 5}
    )
    server = site.server(
        flavor=flavor,
        host='h1',
        node='n1',
        create={
            'name': 'n',
            'metadata': {'k': 'v'},
            'tags': ['t'],
            'user_data': 'YQ==',
            'accessIPv4': '10.0.0.1',
            'accessIPv6': 'fe80::1',
            'config_drive': True,
            'description': 'd',
        },
    )
    body = site.ok('GET', f'/servers/{server}')['server']
    assert body['flavor'] == {
        'vcpus': 2,
        'ram': 2048,
        'disk': 3,
        'ephemeral': 5,
        'swap': 4,
        'original_name': 'big',
        'extra_specs': {'a:b': 'c'},
    }
    assert body['image']['properties']['hw_disk_bus'] == 'virtio'
    assert 'properties' not in site.ok('GET', f'/servers/{server}', version='2.97')['server']['image']
    old = site.ok('GET', f'/servers/{server}', version='2.46')['server']['flavor']
    assert old == {'id': flavor, 'links': [{'rel': 'bookmark', 'href': f'http://localhost/flavors/{flavor}'}]}
    assert body['hostId'] == host_id('p1', 'h1') and len(body['hostId']) == 56
    assert (body['OS-EXT-SRV-ATTR:host'], body['OS-EXT-SRV-ATTR:hypervisor_hostname']) == ('h1', 'n1')
    assert body['OS-EXT-SRV-ATTR:instance_name'] == f'instance-{site.row(server)["id"]:08x}'
    assert (body['accessIPv4'], body['accessIPv6'], body['config_drive']) == ('10.0.0.1', 'fe80::1', 'True')
    assert (body['status'], body['OS-EXT-STS:power_state'], body['progress']) == ('ACTIVE', 1, 0)
    assert body['OS-SRV-USG:launched_at'] == '2026-11-21T10:00:00.000000'
    assert body['OS-EXT-AZ:availability_zone'] == 'nova'
    assert (body['description'], body['tags'], body['metadata']) == ('d', ['t'], {'k': 'v'})
    assert body['OS-EXT-SRV-ATTR:user_data'] == 'YQ==' and body['locked'] is False
    assert 'fault' not in body and 'security_groups' not in body


def test_extra_specs_of_the_flavor_follow_their_policy(make_site, tmp_path):
    (tmp_path / 'policy.yaml').write_text(
        '"os_compute_api:servers:show:flavor-extra-specs": "rule:context_is_admin"\n'
        '"os_compute_api:os-extended-server-attributes": "rule:project_reader_or_admin"\n'
    )
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    server = site.server()
    body = site.ok('GET', f'/servers/{server}', user='bob')['server']
    assert 'extra_specs' not in body['flavor'] and body['OS-EXT-SRV-ATTR:host'] == 'h1'
    assert 'extra_specs' in site.ok('GET', f'/servers/{server}')['server']['flavor']


def test_faults_are_for_error_and_deleted(site):
    server = site.server(vm_state='error')
    with site.cell1.write() as conn:
        instances.add_fault(conn, server, {'code': 500, 'message': 'older', 'details': 'x', 'host': 'h'})
        instances.add_fault(
            conn, server, {'code': 500, 'message': 'No valid host was found. ', 'details': 'trace', 'host': 'h'}
        )
    for user, keys in (('admin', {'code', 'created', 'message', 'details'}), ('bob', {'code', 'created', 'message'})):
        fault = site.ok('GET', f'/servers/{server}', user=user)['server']['fault']
        assert set(fault) == keys and fault['message'] == 'No valid host was found. '
        (listed,) = site.ok('GET', '/servers/detail', user=user)['servers']
        assert listed['fault'] == fault
    with site.cell1.write() as conn:
        instances.transition(conn, server, 'reset.active')
    assert 'fault' not in site.ok('GET', f'/servers/{server}')['server']


@pytest.mark.parametrize(
    ('values', 'status'),
    [
        ({}, 'UP'),
        ({'disabled': True}, 'MAINTENANCE'),
        ({'forced_down': True}, 'DOWN'),
        ({'last_seen_up': moment(2020, 1, 1)}, 'UNKNOWN'),
    ],
)
def test_host_status(site, values, status):
    with site.cell1.write() as conn:
        service = services.get_or_create(conn, 'h1', 'nova-compute', 'compute')
        services.report(conn, service['id'])
        services.update(conn, service['id'], values) if values else None
    server = site.server()
    assert site.ok('GET', f'/servers/{server}')['server']['host_status'] == status


def test_unknown_only(make_site, tmp_path):
    (tmp_path / 'policy.yaml').write_text(
        '"os_compute_api:servers:show:host_status:unknown-only": "rule:project_reader_or_admin"\n'
    )
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    with site.cell1.write() as conn:
        service = services.get_or_create(conn, 'h1', 'nova-compute', 'compute')
        services.report(conn, service['id'])
    server = site.server()
    assert 'host_status' not in site.ok('GET', f'/servers/{server}', user='bob')['server']
    with site.cell1.write() as conn:
        services.update(conn, service['id'], {'last_seen_up': moment(2020, 1, 1)})
    assert site.ok('GET', f'/servers/{server}', user='bob')['server']['host_status'] == 'UNKNOWN'
    (listed,) = site.ok('GET', '/servers/detail', user='bob')['servers']
    assert listed['host_status'] == 'UNKNOWN'


def test_hints_are_lists(site):
    flavor = site.flavor()
    from tests.unit.api.conftest import IMAGE

    uuid = site.ok(
        'POST',
        '/servers',
        {
            'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none'},
            'os:scheduler_hints': {'a': 'b', 'c': ['d', 'e']},
        },
    )['server']['id']
    assert site.ok('GET', f'/servers/{uuid}')['server']['scheduler_hints'] == {'a': ['b'], 'c': ['d', 'e']}
    (listed,) = site.ok('GET', '/servers/detail')['servers']
    assert listed['scheduler_hints'] == {'a': ['b'], 'c': ['d', 'e']}


@pytest.mark.parametrize(
    ('stored', 'shown'),
    [
        (
            {
                'os_distro': 'none',
                'disk_format': 'raw',
                'min_ram': '0',
                'owner_specified.openstack.md5': 'x',
                'architecture': 'x86_64',
                'hw_cpu_cores': '4',
                'hw_boot_menu': 'True',
                'hw_numa_cpus.0': '0-1',
                'hw_numa_cpus.1': '2',
            },
            {
                'os_distro': 'none',
                'hw_architecture': 'x86_64',
                'hw_cpu_cores': 4,
                'hw_boot_menu': True,
                'hw_numa_cpus': [[0, 1], [2]],
            },
        ),
        (
            {'hw_cpu_cores': 'many', 'hw_numa_cpus.0': '0', 'hw_numa_cpus.1': 'x', 'os_distro': 'none'},
            {'os_distro': 'none'},
        ),
    ],
    ids=['known', 'malformed'],
)
def test_only_known_properties_of_images_are_shown(site, stored, shown):
    """A server keeps all properties of its image, and members of the image beside them."""
    server = site.server()
    with site.cell1.write() as conn:
        instances.set_system_metadata(conn, server, {f'image_{name}': value for name, value in stored.items()})
    for body in (
        site.ok('GET', f'/servers/{server}')['server'],
        *site.ok('GET', '/servers/detail')['servers'],
    ):
        assert body['image']['properties'] == {'hw_disk_bus': 'virtio', **shown}


def test_unknown_and_deleted_servers(site):
    assert site.fault('GET', '/servers/zzz') == (404, 'Instance zzz could not be found.')
    gone = site.server(deleted=1, vm_state='deleted')
    assert site.fault('GET', f'/servers/{gone}')[0] == 404
    server = site.server()
    assert site.fault('GET', f'/servers/{server}', user='bob', project=OTHER) == (
        404,
        f'Instance {server} could not be found.',
    )
    assert site.ok('GET', f'/servers/{server}', project=OTHER)['server']['id'] == server


def test_statements_of_a_show(site, statements):
    server = site.server()
    site.ok('GET', f'/servers/{server}')
    statements.clear()
    site.ok('GET', f'/servers/{server}')
    assert len(statements) <= 5, statements


# --- PUT -------------------------------------------------------------------------------------------------------------
def test_update(site):
    server = site.server()
    body = site.ok(
        'PUT',
        f'/servers/{server}',
        {
            'server': {
                'name': 'n2',
                'description': 'd2',
                'hostname': 'h.example',
                'accessIPv4': '10.1.1.1',
                'OS-DCF:diskConfig': 'AUTO',
            }
        },
        user='bob',
    )['server']
    assert (body['name'], body['description'], body['accessIPv4']) == ('n2', 'd2', '10.1.1.1')
    assert body['OS-DCF:diskConfig'] == 'AUTO'
    shown = site.ok('GET', f'/servers/{server}', user='bob')['server']
    assert (shown['name'], shown['OS-EXT-SRV-ATTR:hostname']) == ('n2', 'h.example')
    assert site.row(server)['vm_state'] == 'active'


def test_update_answers_with_everything_from_2_75_on(site):
    server = site.server()
    keys = {
        version: set(site.ok('PUT', f'/servers/{server}', {'server': {'name': 'x'}}, version=version)['server'])
        for version in ('2.1', '2.74', '2.75')
    }
    assert 'OS-EXT-STS:vm_state' not in keys['2.1'] | keys['2.74']
    assert 'locked' in keys['2.74'] and 'locked' not in keys['2.1']
    assert keys['2.75'] == expected(75)


def test_windows_of_update(site):
    server = site.server()
    for name, value, first in (
        ('description', 'd', 19),
        ('hostname', 'h1', 90),
        ('pinned_availability_zone', None, 104),
    ):
        body = {'server': {name: value}}
        assert 'was unexpected' in site.fault('PUT', f'/servers/{server}', body, version=f'2.{first - 1}')[1]
        assert site.request('PUT', f'/servers/{server}', body, version=f'2.{first}').status_int == 200
    assert site.fault('PUT', f'/servers/{server}', {'server': {'hostname': 'a.b'}}, version='2.93')[0] == 400


def test_a_build_request_cannot_be_updated(site):
    waiting = site.create()
    assert site.fault('PUT', f'/servers/{waiting}', {'server': {'name': 'x'}}) == (
        409,
        f'Instance {waiting} is not ready',
    )


def test_pinning(site):
    server = site.server(availability_zone='z1')

    def pin(zone):
        return site.request('PUT', f'/servers/{server}', {'server': {'pinned_availability_zone': zone}})

    assert pin('z2').status_int == 409
    assert pin('z1').json['server']['pinned_availability_zone'] == 'z1'
    assert pin(None).json['server']['pinned_availability_zone'] is None


def test_an_update_changes_all_or_nothing(site, monkeypatch):
    server = site.server(availability_zone='z1')
    path, inner = f'/servers/{server}', servers.update

    def facts():
        shown = site.ok('GET', path)['server']
        return shown['name'], shown['pinned_availability_zone']

    before = facts()
    body = {'server': {'name': 'other', 'pinned_availability_zone': 'z2'}}
    assert site.request('PUT', path, body).status_int == 409
    assert facts() == before == ('s', None)

    def fail(*args, **kwargs):
        raise Unanswered(who='Cell cell1', reason='its database did not respond')

    body['server']['pinned_availability_zone'] = 'z1'
    monkeypatch.setattr(servers, 'update', fail)
    assert site.request('PUT', path, body).status_int == 503
    assert facts() == before
    monkeypatch.setattr(servers, 'update', inner)
    assert site.request('PUT', path, body).status_int == 200
    assert facts() == ('other', 'z1')
