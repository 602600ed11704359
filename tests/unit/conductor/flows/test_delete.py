"""Delete and soft delete: whom they ask, what they leave for a dead host, and that nothing else is left."""

from __future__ import annotations

import json

import pytest

from kilonova.conductor.flows import delete
from kilonova.db.queries import info_caches, instance_mappings, instances, migrations, volumes
from kilonova.errors import HostRejected, Invalid, Unanswered
from tests.unit.conductor.site import IMAGE, MIGRATION, SERVER, Sent, Site, steps

ON_GPU1 = "active/deleting on gpu1: flavor 1, metadata {'role': 'db'}"


def begin(site: Site, **values: object) -> None:
    site.put('active', 'deleting', **values)
    site.inventory()
    with site.api.write() as conn:
        instance_mappings.create(
            conn,
            [
                {
                    'instance_uuid': SERVER,
                    'project_id': 'demo',
                    'user_id': 'alice',
                    'cell_id': 2,
                    'queued_for_delete': False,
                }
            ],
        )
    site.accept('delete')


def moving(site: Site) -> None:
    site.put_moved('resized', 'deleting')
    site.hold_moved()
    site.accept('delete')


def test_nothing_is_left(site: Site) -> None:
    begin(site)
    site.go()
    assert site.calls() == [('gpu1', 'terminate_instance', {'instance': ON_GPU1, 'key': '0.terminate/1'})]
    assert site.state() == ('deleted', None) and site.row()['deleted'] and site.row()['host'] is None
    assert site.rows() == [] and site.held() == {} and site.action() == 'done' and site.images.deleted == []
    mapping = site.mapping()
    assert mapping is not None and mapping['queued_for_delete']
    assert [event for event, _ in site.emitted] == ['instance.delete.start', 'instance.delete.end']
    assert site.emitted[0][1] == {'instance': ON_GPU1, 'host': 'gpu1'}
    end = site.emitted[1][1]
    values = end['values']
    assert (end['instance'], end['host'], end['moved']) == (ON_GPU1, 'gpu1', 'delete.done')
    assert (values['power_state'], values['host'], values['node']) == (0, None, None)
    assert values['deleted_at'] == values['terminated_at'] is not None


@pytest.mark.parametrize('vifs', [[{'id': 'p1'}], []])
def test_a_deleted_server_has_no_ports(site: Site, vifs: list[dict[str, str]]) -> None:
    """Lists of deleted servers show no addresses that another server may have by then."""
    begin(site)
    work = site.work()
    with site.cell.write() as conn:
        info_caches.write(conn, SERVER, vifs)
    work.changed()
    work.outputs.terminate = {'consumers': []}
    delete.mark_deleted(work)
    assert json.loads(site.row()['extra_network_info'] or '[]') == [] and site.row()['deleted']


@pytest.mark.parametrize('has_volume', [True, False])
def test_a_deleted_server_has_no_volumes_and_keeps_the_rows_of_its_disks(site: Site, has_volume: bool) -> None:
    """A volume that a deleted server still had could not be deleted."""
    begin(site)
    work = site.work()
    if has_volume:
        with site.cell.write() as conn:
            volumes.add(conn, SERVER, volumes.new_row('v1', size=1, connection_info='{}'))
    work.changed()
    work.outputs.terminate = {'consumers': []}
    delete.mark_deleted(work)
    with site.cell.read() as conn:
        assert volumes.servers_of(conn, 'v1') == []
        assert [row['device_name'] for row in instances.get_bdms(conn, SERVER)] == ['/dev/vda']


def test_without_notifications(site: Site) -> None:
    site.env.notify.enabled = False
    begin(site)
    site.go()
    assert site.state() == ('deleted', None)
    assert [event for event, _ in site.emitted] == ['instance.delete.start']


def test_the_image_that_it_was_shelved_to_goes(site: Site) -> None:
    begin(site, host=None, node=None, system_metadata={'shelved_image_id': IMAGE})
    site.go()
    assert site.sent == [] and site.images.deleted == [IMAGE] and site.state() == ('deleted', None)


def test_both_hosts_of_a_move_are_asked_once(site: Site) -> None:
    moving(site)
    site.go()
    assert site.asked() == ['gpu2 terminate_instance', 'gpu1 terminate_instance']
    assert site.held() == {} and site.migration()['status'] == 'error' and site.state() == ('deleted', None)


def test_a_move_that_ended_keeps_its_state(site: Site) -> None:
    moving(site)
    with site.cell.write() as conn:
        migrations.update(conn, MIGRATION, {'status': 'confirmed'})
    site.placement.client.delete_allocations(MIGRATION)
    site.go()
    assert site.asked() == ['gpu2 terminate_instance']
    assert site.migration()['status'] == 'confirmed'


def test_a_move_without_a_destination(site: Site) -> None:
    moving(site)
    with site.cell.write() as conn:
        migrations.update(conn, MIGRATION, {'dest_compute': None})
    site.go()
    assert site.asked() == ['gpu2 terminate_instance', 'gpu1 terminate_instance']


def test_a_dead_host_gives_back_later(site: Site) -> None:
    moving(site)
    site.silence('gpu1')
    site.go()
    assert site.asked() == ['gpu2 terminate_instance'] and site.state() == ('deleted', None)
    assert site.releases() == [
        (
            'gpu1',
            {
                'host': 'gpu1',
                'method': 'terminate_instance',
                'kwargs': {'instance': "resized/deleting on gpu2: flavor 2, metadata {'role': 'db'}"},
            },
        )
    ]


