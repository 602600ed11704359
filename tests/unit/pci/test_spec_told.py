"""What an operator learns of a device_spec: a mistyped key is refused, and what each spec matched is in the log."""

from __future__ import annotations

import json
import logging

import pytest

from kilonova.pci.devices import NodeDevices
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.spec import DeviceSpecs, PciConfigInvalidSpec
from tests.unit.pci.builders import found


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('prodct_id', 'product_id'),
        ('productid', 'product_id'),
        ('product', 'product_id'),
        ('vendor', 'vendor_id'),
        ('Vendor_ID', 'vendor_id'),
        ('adress', 'address'),
        ('dev_name', 'devname'),
        ('trait', 'traits'),
        ('resource-class', 'resource_class'),
        ('one_time_used', 'one_time_use'),
        ('physicalnetwork', 'physical_network'),
        ('remotemanaged', 'remote_managed'),
        ('manged', 'managed'),
        ('trust', 'trusted'),
    ],
)
def test_a_key_like_a_real_one_is_refused_with_both_names(key: str, meant: str) -> None:
    """A device_spec key that resembles a known key is refused with both names.

    If the key were taken for a tag, the host would offer every device of the vendor.
    """
    with pytest.raises(PciConfigInvalidSpec) as caught:
        DeviceSpecs.parse([json.dumps({'vendor_id': '10de', key: '13f1'})])
    assert f"'{key}' is not a known key. Did you mean '{meant}'?" in str(caught.value)


@pytest.mark.parametrize('key', ['rack', 'generation', 'switch', 'tier', 'group_name', 'numa_pool', 'owner', 'network'])
def test_other_words_are_tags(key: str) -> None:
    (spec,) = DeviceSpecs.parse([json.dumps({'vendor_id': '10de', key: '7'})]).specs
    assert spec.tags == {key: '7'}


def test_each_spec_tells_what_it_matched_and_again_when_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    specs = DeviceSpecs.parse(
        ['{"vendor_id": "10de", "product_id": "13f1"}', '{"vendor_id": "10de"}', '{"vendor_id": "15b3"}']
    )
    devices = [
        found(f'0000:8{number}:00.0', vendor_id='10de', product_id=product)
        for number, product in enumerate(('13f1', '13f1', '20b5', '2330'))
    ]

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if 'device_spec' in record.getMessage()]
        caplog.clear()
        return lines

    made = NodeDevices((PciFunctions(specs),), 1)
    made.looked(devices)
    assert told() == [
        '[pci]device_spec entry 1 matches 2 × 10de:13f1',
        '[pci]device_spec entry 2 matches 1 × 10de:20b5, 1 × 10de:2330',
        '[pci]device_spec entry 3 matches no device of this host',
    ]
    made.looked(devices)
    assert told() == []
    made.looked(devices[1:])
    assert told()[0] == '[pci]device_spec entry 1 matches 1 × 10de:13f1'
