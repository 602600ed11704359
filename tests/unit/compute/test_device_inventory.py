"""Devices that are not offered: what Placement is told of them, and what it gets back."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.pci.device import RESERVED_BEFORE
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import GPUS, Cloud
from tests.unit.compute.test_service import Placement, report


@pytest.fixture
def manager(cloud: Cloud) -> Any:
    cloud.placement = Placement()
    manager = cloud.host('gpu1', GPUS)
    report(manager)
    manager.node.update()
    return manager


def before(manager: Any, address: str) -> str | None:
    """The amount that was reserved before Kilonova reserved more, as the device's row keeps it."""
    found: str | None = manager.host.tracker.host_devices.entries[address].device.extra_info.get(RESERVED_BEFORE)
    return found


@pytest.mark.parametrize(
    ('there', 'kept'),
    [
        ({}, '0'),
        ({'CUSTOM_GPU': {'reserved': 1}}, '1'),
        ({'CUSTOM_GPU': {'reserved': 0}, 'CUSTOM_BOARD': {'reserved': 2}}, '2'),
        ({'CUSTOM_GPU': {'reserved': 2}, 'CUSTOM_BOARD': {'reserved': 0}}, '2'),
    ],
)
def test_what_an_operator_reserved_is_kept_while_a_device_is_disabled(
    cloud: Cloud, manager: Any, there: dict[str, Any], kept: str
) -> None:
    """The highest amount of all classes, so that no device is offered that the operator keeps."""
    cloud.placement.inventory = there
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason='repairs')
    assert [before(manager, address) for address in GPUS] == [kept, None]
    manager.endpoint.set_device_disabled(new_context(), address=GPUS[0], reason=None)
    assert [before(manager, address) for address in GPUS] == [None, None]
