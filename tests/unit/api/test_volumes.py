"""Volumes: what a create asks of the volume service, those that a server has, and what is refused.

``tests/functional/test_volumes.py`` has attaches and detaches that are done.
"""

from __future__ import annotations

import json

import pytest

from kilonova.api.services.backend import ApiOptions
from kilonova.db.queries import instances, operations
from kilonova.db.queries import volumes as rows
from kilonova.errors import ImageUnacceptable
from kilonova.objects.volume import AttachedVolume
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.servers import put_server
from tests.unit.api.conftest import IMAGE, OTHER, PROJECT

NOSUCH = '11111111-2222-4333-8444-555555555555'
ATTACHMENT = '11111111-2222-4333-8444-666666666666'
SHOWN = 'os-extended-volumes:volumes_attached'
BLANK = {'source_type': 'blank', 'destination_type': 'volume', 'volume_size': 2}
OF_IMAGE = {'source_type': 'image', 'destination_type': 'volume', 'uuid': IMAGE, 'volume_size': 3}


@pytest.fixture
def cinder():
    made = FakeCinder()
    made.users = {f'bob:{PROJECT}': PROJECT, f'eve:{OTHER}': OTHER, f'admin:{PROJECT}': PROJECT}
    made.images[IMAGE] = {}
    return made


@pytest.fixture
def site(make_site, cinder):
    made = make_site(cinder=cinder)
    made.small = made.flavor()
    return made


def there(volume, **more):
    """A volume of the user's, as a create names it."""
    return {'source_type': 'volume', 'destination_type': 'volume', 'uuid': volume, **more}


def post(site, *devices, version='2.104', form='block_device_mapping_v2', **values):
    body = {'name': 's', 'flavorRef': site.small, 'imageRef': IMAGE, 'networks': 'none', form: list(devices), **values}
    if int(version[2:]) < 37:
        del body['networks']
    return site.request('POST', '/servers', {'server': body}, user='bob', version=version)


def created(site, *devices, **values):
    """The rows of volumes of each server that the conductor is told of."""
    response = post(site, *devices, **values)
    assert response.status_int == 202, response.text
    return [[row for row in asked['args']['bdms'] if row['destination_type'] == 'volume'] for asked in site.asked()]


def refused(site, *devices, **values):
    response = post(site, *devices, **values)
    (fault,) = response.json.values()
    assert site.conductor.calls == [] and fault['code'] == response.status_int
    return fault['code'], fault['message']


def put_volume(site, server, volume, **columns):
    """A server has it; its row."""
    row = {**rows.new_row(volume, size=1, connection_info='{}'), **columns}
    with site.cell1.write() as conn:
        assert rows.add(conn, server, row)
    return row


# --- what a create asks for ------------------------------------------------------------------------------------------
def test_volumes_that_are_there(site, cinder):
    """One request for each; nothing is reserved for the server yet."""
    volume, other = cinder.add_volume(PROJECT, size=5), cinder.add_volume(PROJECT, volume_type='shared')
    cinder.asked.clear()
    ((one, two),) = created(
        site,
        there(
            volume,
            boot_index=None,
            tag='data',
            disk_bus='scsi',
            device_type='disk',
            volume_size=9,
            device_name='/dev/vdq',
            delete_on_termination=True,
        ),
        {'source_type': 'volume', 'volume_id': other, 'boot_index': -1},
    )
    assert cinder.asked == [('GET', f'/volumes/{volume}'), ('GET', f'/volumes/{other}')]
    assert cinder.headers[0]['X-Auth-Token'] == f'bob:{PROJECT}' and cinder.held() == []
    assert [
        one[name]
        for name in (
            'source_type',
            'volume_id',
            'volume_size',
            'volume_type',
            'boot_index',
            'tag',
            'disk_bus',
            'device_type',
            'device_name',
            'delete_on_termination',
            'image_id',
        )
    ] == ['volume', volume, 5, 'plain', None, 'data', 'scsi', 'disk', None, True, None]
    assert [two[name] for name in ('volume_id', 'boot_index', 'delete_on_termination')] == [other, -1, False]
    assert [AttachedVolume.read(row).multiattach for row in (one, two)] == [False, True]
    assert 'secret' not in one['connection_info']


def test_rows_of_all_disks_are_inserted_together(site, cinder):
    """Volumes beside local disks that were asked for: every row has every column."""
    site.small = site.flavor(swap=512)
    volume = cinder.add_volume(PROJECT)
    swap = {'source_type': 'blank', 'destination_type': 'local', 'boot_index': -1, 'guest_format': 'swap'}
    assert post(site, swap, there(volume), BLANK).status_int == 202
    (asked,) = site.asked()
    with site.cell1.write() as conn:
        put_server(
            conn,
            {'uuid': asked['instance_uuid'], 'project_id': PROJECT, 'user_id': 'bob'},
            {},
            {},
            {},
            (),
            asked['args']['bdms'],
        )
        assert [
            (row['source_type'], row['destination_type'], bool(row['volume_id']))
            for row in instances.get_bdms(conn, asked['instance_uuid'])
        ] == [
            ('image', 'local', False),
            ('blank', 'local', False),
            ('volume', 'volume', True),
            ('blank', 'volume', True),
        ]


def test_volumes_that_are_made(site, cinder):
    """Each server has its own, as its user's; what they are made of is kept in their rows."""
    snapshot = cinder.add_snapshot(cinder.add_volume(PROJECT, size=4))
    before = set(cinder.volumes)
    servers = created(
        site,
        BLANK,
        {**OF_IMAGE, 'volume_type': 'plain', 'delete_on_termination': True},
        {'source_type': 'snapshot', 'uuid': snapshot},
        {'source_type': 'snapshot', 'volume_size': 8, 'snapshot_id': snapshot},
        min_count=2,
    )
    new = [row['volume_id'] for server in servers for row in server]
    assert len(set(new)) == 8 and set(new) == set(cinder.volumes) - before
    for server, asked in zip(servers, site.asked(), strict=True):
        assert [
            (row['source_type'], row['volume_size'], row['image_id'], row['snapshot_id'], row['delete_on_termination'])
            for row in server
        ] == [
            ('blank', 2, None, None, False),
            ('image', 3, IMAGE, None, True),
            ('snapshot', 4, None, snapshot, False),
            ('snapshot', 8, None, snapshot, False),
        ]
        made = [cinder.volumes[row['volume_id']] for row in server]
        assert [volume['size'] for volume in made] == [2, 3, 4, 8]
        assert [volume['name'] for volume in made] == [f'{asked["instance_uuid"]}-blank-vol', '', '', '']
        assert {volume['os-vol-tenant-attr:tenant_id'] for volume in made} == {PROJECT}


