"""Objects in Nova's rows become objects that Kilonova reads, or are refused by name."""

from __future__ import annotations

import copy

import pytest

from kilonova.adopt import objects
from kilonova.objects import InstanceNUMATopology, RequestSpec
from tests.adopt.nova import envelope, flavor, request_spec

SERVER = '6f70a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b'


def test_a_request_spec_of_nova_34_is_read():
    spec = RequestSpec.obj_from_primitive(objects.convert(request_spec(SERVER)))
    assert (spec.instance_uuid, spec.image.properties.hw_disk_bus) == (SERVER, 'virtio')


def test_the_value_itself_stays_as_it_is():
    value = {'cur': flavor(), 'old': None, 'list': [flavor()]}
    before = copy.deepcopy(value)
    found = objects.convert(value)
    assert value == before
    assert found['cur']['nova_object.data'] == flavor()['nova_object.data']
    assert 'nova_object.changes' not in found['cur'] and 'nova_object.changes' not in found['list'][0]


@pytest.mark.parametrize('value', [None, 7, 'text', [], {}, [{'count': 1, 'spec': [{'vendor_id': '10de'}]}]])
def test_what_is_no_object_stays(value):
    assert objects.convert(value) == value


@pytest.mark.parametrize(
    ('policy', 'cpuset', 'pcpuset'), [('dedicated', [], [4, 5]), ('shared', [4, 5], []), (None, [4, 5], [])]
)
def test_an_old_numa_cell_names_its_dedicated_cpus(policy, cpuset, pcpuset):
    cell = envelope('InstanceNUMACell', '1.4', id=0, cpuset=[4, 5], memory=512, cpu_policy=policy)
    found = objects.convert(envelope('InstanceNUMATopology', '1.3', cells=[cell]))
    (read,) = InstanceNUMATopology.obj_from_primitive(found).cells
    assert (sorted(read.cpuset), sorted(read.pcpuset)) == (cpuset, pcpuset)


def test_a_numa_cell_of_today_stays():
    cell = envelope('InstanceNUMACell', '1.6', id=0, cpuset=[1], pcpuset=[4, 5], memory=512, cpu_policy='mixed')
    assert objects.convert(cell)['nova_object.data'] == cell['nova_object.data']
    assert objects.convert(cell)['nova_object.version'] == '1.6'


def test_an_empty_field_that_is_not_known_is_left_out():
    found = objects.convert(envelope('ImageMetaProps', '1.44', hw_disk_bus='virtio', hw_new=None))
    assert found['nova_object.version'] == '1.43'
    assert found['nova_object.data'] == {'hw_disk_bus': 'virtio'}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 'x'


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (envelope('ImageMetaProps', '1.44', hw_new='on'), "ImageMetaProps 1.44: Kilonova has no field hw_new.*'on'"),
        (envelope('ImageMetaProps', '1.45'), 'ImageMetaProps 1.45: Kilonova reads versions up to 1.43'),
        (envelope('Flavor', '2.0'), 'Flavor 2.0: Kilonova reads versions up to 1.2'),
        (envelope('Flavor', 'new'), 'Flavor new: the version is no pair of numbers'),
        (envelope('Agent', '1.0'), 'Agent 1.0: Kilonova has no such object'),
        ({**flavor(), 'nova_object.namespace': 'other'}, 'Flavor 1.2: this is no object of Nova'),
        ({**flavor(), 'nova_object.data': []}, 'Flavor 1.2: this is no object of Nova'),
        (nested(50), 'objects are nested more than 40 times'),
        ({'cur': envelope('Flavor', '1.99')}, 'Flavor 1.99'),
    ],
)
def test_what_cannot_be_read_is_named(value, text):
    with pytest.raises(objects.NotConvertible, match=text):
        objects.convert(value)
