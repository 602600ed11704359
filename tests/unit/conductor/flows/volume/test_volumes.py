"""Volumes of a server that moves, waits for its host or is rebuilt: their rows, and their attachments in Cinder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kilonova.clients.volume import VolumeInvalid
from kilonova.conductor.flows import rebuild
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.work import HostDown
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.db.queries import volumes as rows
from kilonova.errors import Cancelled, Invalid, Unanswered
from kilonova.objects.volume import AttachedVolume
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.site import SERVER, Site
from tests.unit.scheduler.builders import flavor

ROOT, DATA = '/dev/vda', '/dev/vdb'
MINE, LATE = 'a0000000-0000-4000-8000-000000000000', 'b0000000-0000-4000-8000-000000000000'


@pytest.fixture
def cinder(site: Site) -> FakeCinder:
    made = FakeCinder()
    site.env._volumes = made.client

    site.answers['prepare_volumes'] = lambda sent: {'connector': {'host': sent.server}, 'devices': []}
    return made


def add(site: Site, cinder: FakeCinder, device: str | None) -> str:
    """Give the server one more volume, which is attached to no host yet: its id."""
    volume_id = cinder.add_volume('demo')
    row = rows.new_row(volume_id, size=1, connection_info='{}')
    with site.cell.write() as conn:
        rows.add(conn, SERVER, {**row, 'device_name': device, 'boot_index': 0 if device == ROOT else None})
    return volume_id


def put(site: Site, cinder: FakeCinder, kind: str = 'reimage') -> Any:
    """A server on gpu1 that boots from a volume and has another: the work of an operation of this kind."""
    site.put('active', 'rebuilding')
    site.accept(kind)
    add(site, cinder, ROOT)
    add(site, cinder, DATA)
    work = site.work()
    volumes.to_host(work, 'gpu1')
    assert where(work) == {ROOT: 'gpu1', DATA: 'gpu1'}
    site.sent.clear()
    return work


def of(work: Any) -> list[AttachedVolume]:
    found: list[AttachedVolume] = work.instance(fresh=True).volumes
    return found


def where(work: Any) -> dict[str | None, str | None]:
    """The host of each volume, by device name."""
    return {volume.device: volume.host for volume in of(work)}


# --- moves -----------------------------------------------------------------------------------------------------------
def test_volumes_that_came_with_a_live_migration_are_the_destinations_whatever_others_are(
    site: Site, cinder: FakeCinder
) -> None:
    """A volume that was attached to no host did not come with the guest."""
    work = put(site, cinder, 'live_migrate')
    volumes.reserve_root(work)
    volumes.announce(work, 'gpu2')
    volumes.arrived(work, 'gpu2')
    assert where(work) == {ROOT: None, DATA: 'gpu2'}
    volumes.forget_source(work)
    root, data = (volume.volume_id for volume in of(work))
    assert cinder.statuses() == {root: 'reserved', data: 'in-use'}
    assert f'{data} {SERVER} attached gpu2' in cinder.held() and len(cinder.held()) == 2


def test_a_host_that_is_down_gets_the_volumes_that_it_had(site: Site, cinder: FakeCinder) -> None:
    """As when a resize is reverted: its connector is known."""
    work = put(site, cinder, 'revert')
    volumes.to_host(work, 'gpu2')
    site.silence('gpu1')
    site.sent.clear()
    volumes.to_host(work, 'gpu1')
    assert site.sent == [] and where(work) == {ROOT: 'gpu1', DATA: 'gpu1'}


@pytest.mark.parametrize('new', [0, 1])
def test_a_host_that_is_down_is_waited_for_if_it_never_had_one_of_the_volumes(
    site: Site, cinder: FakeCinder, new: int
) -> None:
    work = put(site, cinder, 'revert')
    volumes.to_host(work, 'gpu2')
    volume = of(work)[new]
    text = replace(volume, known_at={}).connection_info(SERVER, 'gpu2', volume.connection, {'host': 'gpu2'})
    with site.cell.write() as conn:
        rows.change(conn, volume.uuid, volume.attachment_id, {'connection_info': text})
    site.silence('gpu1')
    with pytest.raises(HostDown):
        volumes.to_host(work, 'gpu1')
    assert where(work) == {ROOT: 'gpu2', DATA: 'gpu2'}


@pytest.mark.parametrize(
    ('ephemeral_gb', 'swap', 'name'), [(0, 0, 'vdb'), (10, 0, 'vdc'), (0, 512, 'vdc'), (10, 512, 'vdd')]
)
def test_a_volume_gets_a_name_behind_the_disks_that_the_server_will_have(
    site: Site, cinder: FakeCinder, ephemeral_gb: int, swap: int, name: str
) -> None:
    """It is attached to a server without a host; the guest's root disk, ephemeral disk and swap disk come first."""
    site.put('shelved_offloaded', host=None, node=None, flavor=flavor(ephemeral_gb=ephemeral_gb, swap=swap))
    site.accept('attach_volume')
    add(site, cinder, None)
    work = site.work()
    volumes.off_host(work)
    assert where(work) == {f'/dev/{name}': None} and set(cinder.statuses().values()) == {'reserved'}


