"""POST /servers with block devices: what is refused, what is written."""

from __future__ import annotations

import pytest

from tests.unit.api.conftest import IMAGE
from tests.unit.api.test_servers_create import UUID, body

ROOT = {'source_type': 'image', 'destination_type': 'local', 'uuid': IMAGE, 'boot_index': 0}
BLANK = {'source_type': 'blank', 'destination_type': 'local', 'boot_index': -1}
SWAP = {**BLANK, 'guest_format': 'swap'}
SIZES = {'OS-FLV-EXT-DATA:ephemeral': 3, 'swap': 512}


def shapes(rows):
    return [(row['source_type'], row['guest_format'], row['volume_size'], row['boot_index']) for row in rows]


def disks_of(site, *devices, **flavor):
    uuid = site.create(site.flavor(**{**SIZES, **flavor}), block_device_mapping_v2=list(devices))
    return site.rows(uuid)[0]['args']['bdms']


def test_blank_disks_are_rows_of_their_own(make_site):
    """Each blank or swap disk of a request is a block device row of its own, beside the row of the image."""
    site = make_site(max_local_block_devices=-1)
    rows = disks_of(
        site,
        ROOT,
        {**BLANK, 'volume_size': 1},
        {**BLANK, 'volume_size': '2', 'guest_format': 'ext3'},
        {**SWAP, 'volume_size': 256},
    )
    assert shapes(rows) == [
        ('image', None, None, 0),
        ('blank', None, 1, -1),
        ('blank', 'ext3', 2, -1),
        ('blank', 'swap', 256, -1),
    ]
    assert {row['destination_type'] for row in rows} == {'local'} and rows[0]['image_id'] == IMAGE
    assert len({row['uuid'] for row in rows}) == 4


def test_they_are_inserted_with_the_server(site):
    uuid = site.create(site.flavor(**SIZES), block_device_mapping_v2=[{**SWAP, 'volume_size': 1, 'tag': 's'}])
    rows = site.rows(uuid)[0]['args']['bdms']
    from kilonova.db.queries import instances

    with site.cell1.write() as conn:
        instances.create(conn, 'build.start', {'uuid': uuid, 'project_id': 'p', 'user_id': 'u'}, {}, {}, {}, (), rows)
        found = conn.execute(instances.bdm_table.select()).mappings().all()
    assert [(row['instance_uuid'], row['source_type'], row['tag'], row['deleted']) for row in found] == [
        (uuid, 'image', None, 0),
        (uuid, 'blank', 's', 0),
    ]


def test_sizes_that_nobody_gave_are_the_flavors(site):
    assert shapes(disks_of(site, ROOT, BLANK, SWAP))[1:] == [('blank', None, 3, -1), ('blank', 'swap', 512, -1)]


def test_every_server_of_a_request_has_its_own_rows(site):
    site.ok('POST', '/servers', body(site.flavor(**SIZES), min_count=2, block_device_mapping_v2=[ROOT, SWAP]))
    uuids = [device['uuid'] for row in site.asked() for device in row['args']['bdms']]
    owners = {row['instance_uuid'] for row in site.asked()}
    assert len(set(uuids)) == 4 and len(owners) == 2


def test_what_says_nothing_new_needs_no_rows(site):
    assert disks_of(site, ROOT) == []
    assert disks_of(site, {**ROOT, 'volume_size': 1, 'delete_on_termination': False}) == []


def test_hardware_of_the_root_disk(site):
    (row,) = disks_of(
        site, {**ROOT, 'disk_bus': 'scsi', 'device_type': 'cdrom', 'tag': 'system', 'device_name': '/dev/sda'}
    )
    assert (row['disk_bus'], row['device_type'], row['tag'], row['device_name']) == (
        'scsi',
        'cdrom',
        'system',
        '/dev/sda',
    )


def test_the_first_syntax(site):
    """virtual_name tells local disks; no_device says that there is none."""
    uuid = site.create(
        site.flavor(**SIZES),
        block_device_mapping=[
            {'device_name': 'vdb', 'virtual_name': 'ephemeral0'},
            {'device_name': 'vdc', 'virtual_name': 'swap'},
            {'device_name': 'vdd', 'no_device': True},
        ],
    )
    rows = site.rows(uuid)[0]['args']['bdms']
    assert shapes(rows) == [('image', None, None, 0), ('blank', None, 3, -1), ('blank', 'swap', 512, -1)]
    assert rows[1]['device_name'] == 'vdb'


