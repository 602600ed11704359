"""A device has one guest: which other guests keep a guest from its devices."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute.holders import Holders
from kilonova.compute.keys import NamedLocks
from kilonova.objects import PciDevice
from kilonova.states import PowerState

CARD, FUNCTION, OTHER = '0000:08:00.0', '0000:08:00.4', '0000:88:00.0'
# {device: it and what is related to it}
RELATED = {CARD: {CARD, FUNCTION}, FUNCTION: {CARD, FUNCTION}, OTHER: {OTHER}}


class Host:
    """``domains``: those that libvirt has; ``servers``: those of this host; ``entries``: devices of the tracker."""

    def __init__(self) -> None:
        self.domains: list[dict[str, Any]] = []
        self.servers: set[str] = set()
        self.entries: dict[str, Any] = {}
        self.locks = NamedLocks()
        driver: Any = SimpleNamespace(
            devices=SimpleNamespace(
                related=lambda devices: {one.address: frozenset(RELATED[one.address]) for one in devices}
            ),
            guests=SimpleNamespace(
                holding=lambda addresses: [one for one in self.domains if set(one['hostdevs']) & set(addresses)]
            ),
        )
        tracker: Any = SimpleNamespace(
            sides=lambda uuid: {'run'} if uuid in self.servers else set(),
            host_devices=SimpleNamespace(entries=self.entries),
        )
        self.holders = Holders(driver, tracker, self.locks)

    def check(self, uuid: str, *addresses: str) -> None:
        self.holders.check(uuid, [PciDevice(address=address) for address in addresses])


@pytest.fixture
def host() -> Host:
    return Host()


def test_of_two_guests_that_start_at_once_one_gets_the_device(host: Host) -> None:
    """Neither has a domain yet. The card of a function counts as the same device."""
    with host.locks.hold('a'):
        host.check('a', CARD)
        host.check('a', CARD)
        with host.locks.hold('b'):
            host.check('b', OTHER)
            with pytest.raises(
                errors.DevicesFailed, match=rf'server a, which is being started, has {FUNCTION}'
            ) as told:
                host.check('b', FUNCTION)
            assert list(told.value.addresses) == [FUNCTION]
    with host.locks.hold('b'):
        host.check('b', FUNCTION)


def test_a_guest_that_was_refused_keeps_no_device_from_others(host: Host) -> None:
    with host.locks.hold('a'), host.locks.hold('b'), host.locks.hold('c'):
        host.check('a', CARD)
        with pytest.raises(errors.DevicesFailed):
            host.check('b', FUNCTION, OTHER)
        host.check('c', OTHER)


@pytest.mark.parametrize(
    ('state', 'is_server', 'refused'),
    [
        (PowerState.RUNNING, True, 'server a has'),
        (PowerState.SHUTDOWN, True, 'server a has'),
        (PowerState.RUNNING, False, r"domain 'foreign' \(a\), which is no server of this host, has"),
        (PowerState.PAUSED, False, r"domain 'foreign' \(a\), which is no server of this host, has"),
        (PowerState.SHUTDOWN, False, None),
        (PowerState.CRASHED, False, None),
    ],
)
def test_a_domain_that_has_the_device(host: Host, state: PowerState, is_server: bool, refused: str | None) -> None:
    """A server of this host is to have its devices even while it is off; a foreign domain only while it runs."""
    host.servers = {'a'} if is_server else set()
    host.domains = [{'uuid': 'a', 'name': 'foreign', 'state': int(state), 'hostdevs': [CARD]}]
    with pytest.raises(errors.DevicesFailed, match=refused) if refused else contextlib.nullcontext():
        host.check('b', FUNCTION)
    host.check('a', FUNCTION)
    host.check('b', OTHER)


@pytest.mark.parametrize('held', [True, False])
def test_a_device_that_another_server_claimed(host: Host, held: bool) -> None:
    host.entries['x'] = SimpleNamespace(held=held, device=PciDevice(address=CARD, instance_uuid='a'))
    with pytest.raises(errors.DevicesFailed, match=f'server a has {CARD}') if held else contextlib.nullcontext():
        host.check('b', FUNCTION)
    host.check('a', FUNCTION)


def test_a_guest_without_devices_costs_no_look_at_domains() -> None:
    nothing: Any = None
    Holders(nothing, nothing, NamedLocks()).check('a', [])
