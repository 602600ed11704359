"""Instance actions and migrations."""

from __future__ import annotations

import pytest

from kilonova.api.v2.servers.show import host_id
from kilonova.db.queries import instances, migrations
from tests.unit.api.conftest import moment

ACTION = {'action', 'instance_uuid', 'message', 'project_id', 'request_id', 'start_time', 'user_id'}


def at(second):
    return moment(2026, 11, 21, 10, 0, second)


@pytest.fixture
def told(site):
    """A server with three actions; the newest has two events."""
    server = site.server()
    with site.cell1.write() as conn:
        for number, name in enumerate(('create', 'stop', 'resize')):
            instances.start_action(
                conn,
                server,
                {
                    'action': name,
                    'request_id': f'req-{number}',
                    'user_id': 'bob',
                    'project_id': 'p1',
                    'created_at': at(number),
                    'updated_at': at(number),
                    'start_time': at(number),
                },
            )
        instances.add_events(
            conn,
            server,
            'req-2',
            [
                {
                    'event': 'compute_prep_resize',
                    'result': 'Success',
                    'host': 'h2',
                    'start_time': at(3),
                    'finish_time': at(4),
                    'details': None,
                    'traceback': None,
                },
                {
                    'event': 'compute_resize_instance',
                    'result': 'Error',
                    'host': 'h1',
                    'start_time': at(4),
                    'finish_time': at(5),
                    'details': 'why',
                    'traceback': 'Traceback',
                },
            ],
        )
    return server


def actions(site, server, query='', **kwargs):
    return site.ok('GET', f'/servers/{server}/os-instance-actions{query}', **kwargs)


def test_actions_newest_first(site, told):
    listed = actions(site, told)['instanceActions']
    assert [row['action'] for row in listed] == ['resize', 'stop', 'create']
    assert set(listed[0]) == ACTION | {'updated_at'}
    assert listed[0]['start_time'] == '2026-11-21T10:00:02.000000'
    assert set(actions(site, told, version='2.57')['instanceActions'][0]) == ACTION


def test_pages_of_actions(site, told):
    first = actions(site, told, '?limit=2')
    assert [row['request_id'] for row in first['instanceActions']] == ['req-2', 'req-1']
    path = first['links'][0]['href'].removeprefix('http://localhost/v2.1')
    assert path == f'/servers/{told}/os-instance-actions?limit=2&marker=req-1'
    rest = site.ok('GET', path)
    assert [row['request_id'] for row in rest['instanceActions']] == ['req-0'] and 'links' not in rest
    assert site.fault('GET', f'/servers/{told}/os-instance-actions?marker=zzz') == (
        400,
        'Marker zzz could not be found.',
    )
    assert len(actions(site, told, '?limit=1', version='2.57')['instanceActions']) == 3


def test_changes(site, told):
    for query, names in (
        ('changes-since=2026-11-21T10:00:01Z', ['resize', 'stop']),
        ('changes-before=2026-11-21T10:00:00Z', ['create']),
    ):
        assert [row['action'] for row in actions(site, told, f'?{query}')['instanceActions']] == names
    window = '?changes-since=2026-11-21T10:00:01Z&changes-before=2026-11-21T10:00:00Z'
    assert site.fault('GET', f'/servers/{told}/os-instance-actions{window}')[0] == 400
    assert site.fault('GET', f'/servers/{told}/os-instance-actions?changes-since=x')[0] == 400


