"""Snapshots of volumes in use that end otherwise than they began."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows.volume import volume_snapshots
from kilonova.conductor.work import RetryLater
from kilonova.errors import Invalid, Unanswered
from kilonova.rpc.interface import VersionCapError
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


# --- create ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def creation(site: Site, cinder: FakeCinder) -> str:
    """The id of a snapshot that the volume service wants to create."""
    site.put('active')
    volume_id = add(site, cinder, ROOT)
    snapshot_id = cinder.begin_snapshot(volume_id)
    files = {'name': 'volume', 'format': 'raw', 'new': f'volume.{snapshot_id}'}
    site.accept('volume_snapshot_create', {'volume_id': volume_id, 'snapshot_id': snapshot_id, 'files': files})
    return snapshot_id


def test_a_host_of_an_older_release_keeps_its_file(site: Site, cinder: FakeCinder, creation: str) -> None:
    """The call was not sent, so nobody has to ask which file the guest uses."""
    site.answers['snapshot_volume'] = VersionCapError('too old')
    site.go()
    assert 'gpu1 undo_snapshot_volume' not in site.asked() and site.kept() is None
    assert cinder.snapshots[creation]['status'] == 'error'
    assert [result for _, result, *_ in site.events()] == ['Error']


@pytest.mark.parametrize(
    ('status', 'taken'), [('available', True), ('error', False), (None, False), ('creating', None), ('deleting', None)]
)
def test_the_status_of_a_snapshot_says_whether_it_was_taken(
    site: Site, cinder: FakeCinder, creation: str, status: str | None, taken: bool | None
) -> None:
    """A snapshot that is gone was not; one that is still being made is waited for."""
    if status is None:
        del cinder.snapshots[creation]
    else:
        cinder.snapshots[creation]['status'] = status
    work = site.work()
    if taken is None:
        with pytest.raises(RetryLater, match=f'it is {status}'):
            volume_snapshots._is_taken(work)
    else:
        assert volume_snapshots._is_taken(work) is taken


def test_a_merge_that_the_host_refuses_after_a_rejected_snapshot_is_tried_again(
    site: Site, cinder: FakeCinder, creation: str
) -> None:
    """Otherwise the next host would get the former file, without the newer data."""
    site.answers['withdraw_volume_snapshot'] = Invalid('busy')
    with pytest.raises(Unanswered, match=r'^Host gpu1 cannot merge the snapshot now: .*busy'):
        volume_snapshots._withdraw(site.work())