def test_it_is_tried_again_until_it_is_done(site: Site) -> None:
    begin(site)
    site.answers['terminate_instance'] = [Invalid('x'), HostRejected('x'), Unanswered(who='x', reason='y')]
    for _ in range(3):
        site.go()
        row = site.kept()
        assert row is not None and not row.failed and site.held() == {'server': {'gpu1': 1}}
    site.go()
    assert site.rows() == [] and site.held() == {}
    # The start is emitted once.
    assert [event for event, _ in site.emitted] == ['instance.delete.start', 'instance.delete.end']


def test_consumers_are_known_to_who_goes_on(site: Site) -> None:
    """The move is over for the cell when Placement answers again."""
    moving(site)

    def silent(method: str, path: str) -> None:
        raise site.placement.broken()

    site.answers['terminate_instance'] = [None, lambda sent: setattr(site.placement, 'before', silent)]
    site.go()
    row = site.kept()
    assert row is not None and (row.position, row.outputs['terminate']) == (1, {'consumers': [MIGRATION]})
    site.placement.before = None
    site.go()
    assert site.held() == {} and site.asked() == ['gpu2 terminate_instance', 'gpu1 terminate_instance']


def test_a_server_that_is_gone_already(site: Site) -> None:
    """Only the answer was lost: the row ends."""
    begin(site)
    with site.cell.write() as conn:
        instances.mark_deleted(conn, SERVER)
    site.go()
    assert site.sent == [] and site.rows() == [] and site.finished_works == [(site.operation, None)]


def test_a_cell_that_does_not_answer_is_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(site)
    work = site.work()

    def silent() -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(work, 'instance_row', silent)
    from kilonova.conductor.flows import FLOWS

    FLOWS['delete'].run(work)
    row = site.kept()
    assert row is not None and row.outputs == {'tries': 1, 'reason': 'ZeroDivisionError'}
    assert site.state() == ('active', 'deleting')


# --- soft delete -----------------------------------------------------------------------------------------------------
def soft(site: Site, moved: bool = False) -> None:
    if moved:
        site.put_moved('resized', 'soft-deleting', status='confirming')
        site.hold_moved()
    else:
        site.put('active', 'soft-deleting')
        site.inventory()
    site.accept('soft_delete', {'migration_uuid': MIGRATION} if moved else {})


def test_its_host_keeps_the_server(site: Site) -> None:
    soft(site)
    site.go()
    assert site.calls() == [
        (
            'gpu1',
            'soft_delete_instance',
            {
                'instance': "active/soft-deleting on gpu1: flavor 1, metadata {'role': 'db'}",
                'key': '3.soft_delete_instance/1',
            },
        )
    ]
    assert site.kept() is not None and site.held() == {'server': {'gpu1': 1}} and site.emitted == []


def test_a_move_is_confirmed_first(site: Site) -> None:
    soft(site, moved=True)
    site.go()
    assert site.asked() == ['gpu1 confirm_resize', 'gpu2 soft_delete_instance']
    assert site.flavors() == {'cur': 2, 'old': None, 'new': None} and site.held() == {'server': {'gpu2': 2}}
    assert site.migration()['status'] == 'confirmed' and site.system_metadata() == {}


def test_the_host_is_shown_the_server_without_its_move(site: Site) -> None:
    soft(site, moved=True)
    site.go()
    server = site.sent[-1].args['instance']
    assert server.old_flavor is None and server.migration_context is None


@pytest.mark.parametrize('silent', ['confirm_resize', 'soft_delete_instance'])
def test_a_soft_delete_goes_on_where_it_stood(site: Site, silent: str) -> None:
    soft(site, moved=True)
    site.answers[silent] = [Unanswered(who='x', reason='y'), None]
    site.go()
    row = site.kept()
    assert row is not None and row.position == (0 if silent == 'confirm_resize' else 3)
    site.go()
    assert site.held() == {'server': {'gpu2': 2}} and site.migration()['status'] == 'confirmed'


def test_nothing_is_written_of_a_move_that_never_was(site: Site) -> None:
    """Its row is written before the host is asked, and at no step before that."""
    soft(site)

    def look(sent: Sent) -> None:
        assert site.row()['updated_at'] == before

    before = site.row()['updated_at']
    site.answers['soft_delete_instance'] = look
    site.go()
    assert len(site.sent) == 1 and site.state() == ('active', 'soft-deleting')


@pytest.mark.parametrize('reset', [False, True])
def test_for_a_dead_host_the_end_is_written_here(site: Site, reset: bool) -> None:
    soft(site)
    site.silence('gpu1')
    if reset:
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'delete.start')
    site.go()
    assert site.sent == [] and site.kept() is None and site.action() == 'done'
    assert site.state() == (('active', 'deleting') if reset else ('soft-delete', None))
    assert [(event, facts['host'], facts.get('moved')) for event, facts in site.emitted] == [
        ('instance.soft_delete.start', 'gpu1', None),
        ('instance.soft_delete.end', 'gpu1', None if reset else 'soft_delete.done'),
    ]
    assert all(facts['instance'].startswith('active/') for _, facts in site.emitted)


def test_of_a_server_without_a_host_too(site: Site) -> None:
    soft(site)
    with site.cell.write() as conn:
        instances.update(conn, SERVER, {'host': None})
    site.go()
    assert site.sent == [] and site.state() == ('soft-delete', None)


def test_a_delete_takes_it_as_it_is(site: Site) -> None:
    soft(site)
    site.update(cancelled=True)
    site.go()
    assert site.sent == [] and site.kept() is None and site.state() == ('active', 'soft-deleting')
    assert site.action() == 'Error'


def test_steps() -> None:
    assert steps('delete') == 'terminate drop_allocations mark_deleted'
    assert steps('soft_delete') == 'confirm_source drop_allocation settle_move soft_delete_instance'
