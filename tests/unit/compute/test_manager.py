"""A compute service that starts while its hypervisor does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.compute import manager as module
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.compute.cloud import GPUS, Cloud

AWAY = HypervisorUnavailable(host='gpu1', reason='no libvirtd')


@pytest.fixture
def told(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons that servers of the restarted host are told to wait for. The host has a server."""
    found: list[str] = []
    cloud.boot(cloud.host('gpu1', GPUS))
    monkeypatch.setattr(module.HostGuests, 'await_hypervisor', lambda self, error: found.append(str(error)))
    return found


@pytest.mark.parametrize(('late', 'times'), [(0, 1), (60, 0)])
def test_servers_are_told_once_that_they_wait_for_the_hypervisor_if_it_is_away_for_long(
    cloud: Cloud, told: list[str], monkeypatch: pytest.MonkeyPatch, late: float, times: int
) -> None:
    monkeypatch.setattr(module, 'HYPERVISOR_LATE', late)
    cloud.drivers['gpu1'].fail('init_host', AWAY, times=3)
    assert cloud.host('gpu1').heartbeat is not None
    assert told == [str(AWAY)] * times


def test_servers_are_told_at_the_next_try_if_the_conductor_did_not_answer(
    cloud: Cloud, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    def await_hypervisor(self: Any, error: Exception) -> None:
        tries.append(error)
        if len(tries) == 1:
            raise errors.Unanswered(who='the conductor', reason='away')

    monkeypatch.setattr(module, 'HYPERVISOR_LATE', 0)
    monkeypatch.setattr(module.HostGuests, 'await_hypervisor', await_hypervisor)
    cloud.drivers['gpu1'].fail('init_host', AWAY, times=4)
    cloud.host('gpu1')
    assert tries == [AWAY, AWAY]


def test_a_conductor_that_is_away_is_no_hypervisor_that_is_away(
    cloud: Cloud, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, 'HYPERVISOR_LATE', 0)
    cloud.drivers['gpu1'].fail('init_host', errors.Unanswered(who='the conductor', reason='away'), times=3)
    cloud.host('gpu1')
    assert told == []
