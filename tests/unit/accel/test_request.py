"""What hosts attach of accelerator requests."""

from __future__ import annotations

import pytest

from kilonova.accel.request import AcceleratorRequest, AttachHandleInvalid, Handle, handles, profiles

UUID, MDEV = 'a1d2b3c4-0000-4000-8000-000000000001', 'a1d2b3c4-0000-4000-8000-0000000000ff'
INFO = {'domain': '0000', 'bus': '0c', 'device': '0', 'function': '1', 'asked_type': 'nvidia-35'}


def bound(kind, info=None, *, group=0, uuid=UUID, mdev=MDEV):
    return AcceleratorRequest.from_body(
        {
            'uuid': uuid,
            'state': 'Bound',
            'device_profile_name': 'p',
            'device_profile_group_id': group,
            'instance_uuid': 'i',
            'hostname': 'h',
            'device_rp_uuid': 'r',
            'attach_handle_type': kind,
            'attach_handle_uuid': mdev,
            'attach_handle_info': INFO if info is None else info,
        }
    )


def test_a_function_and_a_mediated_device():
    """Digits may be missing; a mediated device has the UUID of its handle."""
    assert bound('PCI').handle == Handle(UUID, 'PCI', '0000:0c:00.1')
    assert bound('MDEV').handle == Handle(UUID, 'MDEV', '0000:0c:00.1', MDEV, 'nvidia-35')
    other = bound('PCI', {**INFO, 'domain': '0x0', 'bus': '0xAF', 'physical_network': 'x'})
    assert other.handle.address == '0000:af:00.1'


def test_handles_of_the_fake_driver_are_not_attached():
    assert handles([bound('TEST_PCI')]) == []


def test_handles_come_in_an_order_that_stays():
    first, second, third = bound('PCI', uuid=UUID), bound('PCI', uuid=UUID[:-1] + '2'), bound('PCI', group=1, uuid='0')
    assert [one.request for one in handles([third, second, first])] == [UUID, second.uuid, '0']


@pytest.mark.parametrize(
    ('kind', 'info', 'mdev', 'said'),
    [
        ('NET', None, MDEV, "its type is 'NET'"),
        ('PCI', {**INFO, 'bus': '1g'}, MDEV, "bus '1g' is not a part of a PCI address"),
        ('PCI', {**INFO, 'function': '10'}, MDEV, "function '10'"),
        ('PCI', {}, MDEV, "domain ''"),
        ('MDEV', None, None, "'' is not a UUID of a mediated device"),
        ('MDEV', {**INFO, 'asked_type': '../x'}, MDEV, "asked_type '../x'"),
        ('MDEV', None, '../x', "'../x' is not a UUID"),
    ],
)
def test_what_no_guest_can_have(kind, info, mdev, said):
    with pytest.raises(AttachHandleInvalid) as caught:
        handles([bound(kind, info, mdev=mdev)])
    assert said in str(caught.value)


def test_what_bindings_of_ports_say():
    """Of PCI functions alone: a port is nothing else."""
    ones = [bound('PCI', {**INFO, 'physical_network': 'x'}), bound('MDEV', uuid='flavor')]
    assert profiles(ones, {UUID: 'port'}) == {
        'port': {'arq_uuid': UUID, 'pci_slot': '0000:0c:00.1', 'physical_network': 'x'}
    }
    for kind in ('MDEV', 'TEST_PCI'):
        with pytest.raises(AttachHandleInvalid, match=f"its type is '{kind}', but a port must be a PCI function"):
            profiles([bound(kind)], {UUID: 'port'})
