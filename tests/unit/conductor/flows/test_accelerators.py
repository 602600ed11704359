"""Accelerator requests: which bindings are refused, and which requests are kept while a host may use their devices."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kilonova.accel.client import AcceleratorRequestBindingFailed, AcceleratorRequestOpFailed
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.row import ChosenHost
from kilonova.rpc.compute import Compute
from tests.fixtures.cyborg import FakeCyborg
from tests.unit.conductor.site import SERVER, Site


@pytest.fixture
def cyborg(site: Site) -> FakeCyborg:
    made = FakeCyborg()
    made.profiles['fpga'] = [{'resources:FPGA': '2'}]
    site.env._accelerators = made.client
    return made


@pytest.fixture
def work(site: Site, cyborg: FakeCyborg) -> Any:
    """A boot on gpu2 that has created two requests."""
    site.put('building', 'spawning', host='gpu2', node='node2')
    site.accept('boot')
    made = site.work()
    made.outputs.select = [ChosenHost('gpu2', 'node2')] * 2
    accelerators.make(made, 'fpga')
    assert len(cyborg.requests) == 2
    return made


def may_run(site: Site, work: Any, host: str) -> None:
    """The host must still clean up, and it is down and not forced down."""
    releases.add_pending_release(work, host, Compute.undo_build, instance=work.instance())
    site.silence(host)


@pytest.mark.parametrize('failed', [0, 1, 2])
def test_a_binding_is_refused_if_one_of_its_requests_failed(work: Any, cyborg: FakeCyborg, failed: int) -> None:
    for number, one in enumerate(cyborg.requests.values()):
        one.update(instance_uuid=SERVER, state='BindFailed' if number < failed else 'Bound')
    work.attempt = 2
    with (
        pytest.raises(AcceleratorRequestBindingFailed, match='did not bind all of the requests')
        if failed
        else contextlib.nullcontext()
    ):
        accelerators.bind(work, 'fpga', work.chosen(), SERVER)


def test_a_binding_is_refused_if_one_of_its_requests_was_not_bound(work: Any, cyborg: FakeCyborg) -> None:
    next(iter(cyborg.requests.values())).update(instance_uuid=SERVER, state='Bound')
    work.attempt = 2
    with pytest.raises(AcceleratorRequestBindingFailed, match='did not bind all of the requests'):
        accelerators.bind(work, 'fpga', work.chosen(), SERVER)


def test_requests_are_deleted_at_once_if_their_host_runs_no_guest(site: Site, work: Any, cyborg: FakeCyborg) -> None:
    """Another host, which must still clean up, does not matter."""
    may_run(site, work, 'gpu3')
    accelerators.unbind(work)
    assert cyborg.requests == {} and [host for host, _ in site.releases()] == ['gpu3']


def test_requests_are_kept_until_their_host_can_run_no_guest(site: Site, work: Any, cyborg: FakeCyborg) -> None:
    """Cyborg would give their devices to another server."""
    may_run(site, work, 'gpu2')
    uuids = sorted(cyborg.requests)
    accelerators.unbind(work)
    assert sorted(cyborg.requests) == uuids and work.outputs.accelerators is None
    args = {'accelerator_requests': uuids, 'accelerators_at': 'gpu2'}
    (release,) = [row for row in site.rows() if row.args == args]
    site.go(release.uuid)
    (release,) = [row for row in site.rows() if row.uuid == release.uuid]
    assert sorted(cyborg.requests) == uuids and 'gpu2' in release.outputs['reason']
    site.silence('gpu2', forced=True)
    site.go(release.uuid)
    assert cyborg.requests == {} and release.uuid not in {row.uuid for row in site.rows()}


@pytest.mark.parametrize(('port', 'of'), [('', 'of the flavor'), ('p1', 'of port p1')])
def test_a_device_profile_that_got_more_groups_meanwhile_is_refused(port: str, of: str) -> None:
    """Placement allocated nothing for the new group."""
    host = ChosenHost('gpu2', 'node2')
    with pytest.raises(AcceleratorRequestOpFailed, match=f'nothing for group 1 of the device profile {of}'):
        accelerators._provider(host, 1, port)
