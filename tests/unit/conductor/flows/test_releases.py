"""Pending releases: rows that may wait for their host for long, whatever was upgraded meanwhile."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.clients.volume import SnapshotNotFound, VolumeInvalid
from kilonova.conductor.flows import releases
from kilonova.conductor.work import HostNotFenced
from kilonova.db import engine
from kilonova.db.arguments.releases import (
    AcceleratorRequestsRelease,
    BackupsRelease,
    ConsumerRelease,
    ImageRelease,
    PortsRelease,
    ReleaseArguments,
    SyncAggregateArguments,
)
from kilonova.db.queries import aggregates, operations
from kilonova.db.queries import cells as cell_queries
from kilonova.errors import Cancelled, Forbidden, Invalid, KeyGone, LeaseLost, Unanswered
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError
from tests.unit.conductor.site import IMAGE, SERVER, Site, steps, uuid


def test_what_a_message_does_not_take_any_more_is_left_out() -> None:
    """A row that an older release wrote for a dead host is still done when that host is back."""
    asked: list[tuple[str, Any, dict[str, Any]]] = []
    work: Any = SimpleNamespace(
        ctxt=None,
        call_host=lambda host, method, **kwargs: asked.append((host, method, kwargs)),
        arguments=lambda cls: cls.read(
            {'host': 'gpu1', 'method': 'terminate_instance', 'kwargs': {'instance': 'i', 'bdms': []}}
        ),
    )
    releases.release(work)
    assert asked == [('gpu1', Compute.terminate_instance, {'instance': 'i'})]


def test_a_host_of_the_release_before_has_nothing_of_a_new_message_to_give_back() -> None:
    """Asking it again, or later, would not end before it is upgraded, and then there is nothing either."""

    def ask(host: str, method: object, **kwargs: Any) -> None:
        raise VersionCapError(version='6.13', cap='6.12')

    # Whatever else it does needs more of the work than this one has.
    work: Any = SimpleNamespace(call_host=ask, instance_uuid='i', instance=lambda: None)
    undo(work)


# --- on real rows ----------------------------------------------------------------------------------------------------
@pytest.fixture
def work(site: Site) -> Any:
    site.put('active', 'powering-off')
    site.accept('stop')
    return site.work()


def undo(work: Any, host: str = 'gpu1', **more: Any) -> None:
    releases.ask_to_undo(work, host, Compute.undo_build, instance=work.instance(), **more)


def test_a_host_that_is_there_is_asked(site: Site, work: Any) -> None:
    undo(work)
    assert site.asked() == ['gpu1 undo_build'] and site.releases() == []


def test_a_dead_host_gets_a_release(site: Site, work: Any) -> None:
    """One, though it is asked again; with what the host would have written of the server."""
    site.silence('gpu2', forced=True)
    written: list[Any] = []
    for _ in range(2):
        undo(work, 'gpu2', write=written.append)
    assert site.sent == [] and len(written) == 2
    row = site.rows()[1]
    assert (row.kind, row.host, row.slot, row.not_before, row.request_id) == ('release', 'gpu2', row.uuid, 0, 'req-1')
    assert (row.args['host'], row.args['method'], list(row.args['kwargs'])) == (
        'gpu2',
        'undo_build',
        ['instance'],
    )
    site.silence('gpu3', forced=True)
    undo(work, 'gpu3')
    assert [host for host, _ in site.releases()] == ['gpu2', 'gpu3']


def test_a_key_is_not_kept(site: Site, work: Any) -> None:
    """The release has its own."""
    releases.add_pending_release(work, 'gpu1', Compute.undo_build, instance=work.instance())
    assert list(site.rows()[1].args['kwargs']) == ['instance']


@pytest.mark.parametrize(('may_run', 'forced'), [(True, False), (True, True), (False, False)])
def test_a_dead_host_gets_a_release_unless_it_may_run_the_guest(
    site: Site, work: Any, may_run: bool, forced: bool
) -> None:
    site.silence('gpu2', forced=forced)
    with pytest.raises(HostNotFenced) if may_run and not forced else contextlib.nullcontext():
        undo(work, 'gpu2', may_run=lambda: may_run)
    assert [host for host, _ in site.releases()] == ([] if may_run and not forced else ['gpu2'])


@pytest.mark.parametrize(
    ('tries', 'undoing', 'left'), [(0, False, False), (2, False, False), (3, False, True), (0, True, True)]
)
def test_a_living_host_that_can_not(site: Site, work: Any, tries: int, undoing: bool, left: bool) -> None:
    """Where another host waits for the server, or after some tries, it is left to a release."""
    work.outputs.tries, work.undoing = tries, undoing
    site.answers['undo_build'] = Invalid('libvirt is away')
    written: list[Any] = []
    if left:
        undo(work, write=written.append)
    else:
        with pytest.raises(Invalid):
            undo(work, write=written.append)
    assert len(site.releases()) == len(written) == int(left)


@pytest.mark.parametrize(
    'error', [Unanswered(who='x', reason='y'), KeyGone(key='k'), Cancelled(key='k'), LeaseLost(operation='o')]
)
def test_what_is_no_failure_of_the_host(site: Site, work: Any, error: Exception) -> None:
    work.outputs.tries = 99
    site.answers['undo_build'] = error
    with pytest.raises(type(error)):
        undo(work)
    assert site.releases() == []


def test_a_release_of_who_lost_the_row(site: Site, work: Any) -> None:
    site.update(owner='another')
    with pytest.raises(LeaseLost):
        releases.add_release(work, ConsumerRelease(consumer='c'))
    assert site.releases() == []


def test_releases_of_one_thing(site: Site, work: Any) -> None:
    """What is the same is there once; what waits doesn't hide another thing."""
    for request, host, delay in (('a', None, 30.0), ('a', 'gpu1', 0.0), ('b', None, 0.0)):
        args = AcceleratorRequestsRelease(accelerator_requests=[request], accelerators_at=host)
        releases.add_release(work, args, delay=delay)
    rows = site.rows()[1:]
    assert [(row.args, row.not_before > 0) for row in rows] == [
        ({'accelerator_requests': ['a']}, True),
        ({'accelerator_requests': ['b']}, False),
    ]
    with site.cell.read() as conn:
        assert 25 < rows[0].not_before - engine.now(conn) <= 30


