"""POST /servers: what is checked and written, and which conductor call follows."""

from __future__ import annotations

import base64
import json
import pathlib

import pytest

from kilonova import objects, sealing
from kilonova.api.services import create as creation
from kilonova.db.queries import aggregates, cells, compute_nodes, instances, request_specs, services
from tests.unit.api.conftest import IMAGE, OTHER, moment

UUID = '11111111-2222-3333-4444-555555555555'


def body(flavor, **values):
    return {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none', **values}}


def test_what_is_written_and_who_is_woken(site):
    """A create writes request spec, build request, mapping and operation row before a conductor runs, and then
    sends one cast."""
    site.images.record['root_device_name'] = '/dev/sda'
    flavor = site.flavor({'pci_passthrough:alias': 'gpu:2'}, name='big')
    uuid = site.create(
        flavor,
        name='My Server',
        metadata={'a': 'b'},
        tags=['t2', 't1'],
        user_data='YQ==',
        config_drive=True,
        **{'OS-DCF:diskConfig': 'AUTO', 'adminPass': 'secret'},
    )
    (row,) = site.rows(uuid)
    assert (row['kind'], row['slot'], row['cancelled']) == ('boot', 'run', False)
    args = row['args']
    assert args['tags'] == ['t1', 't2']
    # Disks that flavor and image tell of need no rows.
    assert args['bdms'] == [] and len(server_disks(site)) == 0
    assert args['image']['properties'] == {'hw_disk_bus': 'virtio', 'root_device_name': '/dev/sda'}
    assert 'file' not in args['image']
    server = objects.base.Serializer().deserialize_entity(None, args['instance'])
    assert (server.display_name, server.hostname) == ('My Server', 'my-server')
    assert (server.vm_state, server.task_state, server.power_state) == ('building', 'scheduling', 0)
    assert server.reservation_id.startswith('r-') and len(server.reservation_id) == 10
    assert server.system_metadata['boot_roles'] == 'member,reader'
    assert server.system_metadata['image_hw_disk_bus'] == 'virtio'
    assert (server.config_drive, server.user_data, server.auto_disk_config) == ('True', 'YQ==', True)
    assert server.root_device_name == '/dev/sda'
    spec = objects.base.Serializer().deserialize_entity(None, args['request_spec'])
    (request,) = spec.pci_requests.requests
    assert (request.count, request.alias_name) == (2, 'gpu')
    assert request.request_id == server.pci_requests.requests[0].request_id
    with site.databases.api().read() as conn:
        stored = json.loads(request_specs.get(conn, uuid)['spec'])
    assert stored['nova_object.name'] == 'RequestSpec'
    ((method, message),) = site.conductor.calls
    assert (method, message) == ('schedule_and_build_instances', {'operations': [row['uuid']]})
    assert 'auth_token' not in row['context'] and row['context']['project_id'] == 'p1'


def server_disks(site):
    (row,) = site.asked()
    return row['args']['bdms']


def test_passwords_are_sealed_and_stay_out_of_logs(site, caplog):
    """An administrator password is sealed in the row and the message, and appears in neither log nor repr."""
    caplog.set_level('DEBUG')
    uuid = site.create(adminPass='top-secret')
    assert 'top-secret' not in caplog.text
    (row,), (_, message) = site.rows(uuid), site.conductor.calls[-1]
    assert 'top-secret' not in repr(row) and 'top-secret' not in repr(message)
    assert site.opened(uuid) == sealing.ServerSecrets('top-secret', [])
    request = creation.CreateRequest(
        name='a',
        flavor_ref='f',
        image_ref=None,
        admin_password='top-secret',
        user_data='top-secret',
        personality=[{'path': '/a', 'contents': 'top-secret'}],
    )
    assert 'top-secret' not in repr(request)


def test_each_server_of_a_request_has_its_own_seal(site):
    """One password, as in the field, and no text that would open for another server."""
    site.ok('POST', '/servers', body(site.flavor(), min_count=3, adminPass='top-secret'))
    servers = [row['instance_uuid'] for row in site.asked()]
    assert [site.opened(server).admin_password for server in servers] == ['top-secret'] * 3
    first, second = (site.rows(server)[0]['args']['sealed'] for server in servers[:2])
    with pytest.raises(sealing.NotOpened):
        sealing.SealingKeys.read(site.conf.secrets.key_file).open(first, servers[1])
    assert first != second


@pytest.mark.parametrize(
    'more', [{'adminPass': 'top-secret'}, {'personality': [{'path': '/a', 'contents': 'dG9wLXNlY3JldA=='}]}]
)
@pytest.mark.parametrize('damage', ['missing', 'open'])
def test_without_keys_nothing_secret_is_taken(site, caplog, more, damage):
    """No password is made up; who brings one, or files, is told what the operator has to do."""
    keys = pathlib.Path(site.conf.secrets.key_file)
    keys.unlink() if damage == 'missing' else keys.chmod(0o644)
    flavor = site.flavor()
    code, text = site.fault('POST', '/servers', body(flavor, **more), version='2.56')
    assert code == 503 and '(its operator can set [secrets]key_file)' in text and 'secrets.keys' not in text
    assert f'{keys} {"does not exist" if damage == "missing" else "is accessible to all users"}' in caplog.text
    assert site.ok('GET', '/servers')['servers'] == [] and site.conductor.calls == []
    made = site.ok('POST', '/servers', body(flavor, user_data='YQ=='))['server']
    assert 'adminPass' not in made and site.rows(made['id'])[0]['args']['sealed'] is None


def test_statements_of_a_create(site, statements):
    """At most fourteen, four of them of the second count of what is used, whatever the number of servers."""
    flavor = site.flavor()
    site.create(flavor)
    for count in (1, 5):
        statements.clear()
        site.ok('POST', '/servers', body(flavor, min_count=count), user='bob')
        counted = [statement for _, statement in statements if statement != 'COMMIT']
        assert len(counted) <= 14, '\n'.join(counted)
        assert [statement for _, statement in statements].count('COMMIT') == 1


def test_the_answers(make_site):
    """The answer to a create has id, links and password, or the reservation id only. It names the default security
    group if the request names none."""
    site = make_site(api__enable_instance_password=True)
    flavor = site.flavor()
    response = site.request('POST', '/servers', body(flavor, adminPass='x'))
    answer = response.json['server']
    assert set(answer) == {'id', 'links', 'OS-DCF:diskConfig', 'security_groups', 'adminPass'}
    assert answer['adminPass'] == 'x' and answer['security_groups'] == [{'name': 'default'}]
    assert response.status_int == 202
    assert response.headers['Location'] == f'http://localhost/v2.1/servers/{answer["id"]}'
    assert len(site.ok('POST', '/servers', body(flavor))['server']['adminPass']) == 12
    reserved = site.ok('POST', '/servers', body(flavor, return_reservation_id=True))
    assert set(reserved) == {'reservation_id'}


def test_without_enable_instance_password_there_is_none(make_site):
    """With enable_instance_password off the answer has no password."""
    site = make_site(api__enable_instance_password=False)
    assert 'adminPass' not in site.ok('POST', '/servers', body(site.flavor()))['server']


def test_several_servers_share_pci_request_ids(site):
    """The servers of one create share the reservation id and the ids of their PCI requests. Their names are
    numbered."""
    flavor = site.flavor({'pci_passthrough:alias': 'gpu:1'})
    site.ok('POST', '/servers', body(flavor, name='n', min_count=3))
    servers = site.asked_for('instance')
    assert [server.display_name for server in servers] == ['n-1', 'n-2', 'n-3']
    assert [server.launch_index for server in servers] == [0, 1, 2]
    assert len({server.reservation_id for server in servers}) == 1
    assert len({server.pci_requests.requests[0].request_id for server in servers}) == 1
    assert [server.display_name for server in servers] == ['n-1', 'n-2', 'n-3']
    assert [server.launch_index for server in servers] == [0, 1, 2]
    assert len({server.reservation_id for server in servers}) == 1
    assert [server.pci_requests.instance_uuid for server in servers] == [server.uuid for server in servers]
    assert len({server.uuid for server in servers}) == 3


def test_max_count_shrinks_to_what_fits(make_site, caplog):
    """A max_count beyond the quota of servers is lowered to what the quota leaves, and the log says so."""
    caplog.set_level('INFO')
    site = make_site(quota__instances=3)
    site.ok('POST', '/servers', body(site.flavor(), min_count=1, max_count=9))
    ((_, message),) = site.conductor.calls
    assert len(message['operations']) == 3
    assert 'Max count reduced from 9 to 3' in caplog.text


def test_over_quota(make_site):
    """A create beyond the quota of servers, cores or RAM is refused with 403. The text has the requested, used and
    allowed amounts."""
    site = make_site(quota__instances=10, quota__cores=20, quota__ram=51200)
    flavor = site.flavor(ram=512)
    site.create(flavor)
    site.server(flavor=flavor)
    code, message = site.fault('POST', '/servers', body(flavor, min_count=99))
    assert code == 403
    assert message == (
        'Quota exceeded for cores, instances, ram: Requested 99, 99, 50688, but already '
        'used 2, 2, 1024 of 20, 10, 51200 cores, instances, ram'
    )
    assert site.fault('POST', '/servers', body(site.flavor(ram=51201)))[1] == (
        'Quota exceeded for ram: Requested 51201, but already used 1024 of 51200 ram'
    )
    assert site.request('POST', '/servers', body(flavor, min_count=9), project=OTHER).status_int == 202


def test_quota_of_the_project_and_of_the_default_class(site):
    from kilonova.db.models import api as models

    with site.databases.api().write() as conn:
        conn.execute(
            models.QuotaClass.__table__.insert(), {'class_name': 'default', 'resource': 'instances', 'hard_limit': 0}
        )
        conn.execute(models.Quota.__table__.insert(), {'project_id': OTHER, 'resource': 'instances', 'hard_limit': 1})
    flavor = site.flavor()
    assert site.fault('POST', '/servers', body(flavor))[0] == 403
    assert site.request('POST', '/servers', body(flavor), project=OTHER).status_int == 202
    assert site.fault('POST', '/servers', body(flavor), project=OTHER)[0] == 403


def test_metadata_limit(make_site):
    site = make_site(quota__metadata_items=1)
    assert site.fault('POST', '/servers', body(site.flavor(), metadata={'a': '1', 'b': '2'})) == (
        403,
        'Maximum number of metadata items exceeds 1',
    )


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'flavorRef': '99'}, 'Flavor 99 could not be found.'),
        ({'imageRef': UUID}, 'Can not find requested image'),
        ({'imageRef': ''}, 'Missing imageRef attribute'),
        ({'key_name': 'k'}, 'Invalid key_name provided.'),
        ({'availability_zone': 'nosuch'}, 'The requested availability zone is not available'),
        ({'availability_zone': 'a:b:c:d'}, 'Unable to parse availability zone'),
        ({'availability_zone': 'nova:nosuch'}, 'Compute host nosuch could not be found.'),
        ({'host': 'nosuch'}, 'Compute host nosuch could not be found.'),
        ({'hypervisor_hostname': 'nosuch'}, 'Compute host nosuch could not be found.'),
        ({'host': 'h1', 'availability_zone': 'nova:h1'}, 'Unable to specify both'),
        ({'networks': [{'uuid': UUID}]}, 'There is no network service in this cloud'),
        ({'networks': [{'port': UUID}]}, f'port {UUID}'),
        ({'min_count': 2, 'max_count': 1}, 'min_count must be <= max_count'),
        ({'block_device_mapping': [{'volume_id': UUID}]}, 'There is no volume service in this cloud'),
        (
            {'block_device_mapping_v2': [{'source_type': 'volume', 'uuid': UUID, 'boot_index': 0}]},
            'There is no volume service in this cloud',
        ),
        (
            {
                'block_device_mapping_v2': [
                    {'source_type': 'image', 'uuid': IMAGE, 'boot_index': 0, 'destination_type': 'volume'}
                ]
            },
            'There is no volume service in this cloud',
        ),
        (
            {
                'block_device_mapping_v2': [
                    {'source_type': 'image', 'destination_type': 'local', 'boot_index': 0, 'uuid': UUID}
                ]
            },
            'the image of the root disk differs from imageRef',
        ),
        (
            {'block_device_mapping_v2': [{'source_type': 'image', 'destination_type': 'local', 'boot_index': 0}]},
            'Missing device UUID',
        ),
        ({'user_data': 'not base64!'}, 'Invalid input for field/attribute user_data'),
        ({'user_data': base64.b64encode(b'x' * 50000).decode()}, 'Invalid input for field/attribute user_data'),
    ],
)
def test_refusals_name_what_is_wrong(site, values, message):
    """A create with a wrong value is refused with a text that names it, before anything is written."""
    code, text = site.fault('POST', '/servers', body(site.flavor(), **values))
    assert code == 400 and message in text
    assert site.conductor.calls == []