def test_the_first_form(site, cinder):
    volume, other = cinder.add_volume(PROJECT), cinder.add_volume(PROJECT)
    snapshot = cinder.add_snapshot(other)
    ((one, two),) = created(
        site,
        {'device_name': 'vdb', 'volume_id': volume, 'delete_on_termination': '1'},
        {'device_name': 'vdc', 'snapshot_id': snapshot, 'volume_size': '3'},
        form='block_device_mapping',
    )
    assert (one['source_type'], one['volume_id'], one['delete_on_termination'], one['device_name']) == (
        'volume',
        volume,
        True,
        None,
    )
    assert (two['source_type'], two['snapshot_id'], two['volume_size']) == ('snapshot', snapshot, 3)


def test_one_volume_of_several_servers(site, cinder):
    shared, plain = cinder.add_volume(PROJECT, volume_type='shared'), cinder.add_volume(PROJECT)
    assert [row['volume_id'] for server in created(site, there(shared), min_count=2) for row in server] == [shared] * 2
    site.conductor.calls.clear()
    assert refused(site, there(plain), max_count=2) == (400, 'Cannot attach one or more volumes to multiple instances')
    assert refused(site, there(shared), version='2.59') == (
        400,
        'Multiattach volumes are only supported starting with compute API version 2.60.',
    )
    assert created(site, there(shared), version='2.60')


def test_what_a_create_can_not_have(site, cinder):
    volume, theirs = cinder.add_volume(PROJECT), cinder.add_volume(OTHER)
    snapshot = cinder.add_snapshot(theirs)
    broken = cinder.add_volume(PROJECT, status='error')
    used = cinder.add_volume(PROJECT)
    cinder.client.complete_attachment(cinder.client.create_attachment(used, NOSUCH, None).id)
    bad = 'Block Device Mapping is Invalid: '
    for device, answer in (
        (there(NOSUCH), f'{bad}failed to get volume {NOSUCH}.'),
        (there(theirs), f'{bad}failed to get volume {theirs}.'),
        (there('..'), f'{bad}failed to get volume ...'),
        ({'source_type': 'volume', 'destination_type': 'volume'}, f'{bad}Missing device UUID.'),
        (
            there(broken),
            (f'Invalid volume: Volume {broken} status must be available to reserve, but the current status is error.'),
        ),
        (there(used), f'Invalid volume: volume {used} is already attached to instances: {NOSUCH}'),
        ({**there(volume), 'destination_type': 'local'}, f'{bad}Mapping volume to local is not supported.'),
        ({'source_type': 'snapshot', 'uuid': NOSUCH}, f'Snapshot {NOSUCH} could not be found.'),
        ({'source_type': 'snapshot', 'uuid': snapshot}, f'Snapshot {snapshot} could not be found.'),
        (
            {**OF_IMAGE, 'volume_size': None},
            "Images with destination_type 'volume' need to have a non-zero size specified",
        ),
        ({**BLANK, 'volume_size': None}, "Blank volumes (source: 'blank', dest: 'volume') need to have non-zero size"),
        ({**BLANK, 'uuid': NOSUCH}, f'{bad}Invalid device UUID.'),
        ({**BLANK, 'volume_type': 'nosuch'}, 'Volume type nosuch could not be found.'),
        ({**OF_IMAGE, 'uuid': NOSUCH}, 'Invalid image identifier or unable to access requested image.'),
        ({**BLANK, 'guest_format': 'swap'}, f"{bad}guest_format 'swap' is not supported for this disk."),
        ({**BLANK, 'disk_bus': 'lxc'}, f"{bad}disk_bus 'lxc' is not supported for a volume."),
        (
            {**BLANK, 'boot_index': 2},
            (f'{bad}Boot sequence for the instance and image/block device mapping combination is not valid.'),
        ),
    ):
        assert refused(site, {key: value for key, value in device.items() if value is not None}) == (400, answer)
    assert refused(site, there(volume), there(volume.upper())) == (
        400,
        f'{bad}volume {volume} is named more than once.',
    )


# --- booting from one ------------------------------------------------------------------------------------------------
ROOT = {'boot_index': 0, 'imageRef': ''}
ABOUT = {
    'image_id': IMAGE,
    'image_name': 'cirros',
    'min_ram': '64',
    'min_disk': '2',
    'size': '1024',
    'checksum': 'c',
    'disk_format': 'raw',
    'container_format': 'bare',
    'hw_disk_bus': 'scsi',
    'os_distro': 'debian',
}


def asked_for(site):
    """(instance, request spec, rows of disks) of what the one conductor was told."""
    (asked,) = site.asked()
    return (
        asked['args']['instance']['nova_object.data'],
        asked['args']['request_spec']['nova_object.data'],
        asked['args']['bdms'],
    )


def test_boots_from_a_volume(site, cinder):
    """A server that boots from a volume has no image. The properties of the volume's image count, the flavor's disk
    does not."""
    site.small = site.flavor(disk=0)
    volume = cinder.add_volume(PROJECT, size=5, bootable='true', volume_image_metadata=ABOUT)
    data = cinder.add_volume(PROJECT)
    cinder.asked.clear()
    response = post(site, there(data), there(volume, boot_index='0', delete_on_termination=True), imageRef='')
    assert response.status_int == 202
    assert cinder.asked == [('GET', f'/volumes/{data}'), ('GET', f'/volumes/{volume}')]
    server, spec, disks = asked_for(site)
    assert [(row['source_type'], row['destination_type'], row['volume_id'], row['boot_index']) for row in disks] == [
        ('volume', 'volume', data, None),
        ('volume', 'volume', volume, 0),
    ]
    assert server['image_ref'] == '' and spec['is_bfv'] is True
    kept = {
        name.removeprefix('image_'): value
        for name, value in server['system_metadata'].items()
        if name.startswith('image_')
    }
    assert kept == {
        'image_id': IMAGE,
        'image_name': 'cirros',
        'min_ram': '64',
        'min_disk': '2',
        'hw_disk_bus': 'scsi',
        'os_distro': 'debian',
    }
    assert site.ok('GET', f'/servers/{response.json["server"]["id"]}', user='bob')['server']['image'] == ''


