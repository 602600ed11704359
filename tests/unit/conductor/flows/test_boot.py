"""Boot: the choice, the hand-over to the cell, what the host is asked, and where a server is buried."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.conductor.environment import HostsNotReporting
from kilonova.conductor.flows import FLOWS, boot
from kilonova.conductor.work import Work
from kilonova.db.arguments.servers import BootArguments
from kilonova.db.models import api as api_models
from kilonova.db.queries import build_requests, instance_mappings, instances, operations, volumes
from kilonova.errors import (
    BuildAbort,
    GroupPolicyViolated,
    HostRejected,
    Invalid,
    LeaseLost,
    NoValidHost,
    Unanswered,
    Unsent,
    shortened,
)
from tests.fixtures.cinder import FakeCinder
from tests.unit.conductor.site import DISK, SERVER, Sent, Site, primitive, steps, uuid

IMAGE = {'id': 'the image'}
BUILDING = "building/scheduling on None: flavor 1, metadata {'role': 'db'}"


def begin(site: Site, *hosts: str, server: str = SERVER, **args: Any) -> str:
    """A create is accepted; the scheduler will choose these hosts, and claim the first."""
    site.choose(*hosts or ('gpu2', 'gpu3'))
    spec, instance = site.spec(gpus=(1,)), site.instance(pci_requests=site.spec(gpus=(1,)).pci_requests)
    spec.instance_uuid = instance.uuid = server
    row = operations.OperationRow.new(
        site.ctxt,
        'boot',
        server,
        BootArguments(
            **{
                'request_spec': primitive(spec),
                'instance': primitive(instance),
                'image': IMAGE,
                'sealed': 'x',
                'bdms': [DISK],
                'tags': ['gold'],
                **args,
            }
        ),
    )
    operations.accept_create(
        site.api,
        specs=[(server, spec.to_json())],
        operations=[row],
        requests=[{'instance_uuid': server, 'project_id': 'demo', 'instance': instance.to_json()}],
        mappings=[
            {
                'instance_uuid': server,
                'project_id': 'demo',
                'user_id': 'alice',
                'cell_id': None,
                'queued_for_delete': False,
            }
        ],
    )
    site.operation = row.uuid
    return row.uuid


def go(site: Site, operation: str | None = None) -> Work[Any]:
    """From where the row is."""
    return site.go(operation, site.api if site.kept(site.api) is not None else site.cell)


def in_api(site: Site) -> list[str]:
    """The tables of the API database that say something of the server, apart from its mapping."""
    with site.api.read() as conn:
        return [
            table.__tablename__
            for table in (api_models.BuildRequest, api_models.RequestSpec)
            if conn.execute(sa.select(sa.func.count()).select_from(table.__table__)).scalar()
        ]


def cell_of(site: Site) -> str | None:
    mapping = site.mapping()
    if mapping is None or mapping['cell_id'] is None:
        return None
    return {site.env.cells.id_of(site.cell): 'cell1', site.env.cells.id_of(site.cell0): 'cell0'}[mapping['cell_id']]


# --- as it should be -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('notify', [True, False])
def test_what_is_asked(site: Site, notify: bool) -> None:
    site.env.notify.enabled = notify
    operation = begin(site)
    go(site)
    (request,) = site.sent[1].args['order'].instance.pci_requests.requests
    assert request.spec[0]['rp_uuids'] == uuid('device of gpu2')
    assert site.sent[1].args['order'].instance.id == site.row()['id']
    assert site.sent[1].args['order'].instance.availability_zone == 'zone1'
    if notify:
        assert [tag.tag for tag in site.sent[1].args['order'].instance.tags] == ['gold']
    assert site.calls() == [
        (
            None,
            'select_destinations',
            {
                'spec_obj': 'spec of flavor 1 with [None]',
                'instance_uuids': [SERVER],
                'return_objects': True,
                'return_alternates': True,
                'claim': True,
                'time_left': 60.0,
                'operations': [operation],
            },
        ),
        (
            'gpu2',
            'build_and_run_instance',
            {
                'key': '3.build/1',
                'order': {
                    'instance': BUILDING,
                    'image': IMAGE,
                    'sealed': 'x',
                    'attempt': 1,
                    'limits': {'memory_mb': 999},
                    'request_spec': f"spec of flavor 1 with ['{uuid('device of gpu2')}']",
                    'block_devices': [f'/dev/vda of {SERVER}'],
                },
            },
        ),
    ]


def test_the_server_is_in_its_cell(site: Site) -> None:
    """And the row, which its host ends."""
    begin(site)
    go(site)
    assert site.rows(site.api) == [] and in_api(site) == ['request_specs'] and cell_of(site) == 'cell1'
    row = site.kept()
    assert row is not None and (row.kind, row.position, row.attempt, row.request_id) == ('boot', 3, 1, 'req-1')
    assert row.outputs['select'][0]['host'] == 'gpu2' and row.owner == site.env.leases.owner_in(site.cell)
    assert site.state() == ('building', 'scheduling') and site.action() == 'under way'
    with site.cell.read() as conn:
        found = conn.execute(sa.select(instances.actions)).mappings().one()
        assert (found['action'], found['request_id'], found['user_id'], found['project_id']) == (
            'create',
            'req-1',
            'alice',
            'demo',
        )
        assert instances.get_bdms(conn, SERVER)[0]['device_name'] == '/dev/vda'
        assert conn.execute(sa.select(instances.tags_table.c.tag)).scalars().all() == ['gold']
        assert conn.execute(sa.select(instances.metadata_table.c.key)).scalars().all() == ['role']
    assert site.system_metadata()['image_min_ram'] == '1'
    assert site.finished_works == [(site.operation, None)] and site.placement.requests == []


def test_a_host_without_a_zone_leaves_the_one_that_was_asked_for(site: Site) -> None:
    begin(site)
    site.choose('gpu2', zone=None, memory_mb=None)
    go(site)
    order = site.sent[1].args['order']
    assert order.instance.availability_zone == 'zone0' and order.limits is None


def test_a_server_without_anything_special(site: Site) -> None:
    """No disks, tags, password or image."""
    begin(site, bdms=None, tags=None, sealed=None, image=None)
    go(site)
    order = site.sent[1].args['order']
    assert (order.block_devices, order.sealed, order.image) == ([], None, {})


# --- the next host ---------------------------------------------------------------------------------------------------
def test_a_host_that_refuses_sends_it_to_the_next(site: Site) -> None:
    begin(site)
    site.inventory('gpu2')
    site.answers['build_and_run_instance'] = [HostRejected('full'), None]
    go(site)
    _, first, undo, second = site.calls()
    assert undo == (
        'gpu2',
        'undo_build',
        {'instance': "building/scheduling on None: flavor 1, metadata {'role': 'db'}", 'key': '3.build/1'},
    )
    assert (first[0], second[0], second[2]['key'], second[2]['order']['attempt']) == ('gpu2', 'gpu3', '3.build/2', 2)
    assert second[2]['order']['request_spec'] == f"spec of flavor 1 with ['{uuid('device of gpu3')}']"
    assert site.held() == {'server': {'gpu3': 1}}
    row = site.kept()
    # From here on it must be known that the alternate is claimed.
    assert row is not None and (row.position, row.attempt, row.outputs['refusals']) == (3, 2, ['full'])


def test_an_alternate_that_is_claimed_is_not_claimed_again(site: Site) -> None:
    begin(site)
    site.inventory('gpu2')
    site.answers['build_and_run_instance'] = [HostRejected('full'), Unanswered(who='x', reason='y'), None]
    go(site)
    site.update(position=2)
    writes = [request for request in site.placement.requests if request[0] != 'GET']
    go(site)
    assert [request for request in site.placement.requests if request[0] != 'GET'] == writes
    assert site.held() == {'server': {'gpu3': 1}}


def test_all_hosts_refuse(site: Site) -> None:
    begin(site)
    site.inventory('gpu2')
    site.answers['build_and_run_instance'] = [
        HostRejected(f'Build of instance {SERVER} was re-scheduled: small'),
        HostRejected('full'),
    ]
    go(site)
    text = (
        'Hosts said: small; full (Exceeded maximum number of retries. Exhausted all hosts available for retrying '
        f'build failures for instance {SERVER}.)'
    )
    assert site.asked()[-1] == 'gpu3 undo_build' and site.held() == {}
    assert site.state() == ('error', None) and site.kept() is None and site.action() == 'Error'
    assert site.faults() == [(500, text, 'gpu3')] and cell_of(site) == 'cell1'
    row = site.row()
    assert (row['host'], row['node'], row['compute_id']) == (None, None, None)
    ((event, facts),) = site.emitted
    assert (event, facts['instance_uuid'], facts['request_spec'], facts['state'], facts['record']['class']) == (
        'compute_task.build_instances.error',
        SERVER,
        'spec of flavor 1 with [None]',
        'error',
        'MaxRetriesExceeded',
    )


@pytest.mark.parametrize('error', [BuildAbort(instance_uuid='i', reason='x'), Invalid('no')])
def test_a_host_that_gives_up_ends_it(site: Site, error: Exception) -> None:
    """What a host says itself is not said once more."""
    begin(site)
    site.answers['build_and_run_instance'] = error
    go(site)
    assert site.asked() == ['scheduler select_destinations', 'gpu2 build_and_run_instance', 'gpu2 undo_build']
    assert site.state() == ('error', None) and site.faults()[0][1] == str(error)
    assert [event for event, _ in site.emitted] == (
        [] if isinstance(error, BuildAbort) else ['compute_task.build_instances.error']
    )


def test_a_server_that_is_being_deleted_keeps_that_state(site: Site) -> None:
    begin(site)

    def delete(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'delete.start')
        raise Invalid('no')

    site.answers['build_and_run_instance'] = delete
    go(site)
    assert site.state() == ('building', 'deleting') and site.faults() == []
    assert site.emitted[0][1]['state'] == 'building'


def test_a_server_that_is_gone(site: Site) -> None:
    begin(site)

    def delete(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.mark_deleted(conn, SERVER)
        raise Invalid('no')

    site.answers['build_and_run_instance'] = delete
    go(site)
    assert site.kept() is None and site.emitted == []


def test_others_of_the_group_came_first(site: Site) -> None:
    """That is no attempt; when the alternates are used up the scheduler is asked again, for hosts of the same cell."""
    begin(site, 'gpu2')
    site.inventory('gpu2')
    other = site.selection('gpu1', cell=uuid('another cell'))
    site.answers['select_destinations'] = [
        [[site.selection('gpu2')]],
        [[other, site.selection('gpu2'), site.selection('gpu3')]],
    ]
    site.answers['build_and_run_instance'] = [GroupPolicyViolated(policy='Anti-affinity'), None]
    work = go(site)
    assert [line for line in site.asked() if 'undo' not in line] == [
        'scheduler select_destinations',
        'gpu2 build_and_run_instance',
        'scheduler select_destinations',
        'gpu3 build_and_run_instance',
    ]
    assert [choice.host for choice in work.outputs.hosts] == ['gpu2', 'gpu3'] and work.outputs.overtaken == [1]


def test_what_is_asked_for_further_alternates(site: Site) -> None:
    begin(site, 'gpu2')
    site.answers['build_and_run_instance'] = GroupPolicyViolated(policy='Anti-affinity')
    go(site)
    again = [args for _, method, args in site.calls() if method == 'select_destinations'][1]
    assert again == {
        'spec_obj': 'spec of flavor 1 with [None]',
        'instance_uuids': [SERVER],
        'return_objects': True,
        'return_alternates': True,
        'claim': False,
        'time_left': 60.0,
    }
    assert site.state() == ('error', None)


def test_alternates_that_are_left_are_taken_first(site: Site) -> None:
    begin(site)
    site.inventory('gpu2')
    site.answers['build_and_run_instance'] = [GroupPolicyViolated(policy='Anti-affinity'), None]
    go(site)
    assert site.asked().count('scheduler select_destinations') == 1


# --- no host ---------------------------------------------------------------------------------------------------------
def test_it_is_buried_in_cell0(site: Site) -> None:
    operation = begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='none')
    go(site)
    text = 'No valid host was found. none'
    assert site.state(site.cell0) == ('error', None) and cell_of(site) == 'cell0'
    assert site.kept(site.api) is None and in_api(site) == ['request_specs']
    assert site.faults(site.cell0) == [(500, text, None)] and site.action(site.cell0) == 'Error'
    assert site.events(site.cell0) == [('conductor_schedule_and_build_instances', 'Error', None, text)]
    with site.cell0.read() as conn:
        found = conn.execute(sa.select(instances.actions)).mappings().one()
        event = conn.execute(sa.select(instances.action_events)).mappings().one()
        assert conn.execute(sa.select(instances.tags_table.c.tag)).scalars().all() == ['gold']
        assert instances.get_system_metadata(conn, SERVER)['image_min_ram'] == '1'
        assert conn.execute(sa.select(instances.metadata_table.c.key)).scalars().all() == ['role']
    assert (found['action'], found['finish_time'] is not None) == ('create', True)
    assert event['start_time'] is not None and event['finish_time'] is not None and 'NoValidHost' in event['traceback']
    # The scheduler answered: nothing is claimed for it later.
    assert site.rows(site.api) == [] and operation not in site.woken
    ((event, facts),) = site.emitted
    assert (event, facts['state'], facts['record']['class']) == (
        'compute_task.build_instances.error',
        'error',
        'NoValidHost',
    )


def test_a_create_that_was_deleted_leaves_nothing(site: Site) -> None:
    begin(site)

    def delete(sent: Sent) -> None:
        assert operations.delete_build_request(site.api, SERVER)
        raise NoValidHost(reason='none')

    site.answers['select_destinations'] = delete
    go(site)
    assert site.rows(site.api) == [] and in_api(site) == [] and site.mapping() is None and site.emitted == []
    with site.cell0.read() as conn:
        assert instances.get(conn, SERVER, deleted=True) is None


def test_a_delete_while_it_is_buried_wins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='none')
    real = build_requests.exists

    def exists(conn: Any, server: str) -> bool:
        found = real(conn, server)
        deleted.append(server)
        return found

    deleted: list[str] = []
    monkeypatch.setattr(build_requests, 'exists', exists)
    bury = boot._bury

    def late(work: Any, cell0: Any) -> None:
        bury(work, cell0)
        operations.delete_build_request(site.api, SERVER)

    monkeypatch.setattr(boot, '_bury', late)
    go(site)
    assert deleted and site.row(site.cell0)['deleted'] and site.emitted == [] and site.rows(site.api) == []


def test_what_was_buried_is_buried_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was not written the first time."""
    begin(site)
    site.answers['select_destinations'] = [NoValidHost(reason='none')]
    real = Work.end

    def silent(*args: Any, **kwargs: Any) -> None:
        raise Unanswered(who='database', reason='x')

    monkeypatch.setattr(Work, 'end', silent)
    go(site)
    monkeypatch.setattr(Work, 'end', real)
    go(site)
    assert len(site.faults(site.cell0)) == 1 and site.kept(site.api) is None and cell_of(site) == 'cell0'