@pytest.mark.parametrize(
    'form',
    [
        'http://host/flavors/{}',
        'https://host:8774/v2.1/flavors/{}?a=/b',
        '/flavors/{}',
        'http://host/v2/flavors/{}/',
        'http://[x/flavors/{}',
    ],
)
@pytest.mark.parametrize('mount', ['/v2', '/v2.1'])
def test_a_flavor_may_be_named_by_its_url(site, form, mount):
    """As old clients send it, and as links of flavors say it."""
    small, large = site.flavor(id='small one', vcpus=1), site.flavor(id='2.large', vcpus=2)
    ask = {'user': 'bob', 'mount': mount, 'version': None}
    uuid = site.ok(
        'POST', '/servers', {'server': {'name': 's', 'flavorRef': form.format('small%20one'), 'imageRef': IMAGE}}, **ask
    )['server']['id']
    assert site.asked_for('request_spec')[0].flavor.flavorid == small
    now = moment(2026, 11, 21, 10)
    site.hand_over(uuid, vm_state='active', host='h1', node='h1', launched_at=now, power_state=1)
    action = f'/servers/{uuid}/action'
    assert site.fault('POST', action, {'resize': {'flavorRef': form.format('small%20one')}}, **ask) == (
        400,
        'When resizing, instances must change flavor!',
    )
    assert site.request('POST', action, {'resize': {'flavorRef': form.format('2.large')}}, **ask).status_int == 202
    flavor = objects.base.Serializer().deserialize_entity(None, site.rows(uuid)[-1]['args']['flavor'])
    assert flavor.flavorid == large


