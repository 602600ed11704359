"""Virtual functions of NVIDIA cards by their vGPU types: which are given out, and in which pools."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kilonova.pci import sysfs
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.spec import DeviceSpecs
from tests.unit.pci.builders import functions, host, request

CARD, OTHER = '0000:3b:00.0', '0000:5e:00.0'


def carved(card: str, types: list[int | None]) -> list[dict[str, object]]:
    found = functions(card, len(types))
    for one, vgpu_type in zip(found, types, strict=True):
        if vgpu_type is not None:
            one['vgpu_type'] = vgpu_type
    return found


@pytest.mark.parametrize(
    ('content', 'vgpu_type'),
    [
        (b'1519\n', 1519),
        (b'0\n', 0),
        (b' 7 ', 7),
        (b'', None),
        (b'none\n', None),
        (b'-1\n', None),
        (b'\xff\xfe', None),
        (b'9' * 80, None),
    ],
)
def test_what_the_kernel_says(tmp_path: Path, content: bytes, vgpu_type: int | None) -> None:
    folder = tmp_path / 'bus' / 'pci' / 'devices' / CARD / 'nvidia'
    folder.mkdir(parents=True)
    (folder / 'current_vgpu_type').write_bytes(content)
    assert sysfs.vgpu_type(CARD, str(tmp_path)) == vgpu_type
    assert sysfs.vgpu_type(OTHER, str(tmp_path)) is None


def test_each_type_is_a_pool_of_its_own() -> None:
    """Without Placement: a pool has devices that requests can't tell from each other."""
    devices = host(carved(CARD, [1519, 1519, 1520, 0, None]))
    pools = {(pool.keys.get('vgpu_type'), pool.count) for pool in devices.pools.pools}
    assert pools == {('1519', 2), ('1520', 1), (None, 1)}
    assert len(devices.pools.copy().consume_requests([request(2, vendor_id='10de', vgpu_type='1519')])) == 2


@pytest.mark.parametrize('seed', range(50))
def test_what_is_given_out(seed: int) -> None:
    """In Placement one type a card, the one that most functions have; nothing without a type; functions that have no
    such file always. The order in which devices are found changes nothing."""
    rng = random.Random(seed)
    types = {
        card: [rng.choice([None, 0, 1519, 1520, 1521]) for _ in range(rng.randint(1, 8))] for card in (CARD, OTHER)
    }
    found = [one for card, given in types.items() for one in carved(card, given)]
    rng.shuffle(found)
    reported, unreported = (
        PciFunctions(DeviceSpecs.parse(['{"vendor_id": "10de"}']), reported).columns(found)
        for reported in (True, False)
    )
    assert unreported.keys() == {one['address'] for one in found if one.get('vgpu_type') != 0}
    for card, given in types.items():
        there = [given[index] for index, one in enumerate(functions(card, len(given))) if one['address'] in reported]
        real = [one for one in given if one]
        main = min(real, key=lambda one: (-real.count(one), one), default=None)
        assert there == [one for one in given if one is None or (one and one == main)]


def test_it_is_said_once_and_again_when_it_is_so_again(caplog: pytest.LogCaptureFixture) -> None:
    kind = PciFunctions(DeviceSpecs.parse(['{"vendor_id": "10de"}']))
    for types, said in (([0, 1519], 1), ([0, 1519], 0), ([1519, 1519], 0), ([0, 1519], 1)):
        caplog.clear()
        kind.columns(carved(CARD, types))
        lines = [record.getMessage() for record in caplog.records if 'not offered to servers' in record.getMessage()]
        assert len(lines) == said
    (line,) = lines
    assert line == (
        'PCI device 0000:3b:10.0 is not offered to servers: its nvidia/current_vgpu_type is 0: it has no vGPU type'
    )
