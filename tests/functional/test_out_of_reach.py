"""A resize whose source host can reach only some of the destinations goes to one that it can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kilonova.states import PowerState
from kilonova.virt.libvirt.moves import LibvirtMoves
from kilonova.virt.parts.moves import MoveOffer
from tests.fixtures.cloud import Cloud

GPUS = {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:08:00.0', '0000:09:00.0'], 'gpu3': ['0000:08:00.0', '0000:09:00.0']}


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Hosts of other machines, at an address where nobody is."""
    names: set[str] = set()
    offer = LibvirtMoves.prepare_move

    def prepare_move(self: LibvirtMoves) -> MoveOffer:
        found = offer(self)
        return {**found, 'boot_id': 'another', 'address': '127.0.0.9'} if found['host'] in names else found

    monkeypatch.setattr(LibvirtMoves, 'prepare_move', prepare_move)
    return names


def test_the_next_host_is_tried(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest runs until a host is found that can be reached; what the first one had claimed is given back."""
    cloud = make_cloud(GPUS)
    server = cloud.boot(cloud.flavor(gpus=1), host='gpu1')
    asked: list[tuple[str, int]] = []
    check = LibvirtMoves.migrate_disk_and_power_off

    def carry(self: LibvirtMoves, instance: Any, dest: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not asked:
            dest = {**dest, 'boot_id': 'another', 'address': '127.0.0.9'}
        asked.append((dest['host'], cloud.computes['gpu1'].host.driver.guests.get_info(instance)))
        return check(self, instance, dest, *args, **kwargs)

    monkeypatch.setattr(LibvirtMoves, 'migrate_disk_and_power_off', carry)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    assert {host for host, _ in asked} == {'gpu2', 'gpu3'} and {state for _, state in asked} == {PowerState.RUNNING}
    assert cloud.host_of(server) == asked[1][0]
    assert {name.split()[0] for name in cloud.owned(server)} == {'gpu1', asked[1][0]}
    cloud.action(server, 'confirmResize')
    cloud.assert_clean()


def test_none_in_reach(make_cloud: Callable[..., Cloud], far: set[str]) -> None:
    """The reason names both hosts of each pair, and the server is as it was."""
    cloud = make_cloud(GPUS)
    far.update(('gpu2', 'gpu3'))
    server = cloud.boot(cloud.flavor(gpus=1), host='gpu1')
    before = cloud.owned(server), cloud.xml(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'ACTIVE' and (cloud.owned(server), cloud.xml(server)) == before
    story = repr(cloud.story(server))
    for host in ('gpu2', 'gpu3'):
        assert f'The disks cannot be moved from gpu1 to {host}: ssh 127.0.0.9 failed' in story
    cloud.assert_clean()