@pytest.mark.parametrize(
    'ref', ['/', '//?', 'http://host/flavors/99', 'http://host/flavors/1%00', 'flavors/%ff', '/flavors/x?1']
)
def test_urls_of_no_flavor(site, ref):
    site.flavor(id='1')
    body = {'server': {'name': 's', 'flavorRef': ref, 'imageRef': IMAGE, 'networks': 'none'}}
    assert site.fault('POST', '/servers', body, user='bob') == (400, f'Flavor {ref} could not be found.')
    server = site.server()
    assert site.fault('POST', f'/servers/{server}/action', {'resize': {'flavorRef': ref}}, user='bob') == (
        400,
        f'Flavor {ref} could not be found.',
    )


def test_names_of_2_0_may_have_spaces_at_their_ends(site):
    site.ok('POST', '/os-keypairs', {'keypair': {'name': 'k'}}, user='bob', version='2.1')
    body = {'server': {'name': ' a b ', 'flavorRef': site.flavor(), 'imageRef': IMAGE, 'key_name': 'k '}}
    uuid = site.ok('POST', '/servers', body, user='bob', mount='/v2')['server']['id']
    shown = site.ok('GET', f'/servers/{uuid}', user='bob', mount='/v2')['server']
    assert (shown['name'], shown['key_name']) == ('a b', 'k')
    assert site.fault('POST', '/servers', body, user='bob', version='2.1')[0] == 400