def test_boots_from_what_is_made_for_it(site, cinder):
    """A server boots from a volume that is made from an image, from a snapshot, or blank (then it boots over the
    network), and from the old form of block devices."""
    origin = cinder.add_volume(PROJECT, size=4, volume_image_metadata={'os_distro': 'debian'})
    snapshot, gone = cinder.add_snapshot(origin), cinder.add_snapshot(cinder.add_volume(PROJECT, id=NOSUCH))
    del cinder.volumes[NOSUCH]
    site.images.record.update(os_distro='arch', min_ram=1)
    for device, source, distro in (
        ({**OF_IMAGE, 'boot_index': 0}, 'image', 'arch'),
        ({'source_type': 'snapshot', 'uuid': snapshot, 'boot_index': 0}, 'snapshot', 'debian'),
        ({'source_type': 'snapshot', 'uuid': gone, 'boot_index': 0}, 'snapshot', None),
        ({**BLANK, 'boot_index': 0}, 'blank', None),
        ({'device_name': 'vda', 'snapshot_id': snapshot, 'form': 'block_device_mapping'}, 'snapshot', 'debian'),
    ):
        site.conductor.calls.clear()
        form = device.pop('form', 'block_device_mapping_v2')
        response = post(site, device, imageRef='', form=form)
        assert response.status_int == 202, response.text
        server, spec, (row,) = asked_for(site)
        assert (row['source_type'], row['boot_index'], row['destination_type']) == (source, 0, 'volume')
        assert server['image_ref'] == '' and spec['is_bfv'] and 'image_base_image_ref' not in server['system_metadata']
        assert server['system_metadata'].get('image_os_distro') == distro


def test_an_image_beside_the_volume(site, cinder):
    """Its properties count, the disk is the volume."""
    site.images.record.update(os_distro='arch')
    volume = cinder.add_volume(PROJECT, bootable='true', volume_image_metadata=ABOUT | {'min_disk': '0'})
    assert post(site, there(volume, boot_index=0), there(cinder.add_volume(PROJECT), boot_index=1)).status_int == 202
    server, spec, disks = asked_for(site)
    assert server['image_ref'] == '' and spec['is_bfv'] and [row['boot_index'] for row in disks] == [0, 1]
    assert server['system_metadata']['image_os_distro'] == 'arch'
    assert server['system_metadata']['image_hw_disk_bus'] == 'virtio'


def test_local_disks_beside_the_volume(site, cinder):
    """It has no local root disk, which counts among those that a server may have."""
    site.small = site.flavor(swap=512, **{'OS-FLV-EXT-DATA:ephemeral': 1})
    volume = cinder.add_volume(PROJECT, bootable='true')
    swap = {'source_type': 'blank', 'destination_type': 'local', 'boot_index': -1, 'guest_format': 'swap'}
    assert post(site, swap, there(volume, boot_index=0), imageRef='').status_int == 202
    assert [(row['source_type'], row['destination_type']) for row in asked_for(site)[2]] == [
        ('blank', 'local'),
        ('volume', 'volume'),
    ]


def test_what_can_not_be_booted_from(site, cinder):
    """A create is refused with 400 if its boot volume is not bootable, is too small, or has image properties that
    the flavor does not meet."""
    plain, tiny = cinder.add_volume(PROJECT), cinder.add_volume(PROJECT, bootable='true', volume_image_metadata=ABOUT)
    hungry = cinder.add_volume(PROJECT, bootable='true', volume_image_metadata={'min_ram': '65536'})
    odd = cinder.add_volume(PROJECT, bootable='true', volume_image_metadata={'min_disk': 'two'})
    bound = cinder.add_volume(PROJECT, bootable='true', volume_image_metadata={'hw_tpm_version': '2.0'})
    order = (
        'Block Device Mapping is Invalid: Boot sequence for the instance and image/block device mapping '
        'combination is not valid.'
    )
    local = {'source_type': 'blank', 'destination_type': 'local', 'boot_index': 0}
    for devices, answer in (
        ([there(plain, boot_index=0)], f'Block Device {plain} is not bootable.'),
        (
            [there(tiny, boot_index=0)],
            (
                'Volume is smaller than the minimum size specified in image metadata. Volume size is 1073741824 bytes, '
                'minimum size is 2147483648 bytes.'
            ),
        ),
        ([there(hungry, boot_index=0)], "Flavor's memory is too small for requested image."),
        ([there(odd, boot_index=0)], "The volume was made from an image with min_disk 'two', which is not a number."),
        (
            [there(bound, boot_index=0)],
            ('image property hw_tpm_version is not supported by this cloud: guests have no emulated TPM.'),
        ),
        ([{**OF_IMAGE, 'boot_index': 0, 'uuid': NOSUCH}], 'Can not find requested image'),
        ([there(tiny)], order),
        ([there(tiny, boot_index=1)], order),
        ([local], order),
        ([there(tiny, boot_index=0), {**BLANK, 'boot_index': 0}], order),
    ):
        assert refused(site, *devices, imageRef='') == (400, answer)
    image = {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE, 'boot_index': 0}
    assert refused(site, image, there(tiny, boot_index=0)) == (400, order)
    assert cinder.attachments == {} and len(cinder.volumes) == 5


def put_booted(site, volume='v-1', size=1):
    """A server that boots from a volume; its id."""
    server = site.server(flavor=site.small, image_ref='')
    put_volume(site, server, volume, boot_index=0, volume_size=size)
    return server


def test_what_a_server_that_boots_from_one_can_not(site, cinder):
    server = put_booted(site)
    rescue = (
        'Cannot rescue a volume-backed instance: this needs API 2.87, and a rescue image with the property '
        'hw_rescue_device or hw_rescue_bus.'
    )
    for body, version, answer in (
        (
            {'createBackup': {'name': 'b', 'backup_type': 'daily', 'rotation': 1}},
            '2.104',
            'Backup is not supported for volume-backed instances.',
        ),
        ({'rescue': {'rescue_image_ref': IMAGE}}, '2.86', rescue),
        ({'rescue': None}, '2.104', rescue),
        ({'rescue': {'rescue_image_ref': IMAGE}}, '2.104', rescue),
    ):
        assert site.fault('POST', f'/servers/{server}/action', body, user='bob', version=version) == (400, answer), body
    assert site.rows(server) == []
    site.images.record['hw_rescue_bus'] = 'virtio'
    site.ok('POST', f'/servers/{server}/action', {'rescue': {'rescue_image_ref': IMAGE}}, user='bob', version='2.87')


