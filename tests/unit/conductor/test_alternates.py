"""Claims of hosts that the scheduler named but didn't claim: whatever is wrong with one, the next may do."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from kilonova import errors
from kilonova.conductor.flows import boot, resize
from tests.unit.scheduler.builders import uuid

SERVER, MIGRATION = uuid('server'), uuid('migration')


def work(placement, provider, vcpus=1):
    chosen = {'host': 'gpu2', 'allocations': {provider: {'resources': {'VCPU': vcpus}}}, 'mappings': {'': [provider]}}
    return SimpleNamespace(attempt=2, instance_uuid=SERVER, outputs={'select': [{}, chosen]},
                           args={'migration_uuid': MIGRATION}, env=SimpleNamespace(placement=placement.client),
                           ctxt=SimpleNamespace(project_id='demo', user_id='alice'))


@pytest.mark.parametrize(('claim', 'old', 'new'), [
    (boot.claim, {}, {SERVER: {'gpu2': {'VCPU': 1}}}),
    (resize.claim_and_move, {SERVER: {'gpu1': {'VCPU': 2}}},
     {SERVER: {'gpu2': {'VCPU': 1}}, MIGRATION: {'gpu1': {'VCPU': 2}}})])
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