def test_refusals_of_old_versions(site):
    flavor = site.flavor()
    assert site.fault('POST', '/servers', body(flavor, personality=[]), version='2.57')[0] == 400
    code, text = site.fault('POST', '/servers', {**body(flavor), 'os:scheduler_hints': {'group': UUID}})
    assert (code, text) == (400, f'Instance group {UUID} could not be found.')


def test_what_the_cli_sends(site):
    """openstackclient names the image in imageRef and again as root device."""
    device = {
        'uuid': IMAGE,
        'source_type': 'image',
        'destination_type': 'local',
        'boot_index': 0,
        'delete_on_termination': True,
    }
    flavor = site.flavor()
    site.ok('POST', '/servers', body(flavor, block_device_mapping_v2=[device], networks='auto'), user='bob')
    assert (
        site.request(
            'POST',
            '/servers',
            {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': []}},
            version='2.36',
        ).status_int
        == 202
    )


@pytest.mark.parametrize(
    ('values', 'flavor', 'code', 'message'),
    [
        ({'status': 'queued'}, {}, 400, f'Image {IMAGE} is not active.'),
        ({'min_ram': 1024}, {}, 400, "Flavor's memory is too small for requested image."),
        (
            {'min_disk': 2},
            {},
            400,
            (
                'Flavor disk is smaller than the minimum size specified in image metadata. Flavor disk '
                'is 1073741824 bytes, minimum size is 2147483648 bytes.'
            ),
        ),
        (
            {'size': 2**31},
            {},
            400,
            (
                "Flavor's disk is too small for requested image. Flavor disk is 1073741824 bytes, "
                'image is 2147483648 bytes.'
            ),
        ),
        ({}, {'disk': 0}, 403, 'Only volume-backed servers are allowed for flavors with zero disk.'),
        ({'hw_pci_numa_affinity_policy': 'nosuch'}, {}, 400, None),
    ],
)
def test_image_against_flavor(site, values, flavor, code, message):
    site.images.record.update(values)
    got, text = site.fault('POST', '/servers', body(site.flavor(**flavor)), user='bob')
    assert got == code and message in (None, text)


def test_administrators_may_use_flavors_without_disk(site):
    assert site.request('POST', '/servers', body(site.flavor(disk=0))).status_int == 202


@pytest.mark.parametrize(
    ('alias', 'message'),
    [('nosuch:1', 'PCI alias nosuch is not defined'), ('gpu', "'gpu' is not"), ('gpu:x', "'gpu:x' is not")],
)
def test_bad_aliases(site, alias, message):
    """A create whose flavor names an unknown or malformed PCI alias is refused with 400."""
    flavor = site.flavor()
    site.ok(
        'POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': {'pci_passthrough:alias': alias}}, version='2.61'
    )
    code, text = site.fault('POST', '/servers', body(flavor))
    assert code == 400 and message in text


