"""POST /servers in its forms, through the whole cloud."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess

import pytest

from tests.fixtures.cloud import IMAGE_ID, PROJECT

ROOT = {
    'source_type': 'image',
    'destination_type': 'local',
    'uuid': IMAGE_ID,
    'boot_index': 0,
    'delete_on_termination': True,
}
BLANK = {'source_type': 'blank', 'destination_type': 'local', 'boot_index': -1}


def roomy(cloud, **values):
    """A flavor with ephemeral disk and swap."""
    body = {
        'name': f'roomy{len(cloud.messages)}{sorted(values.items())}',
        'vcpus': 1,
        'ram': 512,
        'disk': 1,
        'OS-FLV-EXT-DATA:ephemeral': 3,
        'swap': 512,
        **values,
    }
    return cloud.ok('POST', '/flavors', {'flavor': body})['flavor']['id']


def directory(cloud, server, host=None, suffix=''):
    return cloud.directory / (host or cloud.host_of(server)) / 'instances' / (server + suffix)


def disks(cloud, server, host=None, suffix=''):
    """{name: size that the guest sees}."""
    found = {}
    for path in directory(cloud, server, host, suffix).glob('disk*'):
        if path.name not in ('disk.info', 'disk.asked'):
            told = subprocess.run(['qemu-img', 'info', '--output=json', path], check=True, capture_output=True)
            found[path.name] = json.loads(told.stdout)['virtual-size']
    return found


def rows_of(cloud, server):
    from kilonova.db.queries import instances

    table = instances.bdm_table
    with cloud.cell.read() as conn:
        return [
            dict(row)
            for row in conn.execute(
                table.select().where(table.c.instance_uuid == server).order_by(table.c.id)
            ).mappings()
        ]


@pytest.fixture
def forms(make_cloud):
    return make_cloud(max_local_block_devices=-1)


def test_disks_that_were_asked_for_live_and_die_with_the_server(forms):
    """Ephemeral and swap disks of the request are made by the boot, carried by a resize, restored by a revert, and
    removed by the delete."""
    gib, mib = 1 << 30, 1 << 20
    wanted = [
        ROOT,
        {**BLANK, 'volume_size': 1},
        {**BLANK, 'volume_size': 2, 'guest_format': 'ext3'},
        {**BLANK, 'guest_format': 'swap', 'volume_size': 64},
    ]
    small, large = roomy(forms), roomy(forms, disk=2, swap=1024)
    server = forms.boot(small, block_device_mapping_v2=wanted)
    asked = {'disk': gib, 'disk.eph0': gib, 'disk.eph1': 2 * gib, 'disk.swap': 64 * mib}
    source = forms.host_of(server)
    assert forms.status(server) == 'ACTIVE' and disks(forms, server) == asked
    assert [(row['source_type'], row['volume_size'], row['guest_format']) for row in rows_of(forms, server)] == [
        ('image', None, None),
        ('blank', 1, None),
        ('blank', 2, 'ext3'),
        ('blank', 64, 'swap'),
    ]
    before = forms.xml(server).count('<disk ')
    forms.action(server, 'resize', {'flavorRef': large})
    assert forms.host_of(server) != source
    assert disks(forms, server) == {**asked, 'disk': 2 * gib, 'disk.swap': 1024 * mib}
    assert disks(forms, server, source, '_resize') == asked and forms.xml(server).count('<disk ') == before == 4
    forms.action(server, 'revertResize')
    assert forms.host_of(server) == source and disks(forms, server) == asked
    forms.action(server, 'reboot', {'type': 'HARD'})
    assert forms.xml(server).count('<disk ') == before
    forms.action(server, 'resize', {'flavorRef': large})
    forms.action(server, 'confirmResize')
    assert disks(forms, server)['disk.eph1'] == 2 * gib
    forms.request('DELETE', f'/servers/{server}')
    forms.settle()
    forms.assert_empty()


def test_disks_of_the_flavor(forms):
    """Ephemeral and swap come with the flavor; nothing is asked for, so nothing is written about them."""
    server = forms.boot(roomy(forms))
    assert disks(forms, server) == {'disk': 1 << 30, 'disk.eph0': 3 << 30, 'disk.swap': 512 << 20}
    assert rows_of(forms, server) == []
    forms.action(server, 'resize', {'flavorRef': roomy(forms, **{'OS-FLV-EXT-DATA:ephemeral': 4, 'swap': 0})})
    assert disks(forms, server) == {'disk': 1 << 30, 'disk.eph0': 4 << 30}
    forms.action(server, 'revertResize')
    assert disks(forms, server) == {'disk': 1 << 30, 'disk.eph0': 3 << 30, 'disk.swap': 512 << 20}
    # Placement counts them: root, ephemeral and swap in whole GiB.
    (allocation,) = [held for consumer, held in forms.placement.allocations().items() if consumer == server]
    assert 'DISK_GB' in str(allocation)
    forms.assert_clean()


@pytest.mark.skipif(not shutil.which('isoinfo'), reason='isoinfo is not installed')
def test_what_the_config_drive_tells(forms):
    """The config drive contains files (until 2.56), user data, metadata, the password and tags of devices."""

    def read(server, path):
        done = subprocess.run(
            ['isoinfo', '-J', '-i', directory(forms, server) / 'disk.config', '-x', path],
            check=True,
            capture_output=True,
        )
        return done.stdout

    encoded = base64.b64encode(b'hello').decode()
    body = {
        'server': {
            'name': 'told',
            'flavorRef': roomy(forms),
            'imageRef': IMAGE_ID,
            'networks': 'none',
            'adminPass': 'secret',
            'metadata': {'a': 'b'},
            'user_data': base64.b64encode(b'#cloud-config').decode(),
            'personality': [{'path': '/etc/motd', 'contents': encoded}],
            'block_device_mapping_v2': [{**BLANK, 'volume_size': 1, 'tag': 'scratch'}],
        }
    }
    server = forms.ok('POST', '/servers', body, version='2.56')['server']['id']
    forms.settle()
    meta = json.loads(read(server, '/openstack/latest/meta_data.json'))
    assert (meta['name'], meta['hostname'], meta['meta'], meta['admin_pass']) == (
        'told',
        'told.novalocal',
        {'a': 'b'},
        'secret',
    )
    assert meta['files'] == [{'path': '/etc/motd', 'content_path': '/content/0000'}]
    assert read(server, '/openstack/content/0000') == b'hello'
    assert read(server, '/openstack/latest/user_data') == b'#cloud-config'
    assert [(device['path'], device['tags']) for device in meta['devices']] == [('/dev/vdb', ['scratch'])]
    assert forms.show(server)['config_drive'] == 'True'


def test_several_servers_of_one_request(forms):
    """A create of several servers has one reservation id, which finds them. Names and host names are numbered."""
    flavor = forms.flavor()
    answer = forms.create(flavor, name='Web', min_count=2, max_count=3, return_reservation_id=True, hostname='web')
    assert set(answer) == {'reservation_id'}
    forms.settle()
    found = forms.ok(
        'GET', f'/servers/detail?reservation_id={answer["reservation_id"]}&sort_key=launch_index&sort_dir=asc'
    )['servers']
    assert [(one['name'], one['OS-EXT-SRV-ATTR:hostname'], one['status']) for one in found] == [
        (f'Web-{number}', f'web-{number}', 'ACTIVE') for number in (1, 2, 3)
    ]
    assert {one['OS-EXT-SRV-ATTR:reservation_id'] for one in found} == {answer['reservation_id']}
    forms.assert_clean()


def test_places(forms):
    """zone, zone:host, zone:host:node, zone::node (filters are passed over), host and node of 2.74 (they are not)."""
    flavor = forms.flavor(gpus=1)
    for zone, host in (('nova:gpu2', 'gpu2'), ('nova:gpu2:gpu2', 'gpu2'), ('nova::gpu2', 'gpu2'), ('nova', None)):
        server = forms.boot(flavor, availability_zone=zone)
        assert forms.status(server) == 'ACTIVE', zone
        assert host in (None, forms.host_of(server)), zone
    assert forms.host_of(forms.boot(forms.flavor(), host='gpu1')) == 'gpu1'
    assert forms.host_of(forms.boot(forms.flavor(), hypervisor_hostname='gpu2')) == 'gpu2'
    assert forms.host_of(forms.boot(forms.flavor(), host='gpu1', hypervisor_hostname='gpu1')) == 'gpu1'
    # A forced host passes the filters over, but has to have the devices all the same.
    full = forms.flavor(gpus=4)
    assert {
        forms.status(forms.boot(full, **place)) for place in ({'availability_zone': 'nova:gpu2'}, {'host': 'gpu2'})
    } == {'ERROR'}
    forms.assert_clean()


def test_what_stands_before_a_conductor_runs(make_cloud):
    """Before a conductor runs, the API database has the request spec, the build request and the mapping, and one
    cast was sent. GET shows BUILD from the build request."""
    cloud = make_cloud(start=False)
    server = cloud.create(cloud.flavor(), tags=['t'], metadata={'a': 'b'})['server']['id']
    assert [message for message in cloud.messages if message[0] == 'cast'] == [
        ('cast', 'conductor', None, 'schedule_and_build_instances')
    ]
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:task_state'], shown['tags'], shown['metadata']) == (
        'BUILD',
        'scheduling',
        ['t'],
        {'a': 'b'},
    )
    from kilonova.db.models import api as models

    with cloud.databases.api().read() as conn:
        counts = [
            len(conn.execute(model.__table__.select()).all())
            for model in (models.RequestSpec, models.BuildRequest, models.InstanceMapping)
        ]
        mapping = conn.execute(models.InstanceMapping.__table__.select()).mappings().first()
    assert counts == [1, 1, 1] and (mapping['cell_id'], mapping['project_id']) == (None, PROJECT)