def test_rebuild_of_one_that_boots_from_a_volume(site, cinder):
    """From 2.93 on the volume gets the image, which it may not before; nobody else may have it, and it must fit."""
    volume = cinder.add_volume(PROJECT, volume_image_metadata={'image_id': NOSUCH})
    server = put_booted(site, volume)

    def rebuild(code, version='2.93'):
        answer = site.request(
            'POST', f'/servers/{server}/action', {'rebuild': {'imageRef': IMAGE}}, user='bob', version=version
        )
        assert answer.status_int == code, answer.text
        return answer.text

    assert 'Unable to rebuild with a different image for a volume-backed server' in rebuild(400, '2.92')
    for key, value, text in (
        ('min_disk', 2, 'Volume is smaller than the minimum size specified'),
        ('size', 2**30 + 1, 'Volume is too small for requested image'),
        ('min_ram', 10**6, 'memory is too small'),
    ):
        site.images.record[key], was = value, site.images.record.get(key)
        assert text in rebuild(400), key
        site.images.record[key] = was
    another = cinder.client.create_attachment(volume, NOSUCH, None)
    cinder.client.complete_attachment(another.id)
    assert f'attached to other servers, too: {NOSUCH}' in rebuild(409)
    cinder.client.delete_attachment(another.id)
    assert site.rows(server) == []
    rebuild(202)
    (row,) = site.rows(server)
    assert (row['kind'], row['args']['reimage'], row['args']['check_host'], row['args']['image']['id']) == (
        'reimage',
        IMAGE,
        True,
        None,
    )
    with site.cell1.read() as conn:
        assert instances.get(conn, server)['image_ref'] == ''


def test_before_293_the_root_volume_keeps_its_image(site, cinder):
    volume = cinder.add_volume(PROJECT, volume_image_metadata={'image_id': IMAGE})
    server = put_booted(site, volume)
    site.ok('POST', f'/servers/{server}/action', {'rebuild': {'imageRef': IMAGE}}, user='bob', version='2.92')
    (row,) = site.rows(server)
    assert (row['kind'], 'reimage' in row['args'], row['args']['check_host']) == ('rebuild', False, False)


def test_resize_of_one_that_boots_from_a_volume(site, cinder):
    """Its disk is no flavor's: it may get one with less, or none."""
    server = put_booted(site)
    none = site.flavor(disk=0)
    site.ok('POST', f'/servers/{server}/action', {'resize': {'flavorRef': none}}, user='bob')
    assert [row['kind'] for row in site.rows(server)] == ['resize']


def test_shelve_of_one_that_boots_from_a_volume(site, cinder):
    """No image is made."""
    server = put_booted(site)
    site.ok('POST', f'/servers/{server}/action', {'shelve': None}, user='bob')
    (row,) = site.rows(server)
    assert (row['kind'], row['args']) == ('shelve', {'image_id': None})
    assert site.images.created == []


# --- images of servers that boot from one ----------------------------------------------------------------------------
def with_root(site, cinder):
    """A server that boots from a volume and has another one; the three ids."""
    root, data = cinder.add_volume(PROJECT, size=4, bootable='true'), cinder.add_volume(PROJECT)
    site.images.record.update(os_distro='debian', min_disk=1)
    server = put_booted(site, root, size=4)
    put_volume(site, server, data, tag='data', disk_bus='scsi', volume_size=1, device_name='/dev/sda')
    return server, root, data


def imaged(site, server, **more):
    return site.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'i', **more}}, user='bob')


def test_an_image_of_a_server_that_boots_from_a_volume(site, cinder):
    """It names a snapshot of each, has no data, and nothing is left to be given back."""
    server, root, data = with_root(site, cinder)
    response = imaged(site, server, metadata={'mine': 'yes'})
    assert response.status_int == 202 and site.rows(server) == []
    (record,) = site.images.created
    assert record['id'] == response.json['image_id'] and site.images.active == [record['id']]
    devices = json.loads(record['block_device_mapping'])
    of = {snapshot['volume_id']: key for key, snapshot in cinder.snapshots.items()}
    assert [
        {
            name: device[name]
            for name in (
                'snapshot_id',
                'boot_index',
                'tag',
                'disk_bus',
                'source_type',
                'destination_type',
                'delete_on_termination',
            )
        }
        for device in devices
    ] == [
        {
            'snapshot_id': of[root],
            'boot_index': 0,
            'tag': None,
            'disk_bus': None,
            'source_type': 'snapshot',
            'destination_type': 'volume',
            'delete_on_termination': False,
        },
        {
            'snapshot_id': of[data],
            'boot_index': None,
            'tag': 'data',
            'disk_bus': 'scsi',
            'source_type': 'snapshot',
            'destination_type': 'volume',
            'delete_on_termination': False,
        },
    ]
    assert (record['bdm_v2'], record['mine'], record['disk_format'], record['min_disk'], record['os_distro']) == (
        'True',
        'yes',
        'raw',
        1,
        'debian',
    )
    assert {snapshot['name'] for snapshot in cinder.snapshots.values()} == {'snapshot for i'}
    assert {header['X-Auth-Token'] for header in cinder.headers} == {f'bob:{PROJECT}'}


@pytest.mark.parametrize('what', ['snapshot', 'image', 'lost'])
def test_an_image_that_does_not_come_to_be(site, cinder, monkeypatch, what):
    """What was made is given back, by a conductor; planned before, as this process may die."""
    server, _, _ = with_root(site, cinder)
    seen = []

    def look(method, path):
        seen.extend(row['args'] for row in site.rows(server))

    cinder.before = look
    if what == 'snapshot':
        cinder.limits['snapshots'] = 1
        wanted = 403
    elif what == 'image':

        def refuse(record, ctxt=None):
            raise ImageUnacceptable(image_id=record['id'], reason='odd')

        monkeypatch.setattr(site.images, 'create', refuse)
        wanted = 400
    else:
        cinder.after = lambda method, path: (_ for _ in ()).throw(cinder.broken()) if method == 'POST' else None
        wanted = 503
    assert imaged(site, server).status_int == wanted
    rows = site.rows(server)
    (image_id,) = {row['args']['snapshots_of'] for row in rows}
    assert [bool(row['not_before']) for row in rows] in ([True, False], [False, True])
    assert seen[0] == {'snapshots_of': image_id}
    assert cinder.client.snapshots_for(image_id) == list(cinder.snapshots) != []