def test_zones_of_aggregates(site):
    """A zone whose aggregate has no enabled compute is refused. With one the server stores and shows the zone."""
    with site.databases.api().write() as conn:
        aggregate = aggregates.create(conn, 'a', {'availability_zone': 'z1'})
    assert site.fault('POST', '/servers', body(site.flavor(), availability_zone='z1')) == (
        400,
        'The requested availability zone is not available',
    )
    with site.databases.api().write() as conn:
        aggregates.add_host(conn, aggregate['id'], 'h1')
    with site.cell1.write() as conn:
        here = services.get_or_create(conn, 'h1', 'nova-compute', 'compute')
        services.get_or_create(conn, 'h2', 'nova-compute', 'compute')
    uuid = site.create(availability_zone='z1')
    assert site.rows(uuid)[0]['args']['request_spec']['nova_object.data']['availability_zone'] == 'z1'
    shown = site.ok('GET', f'/servers/{uuid}')['server']
    assert (shown['OS-EXT-AZ:availability_zone'], shown['pinned_availability_zone']) == ('z1', 'z1')
    assert site.create(availability_zone='nova')
    with site.cell1.write() as conn:
        services.update(conn, here['id'], {'disabled': True})
    assert site.fault('POST', '/servers', body(site.flavor(), availability_zone='z1'))[0] == 400


def test_destinations(site):
    with site.databases.api().write() as conn:
        cells.map_hosts(conn, site.cell1.cell.id, ['h1', 'h2'])
    with site.cell1.write() as conn:
        compute_nodes.get_or_create(
            conn,
            {
                'uuid': UUID,
                'host': 'h1',
                'hypervisor_hostname': 'n1',
                'vcpus': 1,
                'memory_mb': 1,
                'local_gb': 1,
                'vcpus_used': 0,
                'memory_mb_used': 0,
                'local_gb_used': 0,
                'hypervisor_type': 'QEMU',
                'hypervisor_version': 1,
                'cpu_info': '',
            },
        )

    def spec(uuid):
        return site.rows(uuid)[0]['args']['request_spec']['nova_object.data']

    forced = spec(site.create(user='admin', availability_zone='nova:h1:n1'))
    assert (forced['force_hosts'], forced['force_nodes'], forced['requested_destination']) == (['h1'], ['n1'], None)
    wanted = spec(site.create(user='admin', host='h1'))['requested_destination']['nova_object.data']
    assert (wanted['host'], wanted['node']) == ('h1', None)
    wanted = spec(site.create(user='admin', hypervisor_hostname='n1'))['requested_destination']['nova_object.data']
    assert (wanted['host'], wanted['node']) == ('h1', 'n1')
    forced = spec(site.create(user='admin', availability_zone='nova::n1'))
    assert (forced['force_hosts'], forced['force_nodes'], forced['availability_zone']) == (None, ['n1'], 'nova')
    flavor = site.flavor()
    for values in ({'host': 'h2', 'hypervisor_hostname': 'n1'}, {'availability_zone': 'nova:h2:n1'}):
        assert site.fault('POST', '/servers', body(flavor, **values)) == (400, 'Compute host n1 could not be found.')
    assert site.fault('POST', '/servers', body(flavor, availability_zone='nova::n9')) == (
        400,
        'Compute host n9 could not be found.',
    )


