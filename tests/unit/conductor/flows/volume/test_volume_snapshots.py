"""Snapshots of volumes in use that end otherwise than they began."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.errors import Invalid
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.flows.volume.test_volumes import ROOT, add
from tests.unit.conductor.site import Site

MERGE = {'from': 'b', 'into': 'a'}


@pytest.fixture
def cinder(site: Site) -> FakeCinder:
    made = FakeCinder()
    site.env._volumes = made.client
    return made


@pytest.fixture
def snapshot(site: Site, cinder: FakeCinder) -> str:
    """The id of a snapshot of the server's volume that the volume service wants to delete."""
    site.put('active')
    volume_id = add(site, cinder, ROOT)
    snapshot_id = cinder.begin_snapshot(volume_id)
    cinder.finish_snapshot(snapshot_id)
    cinder.begin_delete(snapshot_id)
    site.accept('volume_snapshot_delete', {'volume_id': volume_id, 'snapshot_id': snapshot_id, 'merge': MERGE})
    return snapshot_id


def test_a_delete_that_is_cancelled_after_the_files_were_merged_is_done(
    site: Site, cinder: FakeCinder, snapshot: str
) -> None:
    """The host is not asked to end the merge, and the volume service removes the merged file."""
    site.answers['merge_volume'] = lambda sent: site.update(cancelled=True)
    site.go()
    assert site.asked() == ['gpu1 merge_volume'] and site.kept() is None
    assert snapshot not in cinder.snapshots
    assert [result for _, result, *_ in site.events()] == ['Success']


@pytest.mark.parametrize('merged', [True, False])
def test_the_host_says_whether_a_merge_that_failed_was_done_all_the_same(
    site: Site, cinder: FakeCinder, snapshot: str, merged: bool
) -> None:
    site.answers['merge_volume'] = Invalid('no')
    site.answers['undo_merge_volume'] = {'merged': merged}
    site.go()
    assert site.asked() == ['gpu1 merge_volume', 'gpu1 undo_merge_volume'] and site.kept() is None
    status: Any = cinder.snapshots.get(snapshot, {}).get('status')
    assert status == (None if merged else 'error_deleting')
    assert [result for _, result, *_ in site.events()] == ['Success' if merged else 'Error']