def test_boots_from_an_image_of_volumes(site, cinder):
    """New volumes of its snapshots; who asks for another root disk gets that instead."""
    server, root, _ = with_root(site, cinder)
    imaged(site, server)
    (record,) = site.images.created
    site.images.record.update(record, id=IMAGE, status='active', size=0)
    of = {snapshot['volume_id']: key for key, snapshot in cinder.snapshots.items()}
    other = cinder.add_volume(PROJECT, bootable='true', size=2)
    # What the python client says of the image itself.
    inserted = {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE, 'boot_index': 0}
    for devices, wanted in (
        ([], [('snapshot', of[root], 0, 4), ('snapshot', None, None, 1)]),
        ([inserted], [('snapshot', of[root], 0, 4), ('snapshot', None, None, 1)]),
        ([there(other, boot_index=0)], [('snapshot', None, None, 1), ('volume', None, 0, 2)]),
    ):
        assert post(site, *devices).status_int == 202
        made, spec, rows_ = asked_for(site)
        assert [
            (
                row['source_type'],
                row['snapshot_id'] if row['snapshot_id'] == of[root] else None,
                row['boot_index'],
                row['volume_size'],
            )
            for row in rows_
        ] == wanted
        assert made['image_ref'] == '' and spec['is_bfv']
        kept = made['system_metadata']
        assert kept['image_os_distro'] == 'debian' and 'image_bdm_v2' not in kept
        assert 'image_block_device_mapping' not in kept
    nothing = (
        400,
        (f'Image {IMAGE} has no data: it only names volume snapshots, from which new servers can be created.'),
    )
    assert refused_action(site, {'rescue': {'rescue_image_ref': IMAGE}}) == nothing


def refused_action(site, body):
    """Of a server that has an image of its own."""
    record = dict(site.images.record)
    site.images.record.pop('block_device_mapping')
    server = site.server(flavor=site.small)
    site.images.record.update(record)
    return site.fault('POST', f'/servers/{server}/action', body, user='bob')


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('[{', 'the value is not JSON: '),
        ('{}', 'the value must be a list of at most 64 block devices'),
        (json.dumps([{}] * 65), 'the value must be a list of at most 64 block devices'),
        ('[{"volume_size": "1"}]', "volume_size must be of type int, not '1'"),
        ('[{"volume_size": true}]', "volume_size must be of type int, not 'True'"),
        ('[{"boot_index": -2}]', "boot_index must be of type int, not '-2'"),
        (json.dumps([{'tag': 'x' * 256}]), 'tag must be of type str, not'),
    ],
)
def test_images_that_name_odd_devices(site, cinder, text, reason):
    site.images.record.update(block_device_mapping=text, bdm_v2='True')
    code, message = refused(site)
    assert code == 400 and message.startswith(f'Image property block_device_mapping cannot be read: {reason}')
    site.images.record.update(bdm_v2='False')
    assert refused(site) == (
        400,
        (
            'Image property block_device_mapping cannot be read: its value is in the syntax of version 1; '
            'only version 2 is supported (property bdm_v2 is true)'
        ),
    )


def test_as_many_disks_as_a_server_may_have(make_site, cinder):
    """Root, ephemeral disk and swap count."""
    site = make_site(cinder=cinder, compute__max_disk_devices_to_attach=5)
    site.small = site.flavor(swap=512, **{'OS-FLV-EXT-DATA:ephemeral': 1})
    said = (403, 'The maximum allowed number of disk devices (5) to attach to a single instance has been exceeded.')
    assert refused(site, BLANK, BLANK, BLANK) == said and cinder.volumes == {}
    ((first, _),) = created(site, BLANK, BLANK)
    server = site.server(flavor=site.small)
    put_volume(site, server, first['volume_id'])
    volume = cinder.add_volume(PROJECT)
    assert attach(site, server, volume).status_int == 202
    (row,) = site.rows(server)
    with site.cell1.write() as conn:
        operations.end(conn, row['uuid'], server)
    assert fault(attach(site, server, cinder.add_volume(PROJECT))) == said and site.rows(server) == []


def due(site):
    """Servers whose volumes are to be given back now, and those where that is planned."""
    with site.databases.api().read() as conn:
        found = [row for row in conn.execute(operations.operations.select()).mappings() if row['kind'] == 'release']
    assert all(
        json.loads(row['args']) == {'volumes_of': row['instance_uuid'], 'volumes_deleted': [], 'volumes_made': True}
        for row in found
    )
    return (
        {row['instance_uuid'] for row in found if not row['not_before']},
        {row['instance_uuid'] for row in found if row['not_before']},
    )


def test_what_was_made_is_given_back_if_the_create_fails(site, cinder):
    """By a conductor, which finds it by its server: also what was made and not answered."""
    own = cinder.add_volume(PROJECT, volume_type='shared')
    cinder.limits[PROJECT] = 4
    said = "VolumeLimitExceeded: Maximum number of volumes allowed (4) exceeded for quota 'volumes'."
    assert refused(site, BLANK, OF_IMAGE, there(own), min_count=2) == (403, said)
    now, planned = due(site)
    assert len(now) == 2 and now == planned
    assert {one['metadata']['kilonova_server'] for one in cinder.volumes.values() if one['id'] != own} == now
    assert all(cinder.client.made_for(server) for server in now) and cinder.volumes[own]['metadata'] == {}


def test_it_is_planned_before_anything_is_made(site, cinder):
    """A process that dies leaves that; a create that is accepted doesn't."""
    seen = []
    cinder.before = lambda method, path: seen.append(due(site)) if method == 'POST' else None
    assert created(site, BLANK)
    ((now, planned),) = seen
    assert now == set() and len(planned) == 1
    assert due(site) == (set(), set())


def test_a_create_that_takes_too_long_is_none(site, cinder):
    """What was made for it is being given back already."""

    def taken(method, path):
        with site.databases.api().write() as conn:
            conn.execute(operations.operations.update().values(owner='a conductor'))

    cinder.after = taken
    code, message = refused(site, BLANK)
    assert code == 503 and message == (
        'The request took too long and is being rolled back: the resources that were '
        'created for it are deleted. Please retry.'
    )


def test_servers_that_are_taken_back_leave_no_volume(make_site, cinder, monkeypatch):
    """Another request was quicker: the quota is full after all."""
    site = make_site(cinder=cinder, quota__instances=1)
    site.small = site.flavor()
    monkeypatch.setattr('kilonova.api.services.quota.check_create', lambda *args: 1)
    assert created(site, BLANK)
    (kept,) = cinder.volumes
    site.conductor.calls.clear()
    assert refused(site, BLANK)[0] == 403
    made = {volume['metadata']['kilonova_server'] for uuid, volume in cinder.volumes.items() if uuid != kept}
    assert made == due(site)[0] and made


def test_a_create_with_a_silent_volume_service(site, cinder):
    def silent(method, path):
        raise cinder.broken()

    volume, cinder.before = cinder.add_volume(PROJECT), silent
    assert refused(site, there(volume))[0] == refused(site, BLANK)[0] == 503