@pytest.mark.parametrize(
    ('values', 'rule'),
    [
        ({'availability_zone': 'nova:h1'}, 'os_compute_api:servers:create:forced_host'),
        ({'availability_zone': 'nova::n1'}, 'os_compute_api:servers:create:forced_host'),
        ({'host': 'h1'}, 'compute:servers:create:requested_destination'),
    ],
)
def test_members_name_no_hosts(site, values, rule):
    """A member who names a host in a create is refused with 403 and the name of the policy rule."""
    assert site.fault('POST', '/servers', body(site.flavor(), **values), user='bob') == (
        403,
        f"Policy doesn't allow {rule} to be performed.",
    )


def test_private_flavors_are_for_those_that_were_let_in(site):
    flavor = site.flavor(**{'os-flavor-access:is_public': False})
    assert site.fault('POST', '/servers', body(flavor), user='bob') == (400, f'Flavor {flavor} could not be found.')
    site.ok('POST', f'/flavors/{flavor}/action', {'addTenantAccess': {'tenant': 'p1'}})
    assert site.request('POST', '/servers', body(flavor), user='bob').status_int == 202


def test_description_was_the_name_before_2_19(site):
    uuid = site.ok(
        'POST', '/servers', {'server': {'name': 'n', 'flavorRef': site.flavor(), 'imageRef': IMAGE}}, version='2.18'
    )['server']['id']
    assert site.ok('GET', f'/servers/{uuid}')['server']['description'] == 'n'


@pytest.mark.parametrize(
    ('name', 'hostname'),
    [
        ('My_Server 1', 'my-server-1'),
        ('...', 'server-U'),
        ('名前', 'server-U'),
        ('a' * 80, 'a' * 63),
        ('x.example.org', 'x-example-org'),
        ('ubuntu-24.04', 'ubuntu-24-04'),
        ('a. ', 'a'),
        ('-a-', 'a'),
    ],
)
def test_a_name_becomes_a_hostname_of_one_label(name, hostname):
    assert creation.hostname_of(name, 'U') == hostname


def servers_of(site):
    return site.asked_for('instance')


@pytest.mark.parametrize(
    ('values', 'hostnames'),
    [
        ({'name': 'Web Front'}, ['web-front-1', 'web-front-2']),
        ({'name': 'a' * 80}, ['a' * 61 + '-1', 'a' * 61 + '-2']),
        ({'hostname': 'web'}, ['web-1', 'web-2']),
        ({'hostname': 'web.example.org'}, ['web-1.example.org', 'web-2.example.org']),
        ({'hostname': 'b' * 63}, ['b' * 61 + '-1', 'b' * 61 + '-2']),
        ({'hostname': 'c' * 63 + '.' + 'd' * 191}, ['c' * 61 + f'-{number}.' + 'd' * 191 for number in (1, 2)]),
    ],
)
def test_host_names_of_several(site, values, hostnames):
    """The host names of several servers are numbered and have at most 255 characters."""
    site.ok('POST', '/servers', body(site.flavor(), min_count=2, **values))
    assert [server.hostname for server in servers_of(site)] == hostnames
    assert max(map(len, hostnames)) <= 255


@pytest.mark.parametrize(
    ('hostname', 'version', 'code'),
    [
        ('h1', '2.89', 400),
        ('h1', '2.90', 202),
        ('a.b', '2.93', 400),
        ('a.b', '2.94', 202),
        ('x', '2.104', 400),
        ('-ab', '2.104', 400),
        ('a' * 64, '2.93', 400),
        ('a' * 255, '2.94', 202),
        ('a' * 256, '2.94', 400),
    ],
)
def test_windows_of_the_host_name(site, hostname, version, code):
    """The property hostname of a create is accepted from its microversion on, and its form is checked."""
    assert site.request('POST', '/servers', body(site.flavor(), hostname=hostname), version=version).status_int == code


