"""CPUs and pages that a host offers, by its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.virt.hardware.offer import Offer
from kilonova.virt.parts.host import DriverMisconfigured
from tests.unit.virt.builders import new_conf

ONLINE = set(range(8))


def read(path: Path, **options: Any) -> Offer:
    compute = {name: options.pop(name) for name in ('cpu_shared_set', 'cpu_dedicated_set') if name in options}
    return Offer.read(new_conf(path, compute=compute, **options), ONLINE)


@pytest.mark.parametrize(
    ('options', 'shared', 'dedicated', 'said'),
    [
        ({}, ONLINE, set(), False),
        ({'cpu_shared_set': '0-3,^1'}, {0, 2, 3}, set(), True),
        ({'cpu_dedicated_set': '4-7'}, set(), {4, 5, 6, 7}, False),
        ({'cpu_shared_set': '0,1', 'cpu_dedicated_set': '4-7'}, {0, 1}, {4, 5, 6, 7}, True),
    ],
)
def test_sets(tmp_path: Path, options: dict[str, str], shared: set[int], dedicated: set[int], said: bool) -> None:
    offer = read(tmp_path, **options)
    assert (offer.shared, offer.dedicated, offer.said) == (shared, dedicated, said)


def test_pages_kept_for_the_host(tmp_path: Path) -> None:
    offer = read(
        tmp_path,
        reserved_huge_pages=[{'node': '0', 'size': '2048', 'count': '64'}, {'node': '1', 'size': '1GB', 'count': '1'}],
    )
    assert [offer.reserved_pages(*one) for one in ((0, 2048), (1, 1048576), (1, 2048))] == [64, 1, 0]


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        ({'cpu_shared_set': '0-3', 'cpu_dedicated_set': '3-7'}, 'overlap: 3'),
        ({'cpu_shared_set': '6-9'}, 'does not have: 8-9'),
        ({'cpu_dedicated_set': 'all'}, "cpu_dedicated_set 'all'"),
        ({'cpu_dedicated_set': '1,^1'}, 'contains no CPU'),
        ({'cpu_dedicated_set': '1', 'reserved_host_cpus': 1}, 'reserved_host_cpus'),
        ({'reserved_huge_pages': [{'node': '0', 'size': 'big', 'count': '1'}]}, 'reserved_huge_pages'),
        ({'reserved_huge_pages': [{'node': '0', 'size': '2048'}]}, 'reserved_huge_pages'),
    ],
)
def test_what_stops_the_start(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(DriverMisconfigured, match=text):
        read(tmp_path, **options)
