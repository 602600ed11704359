"""createImage, soft delete, restore and forceDelete: what is accepted, refused, written and sent."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.clients.image import ImageRefused
from kilonova.db.queries import instances, migrations
from kilonova.errors import Unanswered
from tests.unit.api.conftest import IMAGE, OTHER, PROJECT

DAY = 86400


@pytest.fixture
def deferring(make_site):
    return make_site(reclaim_instance_interval=DAY)


def act(site: Any, server: str, name: str, body: Any = None, **kwargs: Any) -> Any:
    return site.request('POST', f'/servers/{server}/action', {name: body}, **{'user': 'bob', **kwargs})


def refused(site: Any, server: str, name: str, body: Any = None, **kwargs: Any) -> tuple[int, str]:
    return site.fault('POST', f'/servers/{server}/action', {name: body}, **{'user': 'bob', **kwargs})


# --- createImage -----------------------------------------------------------------------------------------------------
def test_create_image(site):
    """The image is made before the operation is accepted; its row names it."""
    server = site.server()
    answer = act(site, server, 'createImage', {'name': 'snap', 'metadata': {'a': 'b'}}, version='2.45')
    assert answer.status_int == 202 and 'Location' not in answer.headers
    (record,) = site.images.created
    assert answer.json == {'image_id': record['id']}
    assert record == {
        'id': record['id'],
        'name': 'snap',
        'disk_format': 'qcow2',
        'container_format': 'bare',
        'min_ram': 0,
        'min_disk': 1,
        'visibility': 'private',
        'base_image_ref': IMAGE,
        'image_type': 'snapshot',
        'instance_uuid': server,
        'user_id': 'bob',
        'hw_disk_bus': 'virtio',
        'a': 'b',
    }
    (row,) = site.rows(server)
    assert (row['kind'], row['args']) == ('snapshot', {'image_id': record['id']})
    assert site.row(server)['task_state'] == 'image_snapshot_pending'
    assert site.conductor.calls[-1] == ('run_operation', {'operation': row['uuid']})
    assert refused(site, server, 'createImage', {'name': 'snap'})[0] == 409
    assert len(site.images.created) == 1


def test_create_image_before_2_45_says_where_the_image_is(site):
    answer = act(site, site.server(), 'createImage', {'name': 'snap'}, version='2.44')
    (record,) = site.images.created
    assert not answer.body and answer.headers['Location'] == site.images.url(record['id'])


def test_an_administrators_image_of_another_projects_server_is_shared(site):
    act(site, site.server(), 'createImage', {'name': 'snap'}, user='admin', project=OTHER)
    assert [record['visibility'] for record in site.images.created] == ['shared']


@pytest.mark.parametrize(
    ('state', 'code'),
    [
        ('active', 202),
        ('stopped', 202),
        ('paused', 202),
        ('suspended', 202),
        ('resized', 409),
        ('error', 409),
        ('soft-delete', 409),
    ],
)
def test_states_in_which_an_image_can_be_made(site, state, code):
    assert act(site, site.server(vm_state=state), 'createImage', {'name': 'snap'}).status_int == code


@pytest.mark.parametrize(
    'body',
    [
        {},
        {'name': ''},
        {'name': 'x' * 256},
        {'name': 'x', 'metadata': {'a': 1}},
        {'name': 'x', 'other': 1},
        None,
        {'name': 'x', 'metadata': {'id': 'y'}},
        {'name': 'x', 'metadata': {'owner': 'y'}},
        {'name': 'x', 'metadata': {'status': 'active'}},
    ],
)
def test_malformed_images(site, body):
    assert refused(site, site.server(), 'createImage', body)[0] == 400
    assert site.images.created == []


def test_metadata_has_a_quota_until_2_38(make_site):
    site = make_site(quota__metadata_items=1)
    server, body = site.server(), {'name': 'x', 'metadata': {'a': 'b', 'c': 'd'}}
    assert refused(site, server, 'createImage', body, version='2.38') == (
        403,
        'Maximum number of metadata items exceeds 1',
    )
    assert act(site, server, 'createImage', body, version='2.39').status_int == 202


@pytest.mark.parametrize(
    ('error', 'code'),
    [(ImageRefused(image_id='x', reason='quota'), 403), (Unanswered(who='images', reason='silent'), 503)],
)
def test_an_image_service_that_does_not_make_it(site, monkeypatch, error, code):
    def fail(record: Any, ctxt: Any = None) -> None:
        raise error

    monkeypatch.setattr(site.images, 'create', fail)
    server = site.server()
    assert refused(site, server, 'createImage', {'name': 'x'})[0] == code
    assert site.rows(server) == [] and site.row(server)['task_state'] is None


def test_the_loser_of_a_race_leaves_no_image(site, monkeypatch):
    server, made = site.server(), site.images.create

    def create(record: Any, ctxt: Any = None) -> None:
        made(record, ctxt)
        with site.cell1.write() as conn:
            assert instances.transition(conn, server, 'stop.start')

    monkeypatch.setattr(site.images, 'create', create)
    assert refused(site, server, 'createImage', {'name': 'x'})[0] == 409
    assert site.images.created == []


def test_properties_that_are_not_inherited(make_site):
    site = make_site(non_inheritable_image_properties=['hw_disk_bus'])
    act(site, site.server(), 'createImage', {'name': 'x'})
    assert 'hw_disk_bus' not in site.images.created[0]


# --- soft delete -----------------------------------------------------------------------------------------------------
def test_a_delete_defers(deferring):
    site = deferring
    server = site.server()
    assert site.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    (row,) = site.rows(server)
    assert (row['kind'], row['slot'], row['args']) == ('soft_delete', 'run', {})
    kept = site.row(server)
    assert (kept['vm_state'], kept['task_state'], kept['deleted']) == ('active', 'soft-deleting', 0)
    assert kept['deleted_at'] is not None
    assert site.conductor.calls[-1] == ('terminate_instance', {'operation': row['uuid']})
    # Again: it is under way.
    assert site.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    assert len(site.rows(server)) == 1


@pytest.mark.parametrize(
    ('values', 'kind'),
    [
        ({}, 'soft_delete'),
        ({'vm_state': 'error'}, 'soft_delete'),
        ({'vm_state': 'stopped'}, 'soft_delete'),
        ({'launched_at': None, 'vm_state': 'error'}, 'delete'),
        ({'host': None, 'vm_state': 'error'}, 'delete'),
    ],
)
def test_only_what_ran_can_be_kept(deferring, values, kind):
    server = deferring.server(**values)
    assert deferring.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    assert [row['kind'] for row in deferring.rows(server)] == [kind]


def test_a_soft_deleted_server_stays_so(deferring):
    server = deferring.server(vm_state='soft-delete')
    assert deferring.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    assert deferring.rows(server) == []
    assert act(deferring, server, 'forceDelete').status_int == 202
    assert [row['kind'] for row in deferring.rows(server)] == ['delete']


def test_what_runs_is_cancelled_and_the_soft_delete_waits(deferring):
    site = deferring
    server = site.server()
    act(site, server, 'os-stop')
    site.request('DELETE', f'/servers/{server}', user='bob')
    assert [(row['kind'], row['slot'], row['cancelled']) for row in site.rows(server)] == [
        ('stop', 'run', True),
        ('soft_delete', 'wait', False),
    ]
    # A force delete takes its place.
    act(site, server, 'forceDelete')
    assert [(row['kind'], row['slot']) for row in site.rows(server)] == [('stop', 'run'), ('delete', 'wait')]
    assert site.row(server)['task_state'] == 'deleting'
    assert site.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    assert len(site.rows(server)) == 2


def test_a_move_that_waits_for_an_answer_goes_along(deferring):
    site = deferring
    server = moved(site)
    site.request('DELETE', f'/servers/{server}', user='bob')
    (row,) = site.rows(server)
    assert (row['kind'], row['args']) == ('soft_delete', {'migration_uuid': 'm1'})
    assert status_of(site) == 'confirming'


def test_beside_a_confirm_it_is_refused(deferring):
    """That can't be stopped, and ends soon."""
    site = deferring
    server = moved(site)
    assert act(site, server, 'confirmResize').status_int == 204
    code, message = site.fault('DELETE', f'/servers/{server}', user='bob')
    assert (code, message) == (
        409,
        f"Cannot 'soft_delete' instance {server} while it is in task_state another operation",
    )
    assert (site.row(server)['task_state'], site.row(server)['deleted_at']) == (None, None)
    assert act(site, server, 'forceDelete').status_int == 202