# --- doing them ------------------------------------------------------------------------------------------------------
def test_a_host_gives_back(site: Site, work: Any) -> None:
    releases.add_pending_release(work, 'gpu1', Compute.undo_build, instance=work.instance())
    row = site.rows()[1]
    site.go(row.uuid)
    assert site.calls() == [
        (
            'gpu1',
            'undo_build',
            {'instance': "active/powering-off on gpu1: flavor 1, metadata {'role': 'db'}", 'key': '0.release/1'},
        )
    ]
    assert [one.kind for one in site.rows()] == ['stop']


@pytest.mark.parametrize('forced', [True, False])
def test_a_host_that_is_still_dead_is_waited_for(site: Site, work: Any, forced: bool) -> None:
    releases.add_pending_release(work, 'gpu1', Compute.undo_build, instance=work.instance())
    site.silence('gpu1', forced=forced)
    row = site.rows()[1]
    site.go(row.uuid)
    left = site.rows()[1].outputs
    assert site.sent == [] and left['tries'] == 1 and 'gpu1 is down' in left['reason']


def do(site: Site, work: Any, args: ReleaseArguments) -> None:
    releases.add_release(work, args)
    site.go(site.rows()[1].uuid)
    assert len(site.rows()) == 1


def test_a_consumer(site: Site, work: Any) -> None:
    site.inventory()
    do(site, work, ConsumerRelease(consumer=SERVER))
    assert site.held() == {} and site.images.deleted == []


def test_an_image(site: Site, work: Any) -> None:
    do(site, work, ImageRelease(image_id=IMAGE))
    assert site.images.deleted == [IMAGE]


def test_a_release_without_a_required_argument_is_no_obstacle(site: Site, work: Any) -> None:
    """It is tried again, and other operations read the arguments of the others."""
    releases.add_release(work, PortsRelease(ports_of=SERVER, ports_given=['p1']))
    operation = site.accept('release', {'ports_of': SERVER}, slot='another')
    assert releases.ports_given(work) == {'p1'}
    site.go(operation)
    (left,) = [row for row in site.rows() if row.uuid == operation]
    assert not left.failed and left.outputs['tries'] == 1


@pytest.mark.parametrize(('text', 'hosts'), [('{}', []), ('{', ['gpu2'])])
def test_a_release_that_cannot_be_read_keeps_its_host_and_one_without_a_host_keeps_none(
    site: Site, work: Any, text: str, hosts: list[str]
) -> None:
    """Read the host from the column of the row, as its guest may still run there."""
    releases.add_pending_release(work, 'gpu3', Compute.undo_build, instance=work.instance())
    site.accept('release', {'image_id': IMAGE}, slot='another', host='gpu2')
    if text != '{}':
        site.update(args=text)
    assert releases.hosts_left(work) == [*hosts, 'gpu3']
    site.silence('gpu3', forced=True)
    assert releases.hosts_left(work) == hosts


