"""What a host counts when its service starts."""

from __future__ import annotations

from typing import Any

from kilonova.compute.tracker import RUN, claim_key
from tests.unit.compute.cloud import GPUS, Cloud


def test_a_move_whose_server_can_not_be_read_does_not_keep_another_from_being_counted(cloud: Cloud) -> None:
    source, dest = cloud.host('gpu2'), cloud.host('gpu1')
    servers = [cloud.boot(source, 0) for _ in range(3)]
    moves: list[Any] = [
        cloud.cell.new_migration(server.uuid, source, dest_compute='gpu1', dest_node='gpu1', status='migrating')
        for server in servers
    ]
    cloud.cell.extras[servers[1].uuid]['flavor'] = '{'
    dest = cloud.host('gpu1')
    sides = [dest.host.tracker.sides(server.uuid) for server in servers]
    assert sides == [{claim_key(moves[0])}, set(), {claim_key(moves[2])}]


def test_a_server_that_is_about_to_be_resized_on_its_own_host_is_counted_once(cloud: Cloud) -> None:
    """It has no migration context yet."""
    host = cloud.host('gpu1', GPUS)
    server = cloud.boot(host)
    cloud.cell.new_migration(server.uuid, host, dest_compute='gpu1', dest_node='gpu1')
    host = cloud.host('gpu1')
    tracker = host.host.tracker
    assert tracker.sides(server.uuid) == {RUN} and tracker.used.vcpus == 8
    assert [device.address for device in tracker.devices(server.uuid)] == list(cloud.cell.held(server.uuid))