# --- rebuilds of a root volume ---------------------------------------------------------------------------------------
@pytest.mark.parametrize('asked', [True, False])
@pytest.mark.parametrize('is_attached', [True, False])
def test_the_guest_of_an_undone_rebuild_starts_only_with_its_root_volume_as_it_was(
    site: Site, cinder: FakeCinder, is_attached: bool, asked: bool
) -> None:
    """Not if the volume is not on the host, though others are, nor if an image may have been written to it."""
    work = put(site, cinder)
    if not is_attached:
        volumes.reserve_root(work)
    work.outputs.asked = asked
    rebuild.undo_stop_guest(work)
    assert site.asked() == (['gpu1 undo_stop_to_reimage'] if is_attached and not asked else [])


def test_the_guest_of_an_undone_rebuild_starts_though_another_volume_is_not_attached(
    site: Site, cinder: FakeCinder
) -> None:
    work = put(site, cinder)
    add(site, cinder, None)
    rebuild.undo_stop_guest(work)
    assert site.asked() == ['gpu1 undo_stop_to_reimage']


def test_a_volume_is_not_attached_while_an_image_is_written_to_it(site: Site, cinder: FakeCinder) -> None:
    """Cinder would give it the status of a volume that nobody has."""
    work = put(site, cinder)
    volumes.reserve_root(work)
    root = next(volume.volume_id for volume in of(work) if volume.is_root)
    cinder.volumes[root]['status'] = 'downloading'
    held = cinder.held()
    with pytest.raises(VolumeInvalid, match=f'Volume {root} cannot be attached while an image is written to it'):
        volumes.to_host(work, 'gpu1')
    assert cinder.held() == held and where(work) == {ROOT: None, DATA: 'gpu1'}


@pytest.mark.parametrize('is_deleted', [True, False])
def test_the_root_volume_of_an_undone_rebuild_goes_back_to_the_host_unless_the_server_is_being_deleted(
    site: Site, cinder: FakeCinder, is_deleted: bool
) -> None:
    """The delete may have begun at any moment."""
    work = put(site, cinder)
    volumes.reserve_root(work)
    work.instance()
    if is_deleted:
        with site.cell.write() as conn:
            assert instances.transition(conn, SERVER, 'delete.start')
    rebuild.undo_reserve_root_volume(work)
    assert where(work) == {ROOT: None if is_deleted else 'gpu1', DATA: 'gpu1'}


@pytest.mark.parametrize('left', [(), (DATA,), (ROOT, DATA)])
def test_only_volumes_that_are_not_on_the_host_are_attached_before_a_guest_starts(
    site: Site, cinder: FakeCinder, left: tuple[str, ...]
) -> None:
    work = put(site, cinder, 'start')
    for volume in of(work):
        if volume.device in left:
            volumes._reserve(work, work.instance(), [volume])
    before = len(cinder.held())
    cinder.asked.clear()
    volumes.attached_here(work)
    assert site.asked() == (['gpu1 prepare_volumes'] if left else []) and bool(cinder.asked) == bool(left)
    assert where(work) == {ROOT: 'gpu1', DATA: 'gpu1'} and len(cinder.held()) == before


@pytest.mark.parametrize('has_strays', [True, False])
def test_attachments_in_no_row_are_deleted_if_there_may_be_some(
    site: Site, cinder: FakeCinder, has_strays: bool
) -> None:
    """Search for them only then, as it costs a request."""
    work = put(site, cinder, 'revert')
    stray = cinder.client.create_attachment(add(site, cinder, '/dev/vdc'), SERVER, None).id
    cinder.asked.clear()
    volumes.to_host(work, 'gpu1', has_strays=has_strays)
    assert (stray in cinder.attachments) is not has_strays
    assert any(method == 'GET' and '/attachments' in path for method, path in cinder.asked) is has_strays
    assert where(work) == {ROOT: 'gpu1', DATA: 'gpu1', '/dev/vdc': 'gpu1'}


def test_volumes_of_a_server_without_a_host_stay_as_they_are(site: Site, cinder: FakeCinder) -> None:
    site.put('shelved_offloaded', host=None, node=None)
    site.accept('unshelve')
    add(site, cinder, DATA)
    cinder.asked.clear()
    work = site.work()
    volumes.attached_here(work)
    assert cinder.asked == [] and site.sent == [] and where(work) == {DATA: None}


