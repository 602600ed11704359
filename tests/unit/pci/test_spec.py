from __future__ import annotations

import contextlib
import json

import pytest

from kilonova.conf import pci as pci_options
from kilonova.pci import spec
from kilonova.pci.spec import DeviceSpecs
from tests.unit.pci.builders import found


def parse(*entries, **options):
    return DeviceSpecs.parse([json.dumps(entry) for entry in entries], **options)


@pytest.fixture
def sysfs(tmp_path):
    """ens1 is the device at 81:00.0, a PF; eth9 belongs to a virtio bus below 00:03.0."""
    devices = tmp_path / 'bus' / 'pci' / 'devices'
    for path in (
        'devices/pci0000:80/0000:81:00.0',
        'devices/pci0000:00/0000:00:03.0/virtio0',
        'class/net/ens1',
        'class/net/eth9',
        'class/net/lo',
    ):
        (tmp_path / path).mkdir(parents=True)
    devices.mkdir(parents=True)
    (devices / '0000:81:00.0').symlink_to(tmp_path / 'devices/pci0000:80/0000:81:00.0')
    (tmp_path / 'devices/pci0000:80/0000:81:00.0/sriov_totalvfs').write_text('8')
    (tmp_path / 'class/net/ens1/device').symlink_to(tmp_path / 'devices/pci0000:80/0000:81:00.0')
    (tmp_path / 'class/net/eth9/device').symlink_to(tmp_path / 'devices/pci0000:00/0000:00:03.0/virtio0')
    return str(tmp_path)


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('{', "Invalid [pci]device_spec config: Invalid entry: '{'"),
        ('"x"', 'Invalid [pci]device_spec config: Invalid entry: \'"x"\'; Expecting list or dict'),
        ('[1]', "Invalid [pci]device_spec config: Invalid entry: '[1]'; Expecting dict"),
        (
            '{"vendor_id": "xyz"}',
            "Invalid [pci]device_spec config: property vendor_id ('xyz') does not parse as a hex number.",
        ),
        (
            '{"product_id": "10000"}',
            (
                'Invalid [pci]device_spec config: property product_id (10000) is greater than the '
                'maximum allowable value (FFFF).'
            ),
        ),
        (
            '{"vendor_id": null}',
            "Invalid [pci]device_spec config: property vendor_id ('None') does not parse as a hex number.",
        ),
    ],
)
def test_bad_values(value, text):
    with pytest.raises(spec.PciConfigInvalidSpec) as caught:
        DeviceSpecs.parse([value])
    assert str(caught.value) == text
    assert caught.value.code == 400


@pytest.mark.parametrize('tag', ['managed', 'live_migratable', 'one_time_use', 'remote_managed'])
def test_strict_booleans(tag):
    with pytest.raises(spec.PciConfigInvalidSpec, match=f"Cannot parse tag '{tag}'"):
        parse({tag: 'perhaps'}, report_in_placement=True)
    assert parse({tag: 'yes'}, report_in_placement=True).specs[0].tags == {tag: 'true'}
    assert parse({tag: False}).specs[0].tags == {tag: 'false'}


def test_other_tags_become_text():
    made = parse({'physical_network': None, 'trusted': True, 'rack': 7, 'colour': 'red'}).specs[0]
    assert made.tags == {'physical_network': None, 'trusted': 'true', 'rack': '7', 'colour': 'red'}
    with pytest.raises(spec.PciConfigInvalidSpec, match="Cannot parse tag 'colour'"):
        parse({'colour': ['red']})


def test_first_spec_wins_and_ids_ignore_case():
    specs = parse({'vendor_id': '10DE', 'product_id': '13F1', 'colour': 'red'}, [{'vendor_id': '10de'}, {}])
    assert specs.match(found('0000:08:00.0')).tags == {'colour': 'red'}
    assert specs.match(found('0000:08:00.1', product_id='0fbb')) is specs.specs[1]
    assert specs.match(found('0000:08:00.1', vendor_id='8086')) is specs.specs[2]
    assert len(specs) == 3


def test_short_ids_are_filled_up():
    assert parse({'vendor_id': '8A', 'product_id': '*'}).specs[0].vendor_id == '008a'


def test_pf_address_takes_its_functions():
    specs = parse({'address': '0000:81:00.0'})
    assert specs.match(found('0000:81:00.0', dev_type='type-PF'))
    assert specs.match(found('0000:81:10.0', dev_type='type-VF', parent='0000:81:00.0'))
    assert not specs.match(found('0000:81:10.0', dev_type='type-VF', parent='0000:81:00.1'))


def test_long_domain_is_skipped():
    assert parse({}).match(found('10000:81:00.0')) is None
    assert parse({}).match(found('ffff:81:00.0')) is not None