# --- what is shown ---------------------------------------------------------------------------------------------------
def test_volumes_of_servers(site, cinder, statements):
    """By age, without a request, and without a statement more; not those of others, nor those that are gone."""
    server, other = site.server(), site.server()
    first, second, third = (cinder.new_uuid() for _ in range(3))
    gone = put_volume(site, server, third)
    put_volume(site, server, second, delete_on_termination=True)
    put_volume(site, server, first)
    put_volume(site, other, third)
    with site.cell1.write() as conn:
        rows.remove(conn, gone['uuid'])
    both = [{'id': second, 'delete_on_termination': True}, {'id': first, 'delete_on_termination': False}]
    assert site.ok('GET', f'/servers/{server}', version='2.3')['server'][SHOWN] == both
    assert site.ok('GET', f'/servers/{server}', version='2.2')['server'][SHOWN] == [{'id': second}, {'id': first}]
    statements.clear()
    shown = {each['id']: each for each in site.ok('GET', '/servers/detail')['servers']}
    assert shown[server][SHOWN] == both and [each['id'] for each in shown[other][SHOWN]] == [third]
    count = len(statements)
    with site.cell1.write() as conn:
        rows.remove_all(conn, server)
    statements.clear()
    assert site.ok('GET', '/servers/detail')['servers'] and len(statements) == count
    assert site.ok('PUT', f'/servers/{other}', {'server': {'name': 'n'}})['server'][SHOWN] == shown[other][SHOWN]
    assert site.ok('GET', f'/servers/{site.create()}')['server'][SHOWN] == [] and cinder.asked == []


def test_volume_attachments(site, cinder):
    server, volume, bare = site.server(), cinder.new_uuid(), cinder.new_uuid()
    path, bob = f'/servers/{server}/os-volume_attachments', {'user': 'bob'}
    row = put_volume(
        site, server, volume, device_name='/dev/vdb', attachment_id=ATTACHMENT, tag='data', delete_on_termination=True
    )
    put_volume(site, server, bare)
    whole = {
        'volumeId': volume,
        'serverId': server,
        'device': '/dev/vdb',
        'tag': 'data',
        'delete_on_termination': True,
        'attachment_id': ATTACHMENT,
        'bdm_uuid': row['uuid'],
    }
    assert site.ok('GET', f'{path}/{volume}', **bob) == {'volumeAttachment': whole}
    listed = site.ok('GET', path, **bob)['volumeAttachments']
    assert listed[0] == whole and [each['volumeId'] for each in listed] == [volume, bare]
    assert listed[1]['attachment_id'] is None and 'device' not in listed[1]
    for version, keys in (
        ('2.1', 'device id serverId volumeId'),
        ('2.69', 'device id serverId volumeId'),
        ('2.70', 'device id serverId tag volumeId'),
        ('2.88', 'delete_on_termination device id serverId tag volumeId'),
        ('2.89', 'attachment_id bdm_uuid delete_on_termination device serverId tag volumeId'),
    ):
        assert sorted(site.ok('GET', f'{path}/{volume.upper()}', version=version)['volumeAttachment']) == keys.split()
    assert [each['volumeId'] for each in site.ok('GET', f'{path}?limit=1&offset=1')['volumeAttachments']] == [bare]
    assert site.fault('GET', f'{path}/{NOSUCH}', **bob) == (
        404,
        f'Instance {server} is not attached to volume {NOSUCH}',
    )
    assert site.fault('GET', path, user='eve', project=OTHER)[0] == 404
    assert site.ok('GET', f'/servers/{site.create()}/os-volume_attachments') == {'volumeAttachments': []}
    assert cinder.asked == []


# --- attach ----------------------------------------------------------------------------------------------------------
def attach(site, server, volume, version='2.104', user='bob', **more):
    return site.request(
        'POST',
        f'/servers/{server}/os-volume_attachments',
        {'volumeAttachment': {'volumeId': volume, **more}},
        version=version,
        user=user,
    )


def fault(response):
    (found,) = response.json.values()
    assert found['code'] == response.status_int >= 400
    return found['code'], found['message']


def test_an_attach_is_an_operation_and_a_row(site, cinder):
    server, volume = site.server(), cinder.add_volume(PROJECT, size=7, volume_type='shared')
    site.conductor.calls.clear()
    cinder.asked.clear()
    answer = attach(site, server, volume, device='/dev/vdq', tag='data', delete_on_termination=True)
    assert (answer.status_int, answer.body) == (202, b'')
    assert cinder.asked == [('GET', f'/volumes/{volume}')] and cinder.held() == []
    (operation,) = site.rows(server)
    (row,) = site.row(server)['extra_volumes']
    assert (operation['kind'], operation['args']) == ('attach_volume', {'volume_id': volume, 'row': row['uuid']})
    assert site.conductor.calls == [('run_operation', {'operation': operation['uuid']})]
    found = AttachedVolume.read(row)
    assert (
        found.volume_id,
        found.size,
        found.volume_type,
        found.tag,
        found.delete_on_termination,
        found.multiattach,
        found.device,
        found.attachment_id,
        found.host,
    ) == (volume, 7, 'shared', 'data', True, True, None, None, None)
    (told,) = site.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert told['action'] == 'attach_volume'


def ending(site, **columns):
    """What a conductor does: the row is filled, or the operation ends with this reason."""

    def run(ctxt, operation):
        with site.cell1.write() as conn:
            row = operations.get(conn, operation)
            if columns:
                assert rows.change(conn, row.args['row'], None, columns)
                return
            rows.remove(conn, row.args['row'])
            instances.add_events(
                conn,
                row.instance_uuid,
                row.request_id,
                [
                    {
                        'event': 'compute_attach_volume',
                        'result': 'Error',
                        'host': 'h1',
                        'start_time': instances.utcnow(),
                        'finish_time': instances.utcnow(),
                        'details': 'no room on gpu1',
                        'traceback': None,
                    }
                ],
            )
            instances.finish_action(conn, row.instance_uuid, row.request_id, 'Error')
            operations.end(conn, row.uuid, row.instance_uuid)

    return run


