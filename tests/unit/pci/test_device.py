"""What the rows of devices say."""

from __future__ import annotations

import pytest

from kilonova.pci import device
from tests.unit.pci.builders import found


@pytest.mark.parametrize(
    ('label', 'stored'), [('rack 7', 'rack 7'), ('', 'label_10de_13f1'), (None, 'label_10de_13f1')]
)
def test_a_device_without_a_label_gets_one_of_its_ids(label: str | None, stored: str) -> None:
    one = found('0000:81:00.0', vendor_id='10DE', product_id='13F1')
    one['label'] = label
    columns = device.columns(one, {})
    assert (columns['label'], columns['vendor_id'], columns['product_id']) == (stored, '10de', '13f1')


def test_rows_of_earlier_releases_are_read() -> None:
    """Names that rows contain never change, and operators see those of reasons."""
    assert (device.GROUP, device.GROUP_HEAD, device.RESERVED_BEFORE) == ('group', 'group_head', 'reserved_before')
    assert device.BARS == ('disabled', 'unhealthy', 'missing', 'dirty', 'failed')
    assert device.FAILED_KEYS == ('failed', 'failed_times', 'failed_until')
    assert (device.SWITCHDEV, device.VGPU_TYPE, device.PORT_PROVIDERS) == ('switchdev', 'vgpu_type', 'port_rp_uuids')
    assert set(device.STATUSES) == {'available', 'claimed', 'allocated', 'removed', 'unclaimable', 'unavailable'}


def test_what_discovery_says_of_a_function_is_kept_as_text() -> None:
    one = found(
        '0000:81:10.0',
        dev_type='type-VF',
        parent='0000:81:00.0',
        switchdev='true',
        vgpu_type=7,
        mac_address='',
        trusted=1,
    )
    columns = device.columns(one, {'trusted': 'true', 'managed': None, 'colour': 'red'})
    assert columns['extra_info'] == {'switchdev': 'true', 'vgpu_type': '7', 'trusted': 'true'}