def test_files_go_into_the_config_drive(site):
    """Until 2.56; whoever sends files gets a config drive, there is no other way for them."""
    file = {'path': '/etc/motd', 'contents': base64.b64encode(b'hello').decode()}
    uuid = site.ok('POST', '/servers', body(site.flavor(), personality=[file]), version='2.56')['server']['id']
    (row,) = site.rows(uuid)
    assert file['contents'] not in repr(row) and '/etc/motd' not in repr(row)
    assert site.opened(uuid).files == [('/etc/motd', file['contents'])]
    assert site.ok('GET', f'/servers/{uuid}')['server']['config_drive'] == 'True'


@pytest.mark.parametrize(
    ('files', 'code', 'message'),
    [
        ([{'path': '/a', 'contents': 'YQ=='}] * 2, 403, 'Personality file limit exceeded. Maximum allowed is 1 files.'),
        ([{'path': '/abcd', 'contents': 'YQ=='}], 403, 'Personality file path exceeds maximum 4'),
        (
            [{'path': '/a', 'contents': base64.b64encode(b'12345').decode()}],
            403,
            'Personality file content exceeds maximum 4',
        ),
        ([{'contents': 'YQ=='}], 400, 'Bad personality format: missing path'),
        ([{'path': '/a', 'contents': 'no!base64'}], 400, None),
    ],
)
def test_limits_of_files(make_site, files, code, message):
    """Too many files, too long paths and too large contents are refused."""
    site = make_site(quota__injected_files=1, quota__injected_file_path_length=4, quota__injected_file_content_bytes=4)
    got, text = site.fault('POST', '/servers', body(site.flavor(), personality=files), version='2.56')
    assert got == code and message in (None, text)


def test_trusted_certificates_are_refused(site):
    """A create with trusted certificates is refused, because images are not verified. Certificates that a server
    has are shown."""
    code, text = site.fault('POST', '/servers', body(site.flavor(), trusted_image_certificates=['c1', 'c2']))
    assert code == 400 and 'trusted_image_certificates' in text
    uuid = site.server(create={'trusted_image_certificates': None})
    assert site.ok('GET', f'/servers/{uuid}')['server']['trusted_image_certificates'] is None
    with site.cell1.write() as conn:
        kept = objects.TrustedCerts(ids=['c1', 'c2'])
        instances.update_extra(conn, uuid, {'trusted_certs': json.dumps(kept.obj_to_primitive())})
    assert site.ok('GET', f'/servers/{uuid}')['server']['trusted_image_certificates'] == ['c1', 'c2']
    for values in ([], ['c', 'c'], ['c'] * 51, ['']):
        assert site.fault('POST', '/servers', body(site.flavor(), trusted_image_certificates=values))[0] == 400


def test_the_rule_of_trusted_certificates(make_site, tmp_path):
    """A user whom the rule create:trusted_certs does not allow is refused with 403 before the certificates are
    checked."""
    rule = 'os_compute_api:servers:create:trusted_certs'
    (tmp_path / 'policy.yaml').write_text(f'"{rule}": "rule:context_is_admin"\n')
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    flavor = site.flavor()
    assert site.fault('POST', '/servers', body(flavor, trusted_image_certificates=['c']), user='bob') == (
        403,
        f"Policy doesn't allow {rule} to be performed.",
    )
    assert site.request('POST', '/servers', body(flavor), user='bob').status_int == 202


def test_unknown_hints_are_kept(site):
    hints = {'my_filter': 'a', 'numbers': [1, 2], 'query': ['>=', '$ram', 1], 'same_host': [UUID]}
    asked = {**body(site.flavor()), 'os:scheduler_hints': {**hints, 'query': '["=", "$host", "h1"]'}}
    uuid = site.ok('POST', '/servers', asked)['server']['id']
    spec = site.rows(uuid)[0]['args']['request_spec']['nova_object.data']
    assert spec['scheduler_hints'] == {
        'my_filter': ['a'],
        'numbers': ['1', '2'],
        'query': ['["=", "$host", "h1"]'],
        'same_host': [UUID],
    }
    for wrong in ({'group': 'x'}, {'same_host': 'x'}, {'cidr': '24'}, {'build_near_host_ip': 'x'}):
        assert site.fault('POST', '/servers', {**body(site.flavor()), 'OS-SCH-HNT:scheduler_hints': wrong})[0] == 400