@pytest.mark.parametrize(
    ('version', 'keys'),
    [
        ('2.1', 'device id serverId volumeId'),
        ('2.78', 'device id serverId tag volumeId'),
        ('2.100', 'delete_on_termination device id serverId tag volumeId'),
    ],
)
def test_older_versions_wait_for_the_name(site, cinder, monkeypatch, version, keys):
    server, volume = site.server(), cinder.add_volume(PROJECT)
    monkeypatch.setattr(
        site.conductor, 'run_operation', ending(site, attachment_id=ATTACHMENT, device_name='/dev/vdb'), raising=False
    )
    answer = attach(site, server, volume, version)
    assert answer.status_int == 200, answer.text
    shown = answer.json['volumeAttachment']
    assert sorted(shown) == keys.split() and (shown['device'], shown['id']) == ('/dev/vdb', volume)


def test_an_attach_that_fails_or_lasts(make_site, cinder, monkeypatch):
    monkeypatch.setattr(ApiOptions, 'answer_seconds', 0.1)
    site = make_site(cinder=cinder)
    server, volume = site.server(), cinder.add_volume(PROJECT)
    monkeypatch.setattr(site.conductor, 'run_operation', ending(site), raising=False)
    assert fault(attach(site, server, volume, '2.100')) == (
        409,
        f'Failed to attach volume {volume} to server {server}: no room on gpu1',
    )
    monkeypatch.delattr(site.conductor, 'run_operation')
    code, message = fault(attach(site, server, volume, '2.100'))
    assert code == 503 and message.startswith(
        f'Volume {volume} was not attached to server {server} within 0.1 s. The request continues; its result will be '
        'in the instance action attach_volume of request req-'
    )


def test_an_attach_that_can_not_be(site, cinder):
    server = site.server()
    has, theirs = cinder.add_volume(PROJECT), cinder.add_volume(OTHER)
    put_volume(site, server, has)
    shared = cinder.add_volume(PROJECT, volume_type='shared')
    used, coming = cinder.add_volume(PROJECT), cinder.add_volume(PROJECT, status='creating')
    cinder.client.complete_attachment(cinder.client.create_attachment(used, NOSUCH, None).id)
    for volume, version, answer in (
        (NOSUCH, '2.104', (404, f'Volume {NOSUCH} could not be found.')),
        (theirs, '2.104', (404, f'Volume {theirs} could not be found.')),
        (has, '2.104', (400, f'Invalid volume: volume {has} already attached')),
        (used, '2.104', (400, f'Invalid volume: volume {used} is already attached to instances: {NOSUCH}')),
        (
            coming,
            '2.104',
            (
                400,
                (
                    f'Invalid volume: Volume {coming} status must be available to reserve, but the '
                    f'current status is creating.'
                ),
            ),
        ),
        (shared, '2.59', (400, ('Multiattach volumes are only supported starting with compute API version 2.60.'))),
    ):
        assert fault(attach(site, server, volume, version)) == answer
        assert site.rows(server) == [] and len(site.row(server)['extra_volumes']) == 1
    cinder.client.complete_attachment(cinder.client.create_attachment(shared, NOSUCH, None).id)
    assert attach(site, server, shared).status_int == 202


def test_two_attaches_of_one_volume(site, cinder, monkeypatch):
    """The loser learns it from the transaction, and writes nothing."""
    server, volume = site.server(), cinder.add_volume(PROJECT)
    cinder.after = lambda method, path: put_volume(site, server, volume) and setattr(cinder, 'after', None)
    assert fault(attach(site, server, volume)) == (400, f'Invalid volume: volume {volume} already attached')
    assert site.rows(server) == [] and len(site.row(server)['extra_volumes']) == 1


@pytest.mark.parametrize(
    'state', [{'vm_state': 'rescued'}, {'vm_state': 'error'}, {'vm_state': 'shelved'}, {'task_state': 'rebooting'}]
)
def test_states_in_which_volumes_stay(site, cinder, state):
    server, volume = site.server(**state), cinder.add_volume(PROJECT)
    ((name, value),) = state.items()
    for method, path, act in (('POST', '', 'attach_volume'), ('DELETE', f'/{volume}', 'detach_volume')):
        body = {'volumeAttachment': {'volumeId': volume}} if method == 'POST' else None
        if method == 'DELETE':
            put_volume(site, server, volume)
        assert site.fault(method, f'/servers/{server}/os-volume_attachments{path}', body, user='bob') == (
            409,
            f"Cannot '{act}' instance {server} while it is in {name} {value}",
        )
    assert site.rows(server) == [] and cinder.asked == []


def test_a_locked_server_keeps_its_volumes(site, cinder):
    server, volume = site.server(locked=True), cinder.add_volume(PROJECT)
    assert fault(attach(site, server, volume)) == (409, f'Instance {server} is locked')
    put_volume(site, server, volume)
    assert site.fault('DELETE', f'/servers/{server}/os-volume_attachments/{volume}', user='bob')[0] == 409


def test_an_attach_with_a_silent_volume_service(site, cinder):
    def silent(method, path):
        raise cinder.broken()

    server, cinder.before = site.server(), silent
    assert fault(attach(site, server, NOSUCH))[0] == 503


def test_without_a_volume_service(make_site):
    site = make_site()
    server = site.server()
    path = f'/servers/{server}/os-volume_attachments'
    assert site.ok('GET', path) == {'volumeAttachments': []}
    assert fault(attach(site, server, NOSUCH)) == (
        400,
        f'There is no volume service in this cloud: a server cannot have a volume {NOSUCH}.',
    )
    assert site.fault('DELETE', f'{path}/{NOSUCH}')[0] == 404


# --- detach, change --------------------------------------------------------------------------------------------------
def test_a_detach_is_an_operation(site, cinder):
    server, volume, root = site.server(), cinder.new_uuid(), cinder.new_uuid()
    put_volume(site, server, volume)
    put_volume(site, server, root, boot_index=0)
    path = f'/servers/{server}/os-volume_attachments'
    assert site.fault('DELETE', f'{path}/{NOSUCH}') == (404, f'Instance {server} is not attached to volume {NOSUCH}')
    assert site.fault('DELETE', f'{path}/{root}') == (400, 'Cannot detach a root device volume')
    assert site.rows(server) == []
    assert site.request('DELETE', f'{path}/{volume}', user='bob').status_int == 202
    (operation,) = site.rows(server)
    assert (operation['kind'], operation['args']) == ('detach_volume', {'volume_id': volume})
    assert cinder.asked == [] and len(site.row(server)['extra_volumes']) == 2


def put(site, server, volume, version='2.104', user='bob', **asked):
    return site.request(
        'PUT',
        f'/servers/{server}/os-volume_attachments/{volume}',
        {'volumeAttachment': {'volumeId': volume, **asked}},
        user=user,
        version=version,
    )