@pytest.mark.parametrize(
    ('user', 'version', 'keys'),
    [
        ('admin', '2.1', {'event', 'start_time', 'finish_time', 'result', 'traceback'}),
        ('bob', '2.50', None),
        ('bob', '2.51', {'event', 'start_time', 'finish_time', 'result'}),
        ('bob', '2.104', {'event', 'start_time', 'finish_time', 'result', 'hostId'}),
        ('admin', '2.62', {'event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'hostId'}),
        ('admin', '2.84', {'event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'hostId', 'details'}),
    ],
)
def test_events_of_each_version_and_caller(site, told, user, version, keys):
    shown = site.ok('GET', f'/servers/{told}/os-instance-actions/req-2', user=user, version=version)['instanceAction']
    assert set(shown) >= ACTION
    if keys is None:
        assert 'events' not in shown
        return
    assert [event['event'] for event in shown['events']] == ['compute_resize_instance', 'compute_prep_resize']
    assert set(shown['events'][0]) == keys
    if 'hostId' in keys:
        assert shown['events'][0]['hostId'] == host_id('p1', 'h1')
    if 'details' in keys:
        assert (shown['events'][0]['details'], shown['events'][0]['traceback']) == ('why', 'Traceback')


def test_the_newest_action_of_a_request_is_shown(site, told):
    """A delete of a resized server confirms the resize first, so that one request has two actions."""
    for number, name in enumerate(('confirmResize', 'delete'), start=5):
        with site.cell1.write() as conn:
            instances.start_action(
                conn,
                told,
                {
                    'action': name,
                    'request_id': 'req-9',
                    'user_id': 'bob',
                    'project_id': 'p1',
                    'created_at': at(number),
                    'updated_at': at(number),
                    'start_time': at(number),
                },
            )
    shown = site.ok('GET', f'/servers/{told}/os-instance-actions/req-9')['instanceAction']
    assert (shown['action'], shown['updated_at']) == ('delete', '2026-11-21T10:00:06.000000')
    assert [row['action'] for row in actions(site, told, '?limit=1&marker=req-9')['instanceActions']] == ['resize']


def test_the_host_id_of_an_event_is_that_of_the_project_that_asked(site, told):
    table = instances.actions
    with site.cell1.write() as conn:
        conn.execute(table.update().where(table.c.request_id == 'req-2').values(project_id='p2'))
    for user in ('admin', 'bob'):
        shown = site.ok('GET', f'/servers/{told}/os-instance-actions/req-2', user=user)['instanceAction']
        assert [event['hostId'] for event in shown['events']] == [host_id('p2', 'h1'), host_id('p2', 'h2')]


def test_unknown_actions(site, told):
    assert site.fault('GET', f'/servers/{told}/os-instance-actions/zzz') == (404, 'Action zzz not found')
    waiting = site.create()
    assert actions(site, waiting) == {'instanceActions': []}
    assert site.fault('GET', f'/servers/{waiting}/os-instance-actions/zzz')[0] == 404


def test_the_story_outlives_its_server(site, told):
    with site.cell1.write() as conn:
        instances.mark_deleted(conn, told)
    assert len(actions(site, told, version='2.21')['instanceActions']) == 3
    assert site.fault('GET', f'/servers/{told}/os-instance-actions', version='2.20')[0] == 404


# --- migrations ------------------------------------------------------------------------------------------------------
def uuid_of(number):
    return f'{number:08d}-2222-3333-4444-555555555555'


@pytest.fixture
def moves(site):
    """Five moves in two cells, of two projects; the newest last."""
    mine, others = site.server(site.cell1), site.server(site.cell2, project='p2')
    for number in range(5):
        cell, server, project = ((site.cell1, mine, 'p1'), (site.cell2, others, 'p2'))[number % 2]
        with cell.write() as conn:
            migrations.create(
                conn,
                {
                    'uuid': uuid_of(number),
                    'instance_uuid': server,
                    'status': 'finished' if number else 'error',
                    'migration_type': 'resize',
                    'source_compute': 'h1',
                    'dest_compute': 'h2',
                    'source_node': 'h1',
                    'dest_node': 'h2',
                    'dest_host': '10.0.0.2',
                    'old_instance_type_id': 1,
                    'new_instance_type_id': 2,
                    'project_id': project,
                    'user_id': 'bob',
                    'created_at': at(number),
                    'updated_at': at(number),
                },
            )
    return mine, others


def moved(site, query='', **kwargs):
    rows = site.ok('GET', f'/os-migrations{query}', **kwargs)['migrations']
    return [int(row['uuid'][:8]) for row in rows]


MIGRATION = {
    'created_at',
    'dest_compute',
    'dest_host',
    'dest_node',
    'id',
    'instance_uuid',
    'new_instance_type_id',
    'old_instance_type_id',
    'source_compute',
    'source_node',
    'status',
    'updated_at',
}


@pytest.mark.parametrize(
    ('version', 'more'),
    [
        ('2.1', set()),
        ('2.23', {'migration_type'}),
        ('2.59', {'migration_type', 'uuid'}),
        ('2.80', {'migration_type', 'uuid', 'project_id', 'user_id'}),
    ],
)
def test_migrations_of_each_version(site, moves, version, more):
    rows = site.ok('GET', '/os-migrations', version=version)['migrations']
    assert len(rows) == 5 and set(rows[0]) == MIGRATION | more


@pytest.mark.parametrize(
    ('version', 'order'), [('2.1', [0, 1, 2, 3, 4]), ('2.58', [0, 1, 2, 3, 4]), ('2.59', [4, 3, 2, 1, 0])]
)
def test_before_2_59_the_oldest_migration_is_first(site, moves, version, order):
    rows = site.ok('GET', '/os-migrations', version=version)['migrations']
    assert [row['created_at'] for row in rows] == [f'2026-11-21T10:00:0{number}.000000' for number in order]


def test_filters_and_pages_of_migrations(site, moves):
    mine, _ = moves
    assert moved(site) == [4, 3, 2, 1, 0]
    assert moved(site, f'?instance_uuid={mine}') == [4, 2, 0]
    assert moved(site, '?status=error') == [0]
    assert moved(site, '?host=h2') == [4, 3, 2, 1, 0] and moved(site, '?host=h9') == []
    assert moved(site, '?source_compute=h2') == [] and moved(site, '?migration_type=evacuation') == []
    assert moved(site, '?project_id=p2') == [3, 1]
    assert moved(site, '?changes-since=2026-11-21T10:00:03Z') == [4, 3]
    assert moved(site, '?changes-before=2026-11-21T10:00:01Z') == [1, 0]
    assert moved(site, '?hidden=true') == []
    found, path = [], '/os-migrations?limit=2'
    while path:
        answer = site.ok('GET', path)
        found += [int(row['uuid'][:8]) for row in answer['migrations']]
        links = answer.get('migrations_links')
        path = links[0]['href'].removeprefix('http://localhost/v2.1') if links else None
    assert found == [4, 3, 2, 1, 0]
    assert site.fault('GET', f'/os-migrations?marker={uuid_of(9)}') == (400, f'Marker {uuid_of(9)} could not be found.')
    assert site.fault('GET', '/os-migrations?hidden=maybe')[0] == 400


def test_managers_see_their_projects_moves_without_hosts(make_site, tmp_path):
    (tmp_path / 'policy.yaml').write_text('"os_compute_api:os-migrations:index": "rule:project_member_or_admin"\n')
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    moves_of = site.server(site.cell1)
    with site.cell1.write() as conn:
        for number, project in enumerate(('p1', 'p2')):
            migrations.create(
                conn,
                {
                    'uuid': uuid_of(number),
                    'instance_uuid': moves_of,
                    'status': 'finished',
                    'migration_type': 'resize',
                    'source_compute': 'h1',
                    'dest_compute': 'h2',
                    'project_id': project,
                    'created_at': at(number),
                },
            )
    (row,) = site.ok('GET', '/os-migrations?project_id=p1', user='bob')['migrations']
    assert (row['project_id'], row['source_compute'], row['dest_compute']) == ('p1', None, None)
    for query in ('?project_id=p2', ''):
        assert site.fault('GET', f'/os-migrations{query}', user='bob') == (
            403,
            "Policy doesn't allow os_compute_api:os-migrations:index:all_projects to be performed.",
        )
    assert len(site.ok('GET', '/os-migrations')['migrations']) == 2


@pytest.mark.parametrize(
    ('kind', 'status', 'version', 'linked'),
    [
        ('live-migration', 'running', '2.23', True),
        ('live-migration', 'queued', '2.104', True),
        ('live-migration', 'running', '2.22', False),
        ('live-migration', 'completed', '2.23', False),
        ('resize', 'migrating', '2.23', False),
    ],
)
def test_live_migrations_under_way_have_links(site, kind, status, version, linked):
    server = site.server()
    with site.cell1.write() as conn:
        row = migrations.create(
            conn,
            {
                'uuid': uuid_of(1),
                'instance_uuid': server,
                'status': status,
                'migration_type': kind,
                'source_compute': 'h1',
                'dest_compute': 'h2',
            },
        )
    (shown,) = site.ok('GET', '/os-migrations', version=version)['migrations']
    assert ('links' in shown) == linked
    if linked:
        tail = f'/servers/{server}/migrations/{row["id"]}'
        assert [(link['rel'], link['href']) for link in shown['links']] == [
            ('self', f'http://localhost/v2.1{tail}'),
            ('bookmark', f'http://localhost{tail}'),
        ]


def test_before_2_59_the_list_of_migrations_is_whole(make_site):
    site = make_site(api__max_limit=2)
    server = site.server()
    with site.cell1.write() as conn:
        for number in range(3):
            migrations.create(
                conn,
                {
                    'uuid': uuid_of(number),
                    'instance_uuid': server,
                    'status': 'done',
                    'migration_type': 'evacuation',
                    'created_at': at(number),
                },
            )
    assert len(site.ok('GET', '/os-migrations', version='2.58')['migrations']) == 3
    assert len(site.ok('GET', '/os-migrations', version='2.59')['migrations']) == 2