def test_restore(deferring):
    server = deferring.server(vm_state='soft-delete', power_state=4)
    assert act(deferring, server, 'restore').status_int == 202
    (row,) = deferring.rows(server)
    assert row['kind'] == 'restore' and deferring.row(server)['task_state'] == 'restoring'
    assert deferring.conductor.calls[-1] == ('run_operation', {'operation': row['uuid']})
    assert refused(deferring, server, 'restore') == (
        409,
        f"Cannot 'restore' instance {server} while it is in task_state restoring",
    )
    assert refused(deferring, deferring.server(), 'restore')[0] == 409


def test_restore_asks_the_quota(make_site):
    site = make_site(reclaim_instance_interval=DAY, quota__cores=1)
    server = site.server(vm_state='soft-delete')
    site.server()
    code, message = refused(site, server, 'restore')
    assert code == 403 and message.startswith('Quota exceeded for cores: Requested 1, but already used 1 of 1')


def test_without_the_interval_deletes_delete(site):
    server = site.server()
    site.request('DELETE', f'/servers/{server}', user='bob')
    assert [row['kind'] for row in site.rows(server)] == ['delete']
    waiting = site.create()
    assert act(site, waiting, 'forceDelete').status_int == 202
    assert site.request('GET', f'/servers/{waiting}', user='bob').status_int == 404