def test_whether_a_volume_goes_with_its_server(site, cinder):
    server, volume = site.server(), cinder.new_uuid()
    row = put_volume(site, server, volume, device_name='/dev/vdb', tag='data')
    same = {'device': '/dev/vdb', 'tag': 'data', 'id': volume, 'serverId': server}
    for asked, goes in (
        ({'delete_on_termination': True}, True),
        (same, True),
        ({**same, 'delete_on_termination': 'false'}, False),
    ):
        answer = put(site, server, volume, **asked)
        assert (answer.status_int, answer.body) == (202, b'')
        (now,) = site.row(server)['extra_volumes']
        assert (bool(now['delete_on_termination']), now['uuid']) == (goes, row['uuid'])
    for name, value in (('device', '/dev/vdc'), ('tag', 'other'), ('id', NOSUCH), ('serverId', NOSUCH)):
        assert fault(put(site, server, volume, **{name: value}, delete_on_termination=True)) == (
            400,
            f'The {name} property is not mutable: it is {same[name]}.',
        )
    (now,) = site.row(server)['extra_volumes']
    assert not now['delete_on_termination'] and site.rows(server) == []
    assert fault(put(site, server, NOSUCH)) == (404, f'Instance {server} is not attached to volume {NOSUCH}')


def swapping(site, cinder, vm_state='active', **fields):
    """A server, one of its volumes, and the one to which that is on its way."""
    server, volume = site.server(vm_state=vm_state), cinder.add_volume(PROJECT, status='in-use', **fields)
    put_volume(site, server, volume, attachment_id=NOSUCH)
    return server, volume, cinder.migrate(volume)


@pytest.mark.parametrize('version', ['2.1', '2.84', '2.85', '2.104'])
def test_a_volume_that_migrates_is_swapped(site, cinder, version):
    server, volume, copy = swapping(site, cinder)
    more = {'delete_on_termination': True} if version > '2.84' else {}
    assert fault(put(site, server, volume, version, volumeId=copy)) == (
        403,
        "Policy doesn't allow os_compute_api:os-volumes-attachments:swap to be performed.",
    )
    assert cinder.asked == []
    answer = put(site, server, volume, version, 'admin', volumeId=copy, **more)
    assert (answer.status_int, answer.body) == (202, b'')
    (operation,), (row,) = site.rows(server), site.row(server)['extra_volumes']
    assert (operation['kind'], operation['args']) == (
        'swap_volume',
        {
            'volume_id': volume,
            'copy': copy,
            'row': row['uuid'],
            'attachment': NOSUCH,
            'columns': {'volume_size': 1, 'volume_type': 'plain'},
        },
    )
    assert bool(row['delete_on_termination']) is bool(more) and cinder.statuses()[copy] == 'available'
    assert fault(put(site, server, volume, version, 'admin', volumeId=copy))[0] == 409


def test_a_volume_that_is_not_swapped(site, cinder):
    server, volume, copy = swapping(site, cinder)
    other, encrypted = cinder.add_volume(PROJECT), cinder.migrate(volume, encrypted=True)
    small, taken = cinder.migrate(volume, size=0), cinder.migrate(volume, status='reserved')
    for wanted, code, said in (
        (NOSUCH, 404, f'Volume {NOSUCH} could not be found.'),
        (other, 400, f'Invalid volume: volume {volume} is not migrating to volume {other}'),
        (encrypted, 400, f'Volume {encrypted} cannot be swapped: it is encrypted.'),
        (small, 400, 'Invalid volume: New volume must be the same size or larger.'),
        (
            taken,
            400,
            (
                f'Invalid volume: Volume {taken} status must be available to reserve, but the current status '
                f'is reserved.'
            ),
        ),
    ):
        assert fault(put(site, server, volume, '2.1', 'admin', volumeId=wanted)) == (code, said)
    assert fault(put(site, server, other, '2.1', 'admin', volumeId=copy)) == (
        404,
        f'Instance {server} is not attached to volume {other}',
    )
    cinder.end_migration(volume, copy, failed=True)
    assert fault(put(site, server, volume, '2.104', 'admin', volumeId=other)) == (
        409,
        f'volume {volume} is not migrating; this API should only be called by Cinder',
    )
    assert site.rows(server) == []
    server, volume, copy = swapping(site, cinder, 'stopped')
    assert fault(put(site, server, volume, '2.1', 'admin', volumeId=copy)) == (
        409,
        f"Cannot 'swap_volume' instance {server} while it is in vm_state stopped",
    )
    server, volume, copy = swapping(site, cinder, volume_type='shared')
    assert fault(put(site, server, volume, '2.1', 'admin', volumeId=copy)) == (
        400,
        f'Volume {volume} cannot be swapped: it is a multiattach volume.',
    )
    assert site.rows(server) == []


def test_bodies_of_attachments(site, cinder):
    server = site.server()
    for asked, version, named in (
        ({'volumeId': 'x'}, '2.1', 'volumeId'),
        ({'device': 'vdb'}, '2.1', 'device'),
        ({'tag': 'a'}, '2.48', "'tag'"),
        ({'tag': 'a,b'}, '2.49', 'tag'),
        ({'tag': 'x' * 61}, '2.49', 'tag'),
        ({'delete_on_termination': True}, '2.78', "'delete_on_termination'"),
        ({'delete_on_termination': 'maybe'}, '2.79', 'delete_on_termination'),
        ({'nosuch': 1}, '2.104', "'nosuch'"),
    ):
        code, message = fault(attach(site, server, NOSUCH, version, **asked))
        assert code == 400 and named in message
    assert cinder.asked == []


# --- events ----------------------------------------------------------------------------------------------------------
def test_a_volume_that_has_grown(site, cinder):
    """A conductor looks at it, once for all that is told before it does; what isn't there is told nothing."""
    server, volume = site.server(), cinder.new_uuid()
    put_volume(site, server, volume)
    site.conductor.calls.clear()
    event = {'name': 'volume-extended', 'server_uuid': server, 'tag': volume}
    answer = site.request('POST', '/os-server-external-events', {'events': [event, event, {**event, 'tag': NOSUCH}]})
    assert (answer.status_int, [each['code'] for each in answer.json['events']]) == (207, [200, 200, 422])
    (operation,) = site.rows(server)
    assert (operation['kind'], operation['args'], operation['slot']) == (
        'volume_extended',
        {'volume_id': volume},
        operation['uuid'],
    )
    assert {json.dumps(call) for call in site.conductor.calls} == {
        json.dumps(('run_operation', {'operation': operation['uuid']}))
    }
    assert site.compute.calls == []
