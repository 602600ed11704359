"""Placement inventory of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.virt import inventory
from tests.unit.virt.builders import new_conf


@pytest.mark.parametrize(
    ('configured', 'existing', 'ratio'),
    [
        (None, {}, 4.0),
        (None, {'VCPU': {'allocation_ratio': 2.0}}, 2.0),
        (8.0, {'VCPU': {'allocation_ratio': 2.0}}, 8.0),
    ],
)
def test_ratio_is_configured_or_placements_or_the_initial_one(
    tmp_path: Path, configured: float | None, existing: dict[str, Any], ratio: float
) -> None:
    conf = new_conf(tmp_path, cpu_allocation_ratio=configured)
    assert inventory.root(conf, 4, 1024, 10, existing)['VCPU']['allocation_ratio'] == ratio


def test_reserved_amounts(tmp_path: Path) -> None:
    conf = new_conf(tmp_path, reserved_host_cpus=2, reserved_host_memory_mb=600, reserved_host_disk_mb=1025)
    found = inventory.root(conf, 4, 1024, 10)
    assert {name: row['reserved'] for name, row in found.items()} == {'VCPU': 2, 'MEMORY_MB': 600, 'DISK_GB': 2}


def test_nothing_is_offered_that_is_not_there(tmp_path: Path) -> None:
    found = inventory.root(new_conf(tmp_path), 4, 100, 0)
    assert 'DISK_GB' not in found
    assert found['MEMORY_MB']['reserved'] == 100


def test_a_resource_that_the_host_lacks_has_a_ratio(tmp_path: Path) -> None:
    """Each of the three allocation ratios has a value, even for a resource that the host lacks."""
    conf = new_conf(tmp_path, cpu_allocation_ratio=8.0)
    found = inventory.ratios(conf, inventory.root(conf, 0, 1024, 0, {'MEMORY_MB': {'allocation_ratio': 1.5}}, pcpus=4))
    assert found == {'cpu_allocation_ratio': 8.0, 'ram_allocation_ratio': 1.5, 'disk_allocation_ratio': 1.0}