# --- silence of the scheduler ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('error', 'answered'),
    [
        (Unanswered(who='scheduler', reason='x'), False),
        (Unsent(who='scheduler', reason='x'), False),
        (HostsNotReporting(who='hosts', reason='x'), True),
    ],
)
def test_a_question_that_may_still_be_worked_on(site: Site, error: Exception, answered: bool) -> None:
    """What it still claims is given back again after its deadline."""
    begin(site)
    site.answers['select_destinations'] = [error]
    work = go(site)
    row = site.kept(site.api)
    assert row is not None and not row.failed and row.owner is None and work.select_answered is answered
    with site.api.write() as conn:
        operations.cancel(conn, SERVER)
    work = site.work(database=site.api)
    work.select_answered = answered
    FLOWS['boot'].run(work)
    releases = [row for row in site.rows(site.api) if row.kind == 'release']
    assert [row.args for row in releases] == ([] if answered else [{'consumer': SERVER}])
    with site.api.read() as conn:
        from kilonova.db import engine

        assert all(55 < row.not_before - engine.now(conn) <= 60 for row in releases)


def test_what_the_scheduler_claimed_is_given_back(site: Site) -> None:
    begin(site)
    site.inventory('gpu2')

    def cancel(sent: Sent) -> Any:
        with site.api.write() as conn:
            operations.cancel(conn, SERVER)
        return [[site.selection('gpu2')]]

    site.answers['select_destinations'] = cancel
    go(site)
    assert site.held() == {} and site.rows(site.api) == []


