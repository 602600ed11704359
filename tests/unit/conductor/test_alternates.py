"""Claims of hosts that the scheduler named but didn't claim: whatever is wrong with one, the next may do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kilonova import errors
from kilonova.conductor.flows import boot, evacuate, moving, resize, unshelve
from kilonova.conductor.row import ChosenHost
from tests.unit.scheduler.builders import uuid

SERVER, MIGRATION = uuid('server'), uuid('migration')


def work(placement, provider, vcpus=1):
    chosen = ChosenHost('gpu2', allocations={provider: {'resources': {'VCPU': vcpus}}}, mappings={'': [provider]})
    return SimpleNamespace(
        instance_uuid=SERVER,
        chosen=lambda: chosen,
        arguments=lambda cls: cls.read({'migration_uuid': MIGRATION, 'flavor': {'nova_object.data': {}}}),
        env=SimpleNamespace(placement=placement.client),
        ctxt=SimpleNamespace(project_id='demo', user_id='alice'),
        compare_now=lambda: None,
    )


@pytest.mark.parametrize(
    ('claim', 'old', 'new'),
    [
        (boot.claim_chosen, {}, {SERVER: {'gpu2': {'VCPU': 1}}}),
        (
            moving.claim_and_move,
            {SERVER: {'gpu1': {'VCPU': 2}}},
            {SERVER: {'gpu2': {'VCPU': 1}}, MIGRATION: {'gpu1': {'VCPU': 2}}},
        ),
    ],
)
def test_an_alternate_that_placement_does_not_give_leads_to_the_next(placement, claim, old, new):
    """A provider that Placement doesn't know: the host went away since, or never reported. It keeps a record of the
    consumer then, which doesn't stand in the way of the next."""
    source, root = placement.host('gpu1', vcpus=8), placement.host('gpu2', vcpus=8)
    for server in old:
        placement.client.claim(server, {source: {'resources': {'VCPU': 2}}}, project_id='demo', user_id='alice')
    for provider, vcpus in ((uuid('gone'), 1), (root, 9)):
        with pytest.raises(errors.HostRejected, match='gpu2: '):
            claim(work(placement, provider, vcpus))
        assert placement.allocations() == old
    claim(work(placement, root))
    assert placement.allocations() == new


def boot_work(**values):
    hosts = [ChosenHost(host) for host in ('gpu1', 'gpu2', 'gpu3', 'gpu4')]
    return SimpleNamespace(
        **{
            'attempt': 1,
            'instance_uuid': SERVER,
            'outputs': boot.BootOutputs(select=hosts),
            'env': SimpleNamespace(max_attempts=3),
            **values,
        }
    )


@pytest.mark.parametrize(
    ('attempt', 'overtaken', 'further'),
    [(1, [], True), (2, [], True), (3, [], False), (3, [2], True), (4, [1, 2, 3], False)],
)
def test_how_many_hosts_a_boot_tries(attempt, overtaken, further):
    """A boot tries as many hosts as max_attempts allows, and none after the last alternate. Hosts that another
    server of the group claimed first do not count."""
    tried = boot_work(attempt=attempt)
    tried.outputs.overtaken = overtaken
    assert boot.FLOW.more_attempts(tried) is further


def test_what_the_fault_says_when_no_host_built_the_server():
    """The fault names the server once, and each reason once, whatever number of hosts gave it."""
    work = boot_work(attempt=3)
    work.outputs.refusals = [
        f'Build of instance {SERVER} was re-scheduled: disk full',
        f'Build of instance {SERVER} was re-scheduled: no room for {SERVER}',
    ]
    error = boot.FLOW.exhausted(work, errors.HostRejected(f'Build of instance {SERVER} was re-scheduled: disk full'))
    assert isinstance(error, errors.MaxRetriesExceeded)
    assert str(error) == (
        'Hosts said: disk full; no room for (Exceeded maximum number of retries. Exhausted all hosts '
        f'available for retrying build failures for instance {SERVER}.)'
    )


@pytest.mark.parametrize('flow', [resize.Resize(), unshelve.Unshelve(), evacuate.Evacuate()])
def test_a_moves_fault_names_each_reason_once(flow):
    """The fault of a move names each reason once, without the prefix that the texts of all hosts begin with."""
    work = boot_work(attempt=2)
    refused = f'Build of instance {SERVER} was re-scheduled: The hypervisor could not start guest {SERVER}: no memory'
    work.outputs.refusals = [refused]
    assert str(flow.exhausted(work, errors.HostRejected(refused))) == (
        'No valid host was found. Hosts said: The hypervisor could not start guest: no memory'
    )
