"""Device profiles as groups of a request to Placement."""

from __future__ import annotations

import pytest

from kilonova.accel.profile import DeviceProfileError, Profile, only


def test_each_group_comes_from_one_provider():
    first, second = Profile(
        'p',
        (
            {
                'resources:FPGA': '2',
                'trait:CUSTOM_A': 'required',
                'trait:CUSTOM_B': 'forbidden',
                'accel:bitstream_id': 'x',
            },
            {'resources:CUSTOM_NIC': '1'},
        ),
    ).request_groups()
    assert (first.requester_id, first.resources, first.use_same_provider) == ('device_profile_0', {'FPGA': 2}, True)
    assert (first.required_traits, first.forbidden_traits) == ({'CUSTOM_A'}, {'CUSTOM_B'})
    assert (second.requester_id, second.resources) == ('device_profile_1', {'CUSTOM_NIC': 1})


@pytest.mark.parametrize(
    ('group', 'said'),
    [
        ({'resources:FPGA': '0'}, "resources:FPGA='0'; a group may request 1 to 64 accelerators"),
        ({'resources:FPGA': '65'}, "resources:FPGA='65'; a group may request 1 to 64"),
        ({'resources:FPGA': 'x'}, "resources:FPGA='x'"),
        ({'resources:': '1'}, "'resources:'"),
        ({'resources:FPGA': '1', 'trait:a b': 'required'}, "'trait:a b'"),
        ({'resources:FPGA': '1', 'trait:CUSTOM_A': 'maybe'}, "'maybe'; the value must be 'required' or 'forbidden'"),
        ({'accel:x': '1'}, 'group 0 requests no resources'),
        ({'resources:FPGA': '40', 'resources:PGPU': '40'}, 'more than 64 accelerators'),
    ],
)
def test_what_cannot_be_asked_for(group, said):
    with pytest.raises(DeviceProfileError) as caught:
        Profile('p', (group,)).request_groups()
    assert said in str(caught.value) and str(caught.value).startswith('Device profile name p: ')


@pytest.mark.parametrize(
    ('found', 'said'),
    [
        ([], 'got nothing'),
        ([{'groups': []}] * 2, 'but got 2'),
        ([{'groups': []}], 'the profile has 0 groups'),
        ([{'groups': [{}] * 65}], 'the profile has 65 groups'),
    ],
)
def test_answers_that_are_not_one_profile(found, said):
    with pytest.raises(DeviceProfileError, match=said):
        only('p', found)


def test_the_profile_of_a_port():
    """One accelerator, by a name of the port's own."""
    (group,) = Profile('p', ({'resources:CUSTOM_NIC': '1'},)).of_port('port')
    assert (group.requester_id, group.resources) == ('device_profile_0port', {'CUSTOM_NIC': 1})
    for groups in (({'resources:CUSTOM_NIC': '2'},), ({'resources:CUSTOM_NIC': '1'},) * 2):
        with pytest.raises(
            DeviceProfileError, match='the device profile of a port must request exactly one accelerator'
        ):
            Profile('p', groups).of_port('port')