def test_locked_servers_are_their_administrators(deferring):
    server = deferring.server(locked=True, vm_state='soft-delete')
    for action in ('restore', 'forceDelete'):
        assert refused(deferring, server, action) == (409, f'Instance {server} is locked')
    assert act(deferring, server, 'restore', user='admin').status_int == 202


# --- resetState ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('state', ['active', 'error'])
def test_a_reset_closes_a_move_that_waits_for_an_answer(site, state):
    server = moved(site)
    assert act(site, server, 'os-resetState', {'state': state}, user='admin').status_int == 202
    (row,) = site.rows(server)
    assert (row['kind'], row['args']) == ('confirm', {'migration_uuid': 'm1'})
    assert (site.row(server)['vm_state'], status_of(site)) == (state, 'confirming')
    assert site.conductor.calls[-1] == ('run_operation', {'operation': row['uuid']})


def test_a_reset_beside_a_delete_leaves_the_move_to_it(site):
    server = moved(site)
    site.request('DELETE', f'/servers/{server}')
    assert act(site, server, 'os-resetState', {'state': 'active'}, user='admin').status_int == 202
    assert [row['kind'] for row in site.rows(server)] == ['delete'] and status_of(site) == 'finished'


def moved(site: Any) -> str:
    """A server in VERIFY_RESIZE, its migration is m1."""
    server = site.server(vm_state='resized', host='h2', node='h2')
    with site.cell1.write() as conn:
        migrations.create(
            conn,
            {
                'uuid': 'm1',
                'instance_uuid': server,
                'status': 'finished',
                'migration_type': 'resize',
                'source_compute': 'h1',
                'source_node': 'h1',
                'dest_compute': 'h2',
                'dest_node': 'h2',
                'project_id': PROJECT,
            },
        )
    return server


def status_of(site: Any) -> str:
    with site.cell1.read() as conn:
        return migrations.get(conn, uuid='m1')['status']