# --- the hand-over ---------------------------------------------------------------------------------------------------
def test_a_hand_over_may_be_repeated(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell has the server already, the api database the row still."""
    begin(site)
    real = boot._end_api_row

    def silent(*args: Any) -> bool:
        raise Unanswered(who='database', reason='x')

    monkeypatch.setattr(boot, '_end_api_row', silent)
    go(site)
    assert site.kept() is not None and site.kept(site.api) is not None
    monkeypatch.setattr(boot, '_end_api_row', real)
    go(site)
    assert site.kept(site.api) is None and site.asked()[-1] == 'gpu2 build_and_run_instance'
    with site.cell.read() as conn:
        assert len(conn.execute(sa.select(instances.actions)).all()) == 1


def test_a_row_that_a_dead_owner_left_in_the_cell_is_taken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(site)
    real = boot._end_api_row
    monkeypatch.setattr(boot, '_end_api_row', lambda *args: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        work = site.work(database=site.api)
        work.outputs.select = boot.ChosenHost.all_of([site.selection('gpu2')])
        boot.create_instance(work)
    site.update(owner=None)
    monkeypatch.setattr(boot, '_end_api_row', real)
    go(site)
    row = site.kept()
    assert row is not None and row.owner == site.env.leases.owner_in(site.cell)


def test_a_create_that_is_deleted_before_its_hand_over(site: Site) -> None:
    """The api row unwinds what is in the cell."""
    begin(site)
    site.inventory('gpu2')

    def delete(sent: Sent) -> Any:
        with site.api.write() as conn:
            build_requests.destroy(conn, SERVER)
        return [[site.selection('gpu2')]]

    site.answers['select_destinations'] = delete
    go(site)
    assert site.asked() == ['scheduler select_destinations']
    assert site.row()['deleted'] and site.kept() is None and site.kept(site.api) is None and site.mapping() is None
    assert site.held() == {} and site.emitted == []


def test_an_owner_that_is_none_any_more_hands_nothing_over(site: Site) -> None:
    begin(site)

    def lose(sent: Sent) -> Any:
        table = operations.operations
        with site.api.write() as conn:
            conn.execute(table.update().values(owner='another'))
        return [[site.selection('gpu2')]]

    site.answers['select_destinations'] = lose
    go(site)
    assert site.asked() == ['scheduler select_destinations'] and cell_of(site) is None
    assert in_api(site) == ['build_requests', 'request_specs']
    with pytest.raises(AssertionError):
        site.row()


def test_a_lease_of_the_cell_that_is_lost_hands_nothing_over(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(site)
    real = site.env.leases.check

    def check(db: Any, owner: str) -> None:
        if db is site.cell:
            raise LeaseLost(operation='x')
        real(db, owner)

    monkeypatch.setattr(site.env.leases, 'check', check)
    go(site)
    with pytest.raises(AssertionError):
        site.row()


def test_only_the_answer_of_a_hand_over_was_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written again, finds the build request gone, and that the server lives in the cell."""
    begin(site)
    lost = losing_commit(site.api, monkeypatch, lambda conn: instance_mappings.cells_of(conn, [SERVER]).get(SERVER))
    go(site)
    assert lost and site.asked()[-1] == 'gpu2 build_and_run_instance' and site.state() == ('building', 'scheduling')


def losing_commit(db: Any, monkeypatch: pytest.MonkeyPatch, when: Callable[[Any], Any]) -> list[int]:
    """The answer to the first COMMIT of a transaction after which ``when(conn)`` holds is lost."""
    from sqlalchemy import exc

    lost: list[int] = []
    real = db.write

    @contextlib.contextmanager
    def write() -> Iterator[Any]:
        with real() as conn:
            yield conn
            hit = not lost and when(conn)
        if hit:
            lost.append(1)
            raise exc.OperationalError('COMMIT', None, Exception('lost'), connection_invalidated=True)

    monkeypatch.setattr(db, 'write', write)
    return lost


# --- rows in a cell --------------------------------------------------------------------------------------------------
def handed_over(site: Site) -> None:
    """A boot that its first conductor left behind right after the hand-over."""
    begin(site)
    site.answers['build_and_run_instance'] = [Unanswered(who='x', reason='y'), None]
    go(site)


def test_a_build_goes_on_in_the_cell(site: Site) -> None:
    handed_over(site)
    row = site.kept()
    assert (row is not None and 'create_instance' not in row.outputs) or row.outputs['create_instance']
    site.update(outputs=operations.json.dumps({'select': row.outputs['select']}))
    site.sent.clear()
    site.go()
    (sent,) = site.sent
    assert (sent.server, sent.args['order'].instance.id) == ('gpu2', site.row()['id'])


def test_attachments_of_an_earlier_try_are_searched_unless_the_boot_only_waited_for_its_volume(site: Site) -> None:
    """Search for them once a request was sent whose reply did not arrive."""
    cinder = FakeCinder()
    site.env._volumes = cinder.client
    site.env.conf.block_device_allocate_retries_interval, site.env.conf.block_device_allocate_retries = 3, 60
    site.env.conf.default_access_ip_network_name = None
    volume_id = cinder.add_volume('demo', status='creating')
    volume = {**volumes.new_row(volume_id, size=1, connection_info='{}'), 'device_name': '/dev/vdb'}
    begin(site, bdms=[{**volume, 'source_type': 'blank'}])

    def attached() -> tuple[list[str], bool]:
        """Run the boot: the messages to hosts, and whether attachments were searched."""
        site.sent.clear()
        cinder.asked.clear()
        go(site)
        found = [message for message in site.asked() if not message.startswith('scheduler')]
        return found, any(method == 'GET' and '/attachments' in path for method, path in cinder.asked)

    assert attached() == ([], False)
    assert attached() == ([], False) and cinder.held() == []
    cinder.finish(volume_id)
    site.answers['prepare_volumes'] = [
        Unanswered(who='gpu2', reason='lost'),
        {'connector': {'host': 'gpu2'}, 'devices': []},
    ]
    assert attached() == (['gpu2 prepare_volumes'], False)
    assert attached() == (['gpu2 prepare_volumes', 'gpu2 build_and_run_instance'], True)
    assert cinder.statuses() == {volume_id: 'in-use'}


def test_a_row_that_no_hand_over_knows_goes(site: Site) -> None:
    """The mapping says that the server lives nowhere, and the api database has no row."""
    handed_over(site)
    site.sent.clear()
    with site.api.write() as conn:
        conn.execute(sa.update(api_models.InstanceMapping.__table__).values(cell_id=None))
    site.go()
    assert site.sent == [] and site.kept() is None and site.row()['deleted']
    assert site.finished_works[-1] == (site.operation, None)


def test_a_row_whose_twin_is_there_is_no_orphan(site: Site) -> None:
    handed_over(site)
    with site.api.write() as conn:
        conn.execute(sa.update(api_models.InstanceMapping.__table__).values(cell_id=None))
        twin = site.kept()
        assert twin is not None
        operations.insert(conn, [twin])
    site.go()
    assert site.asked()[-1] == 'gpu2 build_and_run_instance' and not site.row()['deleted']


def test_an_api_database_that_is_silent_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_over(site)
    work = site.work()
    site.sent.clear()
    monkeypatch.setattr(boot, '_is_orphan', lambda work: (_ for _ in ()).throw(Unanswered(who='x', reason='y')))
    FLOWS['boot'].run(work)
    row = site.kept()
    assert site.sent == [] and row is not None and row.owner is None and not row.failed


def test_a_cell_that_is_silent_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_over(site)
    row = site.kept()
    assert row is not None
    site.update(outputs=operations.json.dumps({'select': row.outputs['select']}))
    work = site.work()
    site.sent.clear()

    def silent() -> Any:
        raise Unanswered(who='x', reason='y')

    monkeypatch.setattr(work, 'instance_row', silent)
    FLOWS['boot'].run(work)
    row = site.kept()
    assert site.sent == [] and row is not None and row.owner is None and not row.failed


# --- a host that dies ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('claimed', 'forced', 'goes_on'), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_a_host_that_dies_may_run_the_guest(site: Site, claimed: bool, forced: bool, goes_on: bool) -> None:
    """Where it may, no other host is tried; what it has waits for it."""
    begin(site)
    site.inventory('gpu2')

    def die(sent: Sent) -> None:
        if claimed:
            with site.cell.write() as conn:
                instances.transition(conn, SERVER, 'build.claim', {'host': 'gpu2', 'node': 'node2'})
        site.silence('gpu2', forced=forced)
        raise Unanswered(who='gpu2', reason='died')

    site.answers['build_and_run_instance'] = [die, None]
    go(site)
    ((host, args),) = site.releases()
    assert (host, args['host'], args['method']) == ('gpu2', 'gpu2', 'undo_build')
    assert args['kwargs'] == {'instance': BUILDING}
    assert site.row()['host'] is None
    if goes_on:
        assert site.asked()[-1] == 'gpu3 build_and_run_instance' and site.held() == {'server': {'gpu3': 1}}
    else:
        assert 'gpu3 build_and_run_instance' not in site.asked() and site.state() == ('error', None)
        text = (
            'Exceeded maximum number of retries. compute service of host gpu2 is down, and its hypervisor may '
            'still run the server: start the service again, or make sure that the host is off and force the '
            f'service down. No other host was tried for instance {SERVER}'
        )
        assert site.faults()[0][:2] == (500, shortened(text, 255))


# --- several servers -------------------------------------------------------------------------------------------------
OTHER = uuid('other server')


def two(site: Site) -> list[Work[Any]]:
    uuids = [begin(site), begin(site, server=OTHER)]
    site.choose('gpu2', 'gpu3')
    works = [site.work(one, site.api) for one in uuids]
    for work in works:
        work.select_answered = True
    return works


def test_several_are_chosen_for_by_one_question(site: Site) -> None:
    works = two(site)
    answer = [[site.selection('gpu2')], [site.selection('gpu3')]]
    site.answers['select_destinations'] = [answer]
    FLOWS['boot'].begin_together(works)
    (sent,) = site.sent
    assert sent.args['instance_uuids'] == [SERVER, OTHER]
    assert sent.args['operations'] == [work.uuid for work in works]
    assert [(work.outputs.hosts[0].host, work.position) for work in works] == [('gpu2', 1), ('gpu3', 1)]
    with site.api.read() as conn:
        rows = [operations.get(conn, work.uuid) for work in works]
    assert [row and (row.position, row.outputs['select'][0]['host']) for row in rows] == [(1, 'gpu2'), (1, 'gpu3')]


def test_one_alone_asks_by_itself(site: Site) -> None:
    work = two(site)[0]
    FLOWS['boot'].begin_together([work])
    assert site.sent == []


def test_a_failure_fails_each(site: Site) -> None:
    works = two(site)
    site.answers['select_destinations'] = NoValidHost(reason='none')
    with site.api.write() as conn:
        conn.execute(
            operations.operations.update().where(operations.operations.c.uuid == works[0].uuid).values(owner='another')
        )
    FLOWS['boot'].begin_together(works)
    assert [(work.failed, work.error and work.error['message']) for work in works][1] == (
        True,
        'No valid host was found. none',
    )
    with site.api.read() as conn:
        assert [operations.get(conn, work.uuid).failed for work in works] == [False, True]  # type: ignore[union-attr]


def test_silence_leaves_each_to_ask_by_itself(site: Site) -> None:
    works = two(site)
    site.answers['select_destinations'] = Unanswered(who='x', reason='y')
    FLOWS['boot'].begin_together(works)
    assert [(work.failed, work.position, work.select_answered) for work in works] == [(False, 0, False)] * 2


def test_one_that_was_cancelled_meanwhile(site: Site) -> None:
    """The others go on. Whoever took one over chooses again."""
    works = two(site)

    def meanwhile(sent: Sent) -> Any:
        with site.api.write() as conn:
            operations.cancel(conn, SERVER)
            conn.execute(
                operations.operations.update()
                .where(operations.operations.c.uuid == works[1].uuid)
                .values(owner='another')
            )
        return [[site.selection('gpu2')], [site.selection('gpu3')]]

    site.answers['select_destinations'] = meanwhile
    FLOWS['boot'].begin_together(works)
    assert works[0].cancelled and [work.position for work in works] == [1, 0]


def test_who_lost_its_lease_chooses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    works = two(site)

    def check(db: Any, owner: str) -> None:
        raise LeaseLost(operation='x')

    monkeypatch.setattr(site.env.leases, 'check', check)
    with pytest.raises(LeaseLost):
        FLOWS['boot'].begin_together(works)
    assert site.sent == []


def test_steps() -> None:
    assert steps('boot') == (
        'select_and_claim create_instance prepare_resources<prepare_resources build<prepare_resources'
    )