def test_the_default_zone_for_those_that_name_none(make_site):
    """A create without a zone gets default_schedule_zone, and is refused while that zone has no compute."""
    site = make_site(default_schedule_zone='nova')
    assert site.fault('POST', '/servers', body(site.flavor()))[0] == 400
    with site.cell1.write() as conn:
        services.get_or_create(conn, 'h1', 'nova-compute', 'compute')
    uuid = site.create()
    assert site.ok('GET', f'/servers/{uuid}')['server']['pinned_availability_zone'] == 'nova'


def test_tags_come_with_2_52(site):
    """Tags of a create are accepted from 2.52 on, stored sorted and without duplicates. Malformed tags and more
    than 50 are refused."""
    flavor = site.flavor()
    assert 'tags' in site.fault('POST', '/servers', body(flavor, tags=['a']), version='2.51')[1]
    uuid = site.ok('POST', '/servers', body(flavor, tags=['b', 'a', 'b']), version='2.52')['server']['id']
    assert site.ok('GET', f'/servers/{uuid}')['server']['tags'] == ['a', 'b']
    for tags in (['x' * 61], ['a,b'], ['a/b'], [''], [f't{number}' for number in range(51)]):
        assert site.fault('POST', '/servers', body(flavor, tags=tags))[0] == 400


def test_security_groups_are_named_back(site):
    """There is no network service: each project has the one that clients always ask for, and no other."""
    answer = site.ok('POST', '/servers', body(site.flavor(), security_groups=[{'name': 'default'}] * 2))
    assert answer['server']['security_groups'] == [{'name': 'default'}]


@pytest.mark.parametrize(
    ('properties', 'more', 'device'),
    [
        ({}, {}, '/dev/vda'),
        ({'hw_disk_bus': 'virtio'}, {}, '/dev/vda'),
        ({'hw_disk_bus': 'scsi'}, {}, '/dev/sda'),
        ({'hw_disk_bus': 'ide'}, {}, '/dev/hda'),
        ({'hw_disk_bus': 'scsi', 'root_device_name': '/dev/vda'}, {}, '/dev/vda'),
        (
            {'hw_disk_bus': 'virtio'},
            {
                'block_device_mapping_v2': [
                    {
                        'source_type': 'image',
                        'uuid': IMAGE,
                        'destination_type': 'local',
                        'boot_index': 0,
                        'disk_bus': 'sata',
                    }
                ]
            },
            '/dev/sda',
        ),
    ],
)
def test_the_root_device_has_a_name_from_the_build_on_found_1_18(site, properties, more, device):
    site.images.record.pop('hw_disk_bus')
    site.images.record.update(properties)
    uuid = site.create(site.flavor(), **more)
    (row,) = site.rows(uuid)
    assert objects.base.Serializer().deserialize_entity(None, row['args']['instance']).root_device_name == device
    shown = site.ok('GET', f'/servers/{uuid}')['server']
    assert shown['OS-EXT-SRV-ATTR:root_device_name'] == device
    assert 'OS-EXT-SRV-ATTR:root_device_name' not in site.ok('GET', f'/servers/{uuid}', user='bob')['server']


def test_image_properties_are_the_images_found_1_18(site):
    """What the service itself keeps beside them is not shown (2.98), before there is a host and afterwards."""
    site.images.record['os_distro'] = 'debian'
    uuid = site.create(site.flavor())
    assert 'base_image_ref' not in site.ok('GET', f'/servers/{uuid}')['server']['image']['properties']
    other = site.server()
    with site.cell1.write() as conn:
        instances.set_system_metadata(conn, other, {'image_base_image_ref': IMAGE, 'image_os_distro': 'debian'})
    for server in (uuid, other):
        for body in (
            site.ok('GET', f'/servers/{server}')['server'],
            next(one for one in site.ok('GET', '/servers/detail')['servers'] if one['id'] == server),
        ):
            assert body['image']['properties']['os_distro'] == 'debian'
            assert 'base_image_ref' not in body['image']['properties']
