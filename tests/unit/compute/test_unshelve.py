"""Unshelving on a host: who writes that it failed, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors, objects
from tests.unit.compute.cell import flavor, new_context
from tests.unit.compute.cloud import Cloud, request_spec

FAILED = [('compute_unshelve_instance', 'Error')]


def shelved(cloud: Cloud, gpus: int = 1) -> objects.Instance:
    server = cloud.cell.in_task(cloud.cell.new_instance(gpus).uuid, 'unshelving', 'shelved_offloaded')
    cloud.cell.saves.clear()
    return server


def unshelve(manager: Any, server: objects.Instance, gpus: int = 1) -> None:
    order = objects.UnshelveOrder(
        instance=server,
        image={'id': 'i1', 'properties': {}},
        request_spec=request_spec(server, flavor(), gpus),
        block_devices=[],
        limits=None,
    )
    manager.endpoint.unshelve_instance(new_context(), order=order, key='o/3.unshelve_instance/1')


def test_a_host_that_has_no_room_says_so_in_the_action(cloud: Cloud, manager: Any) -> None:
    server = shelved(cloud, 3)
    with pytest.raises(errors.HostRejected, match='Claim pci failed'):
        unshelve(manager, server, 3)
    assert cloud.cell.events() == FAILED and cloud.cell.instances[server.uuid]['host'] is None


@pytest.mark.parametrize('error', [errors.KilonovaError('it hangs'), errors.HostRejected('not here')])
def test_a_guest_that_does_not_start_is_told_once_and_leaves_nothing(
    cloud: Cloud, manager: Any, error: Exception
) -> None:
    server = shelved(cloud)
    cloud.drivers['gpu1'].fail('spawn', error)
    with pytest.raises(errors.HostRejected):
        unshelve(manager, server)
    assert cloud.cell.events() == FAILED and cloud.cell.held(server.uuid) == {}
    assert server.uuid not in cloud.drivers['gpu1'].domains and cloud.cell.instances[server.uuid]['host'] is None


def test_nothing_is_written_for_a_server_that_another_host_has_meanwhile(cloud: Cloud, manager: Any) -> None:
    """Its operation is not this host's any more, so the action's event isn't either."""
    server = shelved(cloud)
    cloud.cell.instances[server.uuid]['host'] = 'gpu2'
    with pytest.raises(errors.Conflict):
        unshelve(manager, server)
    assert cloud.cell.saves == [] and cloud.cell.instances[server.uuid]['host'] == 'gpu2'


@pytest.mark.parametrize(
    ('vm_state', 'host', 'runs'), [('shelved', 'gpu1', False), ('active', 'gpu1', True), ('shelved', 'gpu2', True)]
)
def test_only_a_guest_whose_server_is_still_shelved_here_is_stopped_again(
    cloud: Cloud, manager: Any, server: objects.Instance, vm_state: str, host: str, runs: bool
) -> None:
    cloud.cell.instances[server.uuid].update(vm_state=vm_state, host=host)
    manager.endpoint.undo_start_shelved_instance(new_context(), instance=server, key='o/1.start_shelved_instance/1')
    assert (cloud.drivers['gpu1'].domains[server.uuid].state == 1) is runs
    assert len(cloud.cell.saves) == (not runs)