def test_address_object_and_wrong_type():
    assert parse({'address': {'bus': '81', 'slot': '0[01]'}}).match(found('0000:81:01.0'))
    with pytest.raises(spec.PciDeviceWrongAddressFormat):
        parse({'address': 81})


def test_devname(sysfs):
    made = parse({'devname': 'ens1'}, sysfs_root=sysfs)
    assert made.match(found('0000:81:00.0'))
    assert made.match(found('0000:81:10.0', dev_type='type-VF', parent='0000:81:00.0'))
    assert parse({'devname': 'eth9'}, sysfs_root=sysfs).match(found('0000:00:03.0'))
    for name in ('nope', 'lo', '../net/ens1'):
        assert parse({'devname': name}, sysfs_root=sysfs).match(found('0000:81:00.0')) is None
    with pytest.raises(spec.PciDeviceInvalidDeviceName, match='devname or address, but not both'):
        parse({'devname': 'ens1', 'address': '0000:81:00.0'}, sysfs_root=sysfs)
    with pytest.raises(spec.PlacementPciException, match='devname ens1'):
        parse({'devname': 'ens1'}, sysfs_root=sysfs, report_in_placement=True)


def test_remote_managed(sysfs, caplog):
    caplog.set_level('WARNING')
    vpd = {'capabilities': {'vpd': {'card_serial_number': 'MT1'}}}
    specs = parse([{'vendor_id': '10de', 'remote_managed': 'true'}, {'vendor_id': '10de'}])
    assert specs.match(found('0000:81:10.0', dev_type='type-VF', parent='0000:81:00.0', **vpd))
    # No later spec makes it anybody else's; that is told once.
    for _ in range(2):
        assert specs.match(found('0000:81:10.0', dev_type='type-VF', parent='0000:81:00.0')) is None
    (said,) = caplog.messages
    assert said == (
        'Device 0000:81:10.0 is configured as remote_managed '
        'but has no card serial number in its VPD: it is not offered'
    )
    with pytest.raises(spec.PciDeviceInvalidPFRemoteManaged, match=r'device address: 0000:81:00.0'):
        specs.match(found('0000:81:00.0', dev_type='type-PF', **vpd))
    with pytest.raises(spec.PciDeviceRemoteManagedNotPresent):
        parse({'devname': 'nope', 'remote_managed': 'true'}, sysfs_root=sysfs)
    with pytest.raises(spec.PciDeviceInvalidPFRemoteManaged):
        parse({'devname': 'ens1', 'remote_managed': 'true'}, sysfs_root=sysfs)


def test_one_time_use_needs_placement():
    with pytest.raises(spec.PciConfigInvalidSpec, match='one_time_use=true requires'):
        parse({'one_time_use': 'true'})


def test_resource_class_and_traits():
    made = parse({'resource_class': 'gpu-a100 40', 'traits': 'fast, HW_GPU_API_VULKAN,custom_x'}).specs[0]
    assert made.resource_class == 'CUSTOM_GPU_A100_40'
    assert made.traits == {'CUSTOM_FAST', 'HW_GPU_API_VULKAN', 'CUSTOM_X'}
    assert spec.resource_class('pgpu') == 'PGPU'
    assert made.tags == {}
    with pytest.raises(spec.PciConfigInvalidSpec, match='longer than 255'):
        parse({'resource_class': 'x' * 250})
    with pytest.raises(spec.PciConfigInvalidSpec, match="Cannot parse tag 'traits'"):
        parse({'traits': ['a']})


def test_from_conf(make_conf):
    conf = make_conf(pci_options)
    conf.set_override('device_spec', ['{"vendor_id": "10de"}', '[{"vendor_id": "8086"}]'], 'pci')
    assert [one.vendor_id for one in DeviceSpecs.from_conf(conf).specs] == ['10de', '8086']


def test_old_option_names(make_conf, tmp_path):
    file = tmp_path / 'k.conf'
    file.write_text('[DEFAULT]\npci_passthrough_whitelist = {"vendor_id": "10de"}\npci_alias = {"name": "a"}\n')
    conf = make_conf(pci_options, args=['--config-file', str(file)])
    assert conf.pci.device_spec == ['{"vendor_id": "10de"}']
    assert conf.pci.alias == ['{"name": "a"}']


@pytest.mark.parametrize('is_reported', [True, False])
def test_the_option_decides_whether_names_of_interfaces_are_allowed(make_conf, is_reported):
    """Placement has providers by address."""
    conf = make_conf(pci_options)
    conf.set_override('device_spec', [json.dumps({'devname': 'no such interface'})], group='pci')
    conf.set_override('report_in_placement', is_reported, group='pci')
    with pytest.raises(spec.PlacementPciException) if is_reported else contextlib.nullcontext():
        assert len(DeviceSpecs.from_conf(conf)) == 1