# --- others that change the same volume ------------------------------------------------------------------------------
def test_a_row_that_another_operation_changed_is_not_overwritten(site: Site, cinder: FakeCinder) -> None:
    work = put(site, cinder)
    root = of(work)[0]
    volumes._put(work, root, {'attachment_id': MINE})
    with pytest.raises(Unanswered, match='were changed meanwhile'):
        volumes._put(work, root, {'attachment_id': LATE})
    assert of(work)[0].attachment_id == MINE


@pytest.mark.parametrize(
    ('error', 'ends'),
    [
        (Cancelled('c'), True),
        (VolumeInvalid(detail='d'), True),
        (Invalid('the host refuses'), True),
        (Unanswered(who='host', reason='away'), False),
        (ValueError('a bug'), False),
    ],
)
def test_a_new_size_is_told_until_the_host_answers(error: Exception, ends: bool) -> None:
    """The guest sees it at its next start otherwise."""
    nothing: Any = None
    assert volumes.VolumeExtended().may_end(nothing, error) is ends


@pytest.mark.parametrize('is_attached', [True, False])
def test_a_new_size_is_written_and_told_to_the_host_that_has_the_volume(
    site: Site, cinder: FakeCinder, is_attached: bool
) -> None:
    """Leave the other volumes and their sizes as they are, whether they are attached or not."""
    work = put(site, cinder, 'start')
    add(site, cinder, '/dev/vdc')
    if not is_attached:
        volumes.reserve_root(work)
    root = next(volume.volume_id for volume in of(work) if volume.is_root)
    cinder.volumes[root]['size'] = 7
    site.accept('volume_extended', {'volume_id': root}, slot='beside')
    site.go()
    assert [(volume.device, volume.size) for volume in of(work)] == [(ROOT, 7), (DATA, 1), ('/dev/vdc', 1)]
    told = ('gpu1', 'extend_volume')
    assert [(server, method) for server, method, args in site.calls()] == [told] * is_attached


# --- volumes that are given up ---------------------------------------------------------------------------------------
def test_volumes_are_deleted_with_their_server_or_later_if_the_volume_service_does_not_answer(
    site: Site, cinder: FakeCinder
) -> None:
    """Delete the attachments of all volumes, and only those volumes that go with the server."""
    work = put(site, cinder, 'delete')
    root, data = (volume.volume_id for volume in of(work))

    def broken(method: str, path: str) -> None:
        raise cinder.broken()

    cinder.before = broken
    volumes.drop(work, [data])
    assert site.releases() == [(None, {'volumes_of': SERVER, 'volumes_deleted': [data]})]
    assert cinder.statuses() == {root: 'in-use', data: 'in-use'}
    cinder.before = None
    volumes.drop(work, [data])
    assert len(site.releases()) == 1 and cinder.held() == [] and cinder.statuses() == {root: 'available'}


def test_the_attachment_of_one_volume_is_deleted_later_if_the_volume_service_does_not_answer(
    site: Site, cinder: FakeCinder
) -> None:
    work = put(site, cinder, 'detach_volume')
    root, data = of(work)

    def broken(method: str, path: str) -> None:
        raise cinder.broken()

    cinder.before = broken
    volumes.drop_one(work, data)
    assert site.releases() == [(None, {'volumes_of': SERVER, 'volumes_deleted': []})] and len(cinder.held()) == 2
    cinder.before = None
    volumes.drop_one(work, data)
    assert cinder.statuses() == {root.volume_id: 'in-use', data.volume_id: 'available'}


@pytest.mark.parametrize('act', ['attach', 'reserve', 'forget later', 'forget now'])
def test_an_attachment_that_may_appear_late_is_deleted_late(site: Site, cinder: FakeCinder, act: str) -> None:
    """Delete it at once only if no request that makes it can still be under way."""
    work = put(site, cinder, 'revert')
    add(site, cinder, '/dev/vdc')

    def broken(method: str, path: str) -> None:
        if (method == 'POST') is (act != 'forget now'):
            raise cinder.broken()

    cinder.before = broken
    if act == 'attach':
        with pytest.raises(Unanswered):
            volumes.to_host(work, 'gpu1')
    elif act == 'reserve':
        with pytest.raises(Unanswered):
            volumes.off_host(work)
    else:
        volumes.forget_source(work, later=act == 'forget later')
    assert site.releases() == [(None, {'volumes_of': SERVER, 'volumes_deleted': []})]
    (row,) = [row for row in site.rows() if row.kind == 'release']
    with site.cell.read() as conn:
        left = row.not_before - engine.now(conn)
    assert row.not_before == 0 if act == 'forget now' else volumes.LATE - 60 < left <= volumes.LATE