@pytest.mark.parametrize(
    ('devices', 'flavor', 'message'),
    [
        ([{**BLANK, 'volume_size': 4}], {}, 'Ephemeral disks requested are larger than the instance type allows.'),
        ([BLANK, BLANK], {}, 'Ephemeral disks requested are larger'),
        ([BLANK], {'OS-FLV-EXT-DATA:ephemeral': 0}, 'Ephemeral disks requested are larger'),
        ([SWAP, SWAP], {}, 'More than one swap drive requested.'),
        ([{**SWAP, 'volume_size': 513}], {}, 'Swap drive requested is larger than instance type allows.'),
        ([SWAP], {'swap': 0}, 'Swap drive requested is larger than instance type allows.'),
        ([{**BLANK, 'boot_index': 2}], {}, 'Boot sequence for the instance and image/block device mapping combination'),
        ([{**BLANK, 'boot_index': 0}], {}, 'Boot sequence for the instance'),
        ([ROOT, ROOT], {}, 'Boot sequence for the instance'),
        ([{**ROOT, 'boot_index': 1}], {}, 'Mapping image to local is not supported.'),
        ([{**ROOT, 'boot_index': None}], {}, 'Mapping image to local is not supported.'),
        ([{**BLANK, 'uuid': UUID}], {}, 'Invalid device UUID.'),
        ([{'destination_type': 'local'}], {}, 'Invalid source_type field.'),
        ([{**BLANK, 'guest_format': 'ext4 -F'}], {}, "guest_format 'ext4 -F' is not supported"),
        ([{**ROOT, 'guest_format': 'ext4'}], {}, "guest_format 'ext4' is not supported"),
        ([{**BLANK, 'disk_bus': 'lxc'}], {}, "disk_bus 'lxc' is not supported for a local disk."),
        ([{**BLANK, 'device_type': 'lun'}], {}, "device_type 'lun' is not supported for a local disk."),
        ([{**BLANK, 'volume_size': 1}] * 2, {}, 'You specified more local devices than the limit allows'),
        ([{**BLANK, 'destination_type': 'volume'}], {}, 'There is no volume service in this cloud'),
        ([{'source_type': 'snapshot', 'uuid': UUID, 'boot_index': 0}], {}, 'There is no volume service in this cloud'),
    ],
)
def test_refusals(site, devices, flavor, message):
    """A create with impossible block devices is refused with 400 and a text that names the reason. No message is
    sent."""
    code, text = site.fault(
        'POST', '/servers', body(site.flavor(**{**SIZES, **flavor}), block_device_mapping_v2=devices)
    )
    assert code == 400 and message in text, text
    assert site.conductor.calls == []


def test_the_syntaxes_do_not_mix(site):
    code, text = site.fault(
        'POST',
        '/servers',
        body(site.flavor(), block_device_mapping_v2=[ROOT], block_device_mapping=[{'virtual_name': 'swap'}]),
    )
    assert (code, text) == (400, 'Using different block_device_mapping syntaxes is not allowed in the same request.')


def test_no_local_disks_at_all(make_site):
    site = make_site(max_local_block_devices=0)
    assert 'more local devices than the limit' in site.fault('POST', '/servers', body(site.flavor()))[1]


@pytest.mark.parametrize(
    ('name', 'value', 'accepted'),
    [
        ('tag', 'data', {32: True, 31: False, 33: False, 41: False, 42: True, 104: True}),
        ('volume_type', 'fast', {66: False, 67: True}),
    ],
)
def test_windows_of_devices(site, name, value, accepted):
    """Properties of block devices are accepted at the microversions that have them."""
    flavor = site.flavor(**SIZES)
    for version, taken in accepted.items():
        answer = site.request(
            'POST',
            '/servers',
            {
                'server': {
                    'name': 's',
                    'flavorRef': flavor,
                    'imageRef': IMAGE,
                    **({'networks': 'none'} if version >= 37 else {}),
                    'block_device_mapping_v2': [{**BLANK, name: value}],
                }
            },
            version=f'2.{version}',
        )
        assert answer.status_int == (202 if taken else 400), (version, answer.text)


def test_the_rule_of_volumes_is_asked_first(make_site, tmp_path):
    """A user whom the rule create:attach_volume does not allow is refused with 403 before the volume is looked up."""
    rule = 'os_compute_api:servers:create:attach_volume'
    (tmp_path / 'policy.yaml').write_text(f'"{rule}": "rule:context_is_admin"\n')
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    flavor = site.flavor(**SIZES)
    device = {'source_type': 'volume', 'uuid': UUID, 'boot_index': 0}
    assert site.fault('POST', '/servers', body(flavor, block_device_mapping_v2=[device]), user='bob')[0] == 403
    assert site.request('POST', '/servers', body(flavor, block_device_mapping_v2=[SWAP]), user='bob').status_int == 202


@pytest.mark.parametrize('more', [{}, {'imageRef': ''}])
def test_an_image_on_a_local_disk_needs_image_ref_found_1_20(site, more):
    """As in Nova: a server whose only image is that of a mapping boots from a volume."""
    asked = {'name': 's', 'flavorRef': site.flavor(), 'networks': 'none', 'block_device_mapping_v2': [ROOT], **more}
    code, text = site.fault('POST', '/servers', {'server': asked})
    assert code == 400 and text.endswith(f'Mapping image {IMAGE} to local needs an imageRef with the same image.')
    assert site.request('POST', '/servers', {'server': {**asked, 'imageRef': IMAGE}}).status_int == 202
