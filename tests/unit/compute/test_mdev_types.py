"""Test changes of the type of a card's mediated devices while its host runs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute.manager import ComputeManager
from kilonova.pci.device import CLAIMED
from kilonova.pci.devices import DeviceOwner
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import Cloud, gpu
from tests.unit.compute.test_service import Placement

CARD, OTHER, MISSING = '0000:84:00.0', '0000:85:00.0', '0000:86:00.0'
SMALL, LARGE = 'nvidia-35', 'nvidia-36'
FIRST, SECOND = 'aaaaaaaa-0000-4000-8000-00000000000a', 'bbbbbbbb-0000-4000-8000-00000000000b'


@pytest.fixture
def manager(cloud: Cloud, tmp_path: pathlib.Path) -> ComputeManager:
    """Return a host with two cards. Each can have two small devices or one large device, and has two small ones."""
    cloud.host('gpu1')
    types = {SMALL: {'available': 2, 'api': 'vfio-pci'}, LARGE: {'available': 1, 'api': 'vfio-pci'}}
    cloud.drivers['gpu1'].pci_devices = [gpu(address, mdev_types=types) for address in (CARD, OTHER)]
    cloud.placement = Placement()
    options = {
        'state_path': str(tmp_path),
        'pci.device_spec': [],
        'devices.enabled_mdev_types': [SMALL, LARGE],
        f'mdev_{LARGE}.device_addresses': [MISSING],
    }
    made = cloud.host('gpu1', **options)
    assert types_of(made) == {CARD: [SMALL] * 2, OTHER: [SMALL] * 2}
    return made


def types_of(manager: ComputeManager) -> dict[str, list[str]]:
    """Return {card: the type of each of its devices}."""
    found: dict[str, list[str]] = {}
    for device in manager.host.tracker.host_devices.all():
        found.setdefault(device.parent_addr, []).append(device.extra_info['mdev_type'])
    return found


def set_type(manager: ComputeManager, address: str, name: str) -> Any:
    return manager.endpoint.set_mdev_type(new_context(), address=address, mdev_type=name)


def give(manager: ComputeManager, card: str, *servers: str) -> list[str]:
    """Give a device of the card to each of the servers, and return the devices."""
    tracker = manager.host.tracker
    devices = [device.address for device in tracker.host_devices.all() if device.parent_addr == card]
    for address, server in zip(devices, servers, strict=False):
        tracker.host_devices, _ = tracker.host_devices.given({address: DeviceOwner(CLAIMED, server, None)}, server)
    return devices


def test_a_card_offers_devices_of_its_new_type_and_the_others_stay(cloud: Cloud, manager: ComputeManager) -> None:
    others = give(manager, OTHER, FIRST)
    cloud.placement.synced.clear()
    (made,) = set_type(manager, CARD, LARGE)
    assert types_of(manager) == {CARD: [LARGE], OTHER: [SMALL] * 2}
    assert made == {'address': made['address'], 'mdev_type': LARGE} and made['address'] not in others
    assert {row['address'] for row in cloud.cell.devices.values()} == {made['address'], *others}
    assert {name: one['total'] for name, one in cloud.placement.synced[-1][4].items()} == {
        'gpu1_pci_0000_84_00_0': 1,
        'gpu1_pci_0000_85_00_0': 2,
    }
    assert [one['mdev_type'] for one in set_type(manager, CARD, SMALL)] == [SMALL] * 2


def test_the_type_of_a_card_whose_devices_servers_hold_stays(cloud: Cloud, manager: ComputeManager) -> None:
    give(manager, CARD, SECOND, FIRST)
    told = f'2 devices of gpu1 {CARD} are held by {FIRST}, {SECOND}: the type of the card can be changed when'
    with pytest.raises(errors.Conflict, match=re.escape(told)):
        set_type(manager, CARD, LARGE)
    assert types_of(manager) == {CARD: [SMALL] * 2, OTHER: [SMALL] * 2}
    assert [one['mdev_type'] for one in set_type(manager, CARD, SMALL)] == [SMALL] * 2, 'it has this type already'


@pytest.mark.parametrize(
    ('address', 'name', 'error', 'told'),
    [
        (MISSING, LARGE, errors.NotFound, f'gpu1 has no card {MISSING}'),
        (CARD, 'nvidia-37', errors.Invalid, "'nvidia-37' is not among"),
    ],
)
def test_a_type_that_a_card_can_not_have_is_refused(
    manager: ComputeManager, address: str, name: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        set_type(manager, address, name)
    assert types_of(manager) == {CARD: [SMALL] * 2, OTHER: [SMALL] * 2}