def backup(number: int, **values: Any) -> dict[str, Any]:
    return {
        'id': f'i{number}',
        'image_type': 'backup',
        'backup_type': 'daily',
        'instance_uuid': SERVER,
        'owner': 'demo',
        'status': 'active',
        **values,
    }


def test_the_oldest_backups(site: Site, work: Any) -> None:
    """The one that was just made stays, whatever the service's clock says of it; what isn't ours does, too."""
    others = [
        backup(8, owner='another'),
        backup(9, status='queued'),
        backup(10, backup_type='weekly'),
        backup(11, image_type='snapshot'),
        backup(12, instance_uuid='another'),
    ]
    site.images.records = {one['id']: one for one in (*map(backup, range(1, 5)), *others)}
    do(site, work, BackupsRelease(rotation=2, backup_type='daily', image_id='i4'))
    assert site.images.deleted == ['i2', 'i3']
    ((query, limit),) = site.images.queries
    assert query == {
        'image_type': 'backup',
        'backup_type': 'daily',
        'instance_uuid': SERVER,
        'owner': 'demo',
        'status': 'active',
        'sort_key': 'created_at',
        'sort_dir': 'desc',
    }
    assert limit == releases.MOST_BACKUPS


def test_a_rotation_of_none(site: Site, work: Any) -> None:
    """The backup that was just made goes as well."""
    site.images.records = {one['id']: one for one in (backup(1), backup(2))}
    do(site, work, BackupsRelease(rotation=0, backup_type='daily', image_id='i2'))
    assert site.images.deleted == ['i2', 'i1']


def test_a_release_is_tried_again(site: Site, work: Any) -> None:
    releases.add_pending_release(work, 'gpu1', Compute.undo_build, instance=work.instance())
    row = site.rows()[1]
    site.answers['undo_build'] = [Invalid('x'), None]
    site.go(row.uuid)
    assert not site.rows()[1].failed and site.rows()[1].outputs == {'tries': 1, 'reason': 'x'}
    site.go(row.uuid)
    assert len(site.rows()) == 1


@pytest.mark.parametrize('there', [True, False])
def test_an_aggregate_is_mirrored(site: Site, work: Any, there: bool) -> None:
    """As the api database has it now."""
    site.inventory()
    aggregate = uuid('aggregate')
    with site.api.write() as conn:
        cell_queries.map_hosts(conn, site.env.cells.id_of(site.cell), ['gpu2'])
        made = aggregates.create(conn, 'a', uuid=aggregate)
        if there:
            aggregates.add_host(conn, made['id'], 'gpu2')
    if not there:
        site.placement.client.set_member(uuid('gpu2'), aggregate, True)
    row = operations.OperationRow.new(
        site.ctxt, 'mirror', aggregate, SyncAggregateArguments(aggregate=aggregate, host='gpu2')
    )
    with site.api.write() as conn:
        operations.insert(conn, [row])
    site.go(row.uuid, site.api)
    members = [one['name'] for one in site.placement.client.list_providers(member_of=aggregate)]
    assert members == (['gpu2'] if there else [])
    with site.api.read() as conn:
        assert operations.get(conn, row.uuid) is None


def test_steps() -> None:
    assert steps('release') == 'release'
    assert steps('mirror') == 'update_aggregate'


# --- snapshots of volumes --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('error', 'found'),
    [
        (None, None),
        (SnapshotNotFound(snapshot_id='s'), 's'),
        (VolumeInvalid(detail='not allowed'), 'not allowed'),
        (Unanswered(who='Cinder', reason='away'), Unanswered),
        (Forbidden('no rights'), Unanswered),
    ],
)
def test_a_status_that_the_volume_service_refuses_is_given_up_unless_that_is_the_fault_of_the_account(
    error: Exception | None, found: Any
) -> None:
    """An operator gives the account its rights, and the status is sent again."""
    told: list[tuple[Any, ...]] = []

    def tell(*args: Any) -> None:
        told.append(args)
        if error is not None:
            raise error

    work: Any = SimpleNamespace(
        before_sending=lambda: None,
        instance_uuid=SERVER,
        env=SimpleNamespace(volumes=SimpleNamespace(tell_snapshot=tell)),
    )
    with pytest.raises(found) if found is Unanswered else contextlib.nullcontext():
        text = releases.tell_snapshot(work, 's', 'creating', '90%')
        assert text is None if found is None else found in (text or '')
    assert told == [('s', 'creating', '90%')]
