"""Actions on servers: what is checked, what is written, who is woken."""

from __future__ import annotations

import json

import pytest

from kilonova import objects
from kilonova.db.queries import cells, instances, migrations, request_specs
from kilonova.pci import request as pci_request
from tests.unit.api.conftest import IMAGE, OTHER


def act(site, server, name, body=None, **kwargs):
    return site.request('POST', f'/servers/{server}/action', {name: body}, **kwargs)


def refused(site, server, name, body=None, **kwargs):
    return site.fault('POST', f'/servers/{server}/action', {name: body}, **kwargs)


def object_of(envelope):
    return objects.base.Serializer().deserialize_entity(None, envelope)


@pytest.mark.parametrize(
    ('action', 'body', 'values', 'kind', 'task', 'args', 'story'),
    [
        ('os-stop', None, {}, 'stop', 'powering-off', {}, 'stop'),
        ('os-stop', {'x': 1}, {'vm_state': 'error'}, 'stop', 'powering-off', {}, 'stop'),
        ('os-start', None, {'vm_state': 'stopped'}, 'start', 'powering-on', {}, 'start'),
        ('reboot', {'type': 'Soft'}, {}, 'reboot', 'rebooting', {'reboot_type': 'SOFT'}, 'reboot'),
        (
            'reboot',
            {'type': 'HARD'},
            {'vm_state': 'stopped'},
            'reboot',
            'rebooting_hard',
            {'reboot_type': 'HARD'},
            'reboot',
        ),
        ('pause', None, {}, 'pause', 'pausing', {}, 'pause'),
        ('unpause', None, {'vm_state': 'paused'}, 'unpause', 'unpausing', {}, 'unpause'),
        ('suspend', None, {}, 'suspend', 'suspending', {}, 'suspend'),
        ('resume', None, {'vm_state': 'suspended'}, 'resume', 'resuming', {}, 'resume'),
        ('unrescue', None, {'vm_state': 'rescued'}, 'unrescue', 'unrescuing', {}, 'unrescue'),
        *(
            ('trigger_crash_dump', None, {'vm_state': state}, 'trigger_crash_dump', None, {}, 'trigger_crash_dump')
            for state in ('active', 'paused', 'rescued', 'resized', 'error')
        ),
    ],
)
def test_power(site, statements, action, body, values, kind, task, args, story):
    server = site.server(**values)
    site.conductor.calls.clear()
    statements.clear()
    response = act(site, server, action, body, user='bob')
    assert response.status_int == 202 and not response.body
    assert len([1 for _, statement in statements if statement != 'COMMIT']) <= 6
    (row,) = site.rows(server)
    assert (row['kind'], row['args']) == (kind, args)
    assert site.row(server)['task_state'] == task
    assert site.conductor.calls == [('run_operation', {'operation': row['uuid']})]
    (told,) = site.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert (told['action'], told['request_id'], told['user_id']) == (
        story,
        response.headers['x-openstack-request-id'],
        'bob',
    )


@pytest.mark.parametrize(
    ('action', 'body', 'values', 'message'),
    [
        ('os-stop', None, {'vm_state': 'stopped'}, "Cannot 'stop' instance {} while it is in vm_state stopped"),
        ('os-start', None, {}, "Cannot 'start' instance {} while it is in vm_state active"),
        (
            'reboot',
            {'type': 'SOFT'},
            {'vm_state': 'stopped'},
            "Cannot 'reboot' instance {} while it is in vm_state stopped",
        ),
        ('os-stop', None, {'task_state': 'rebooting'}, "Cannot 'stop' instance {} while it is in task_state rebooting"),
        ('os-stop', None, {'launched_at': None}, "Cannot 'stop' instance {} while it is in launched_at None"),
        ('os-stop', None, {'host': None}, 'Instance {} is not ready'),
        ('confirmResize', None, {}, "Cannot 'confirmResize' instance {} while it is in vm_state active"),
        ('revertResize', None, {}, "Cannot 'revertResize' instance {} while it is in vm_state active"),
        (
            'resize',
            {'flavorRef': '1'},
            {'vm_state': 'error'},
            "Cannot 'resize' instance {} while it is in vm_state error",
        ),
        ('migrate', None, {'vm_state': 'paused'}, "Cannot 'migrate' instance {} while it is in vm_state paused"),
        *(
            (action, None, {'vm_state': state}, f"Cannot '{action}' instance {{}} while it is in vm_state {state}")
            for action, state in (
                ('pause', 'stopped'),
                ('pause', 'error'),
                ('unpause', 'active'),
                ('suspend', 'paused'),
                ('suspend', 'stopped'),
                ('resume', 'active'),
                ('resume', 'paused'),
                ('rescue', 'paused'),
                ('rescue', 'resized'),
                ('unrescue', 'active'),
                ('trigger_crash_dump', 'stopped'),
                ('trigger_crash_dump', 'suspended'),
            )
        ),
        (
            'changePassword',
            {'adminPass': 'x'},
            {'vm_state': 'stopped'},
            "Cannot 'changePassword' instance {} while it is in vm_state stopped",
        ),
        (
            'trigger_crash_dump',
            None,
            {'task_state': 'rebooting'},
            "Cannot 'trigger_crash_dump' instance {} while it is in task_state rebooting",
        ),
    ],
)
def test_wrong_states(site, action, body, values, message):
    server = site.server(**values)
    assert refused(site, server, action, body) == (409, message.format(server))
    assert site.rows(server) == []


@pytest.mark.parametrize(
    ('action', 'body'),
    [
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('resize', {'flavorRef': 'x'}),
        ('migrate', None),
        ('confirmResize', None),
        ('revertResize', None),
        ('pause', None),
        ('unpause', None),
        ('suspend', None),
        ('resume', None),
        ('trigger_crash_dump', None),
        ('rescue', None),
        ('unrescue', None),
        ('changePassword', {'adminPass': 'x'}),
    ],
)
def test_build_requests_can_only_be_deleted(site, action, body):
    waiting = site.create()
    assert refused(site, waiting, action, body)[0] == 409


def test_two_crash_dumps_at_once(site):
    """The server has no task state meanwhile; its operation row is what the second one meets, and a stop as well."""
    server = site.server()
    assert act(site, server, 'trigger_crash_dump').status_int == 202
    for action in ('trigger_crash_dump', 'os-stop', 'pause'):
        assert refused(site, server, action)[0] == 409
    assert [row['kind'] for row in site.rows(server)] == ['trigger_crash_dump']
    assert refused(site, server, 'trigger_crash_dump', {}) == (
        400,
        "Invalid input for field/attribute trigger_crash_dump. Value: {}. {} is not of type 'null'",
    )


@pytest.mark.parametrize('options', [{}, {'api__enable_instance_password': False}])
def test_rescue(make_site, options):
    """The password travels sealed; it is answered where passwords are."""
    site = make_site(**options)
    server = site.server(vm_state='error')
    site.conductor.calls.clear()
    response = act(site, server, 'rescue', {'adminPass': 'for-the-repair', 'rescue_image_ref': IMAGE}, user='bob')
    assert (response.status_int, response.json) == (200, {} if options else {'adminPass': 'for-the-repair'})
    (row,) = site.rows(server)
    assert (row['kind'], site.row(server)['task_state']) == ('rescue', 'rescuing')
    assert (row['args']['image']['id'], row['args']['image']['properties']['hw_disk_bus']) == (IMAGE, 'virtio')
    assert site.opened(server).admin_password == 'for-the-repair' and 'for-the-repair' not in str(row)
    assert site.conductor.calls == [('run_operation', {'operation': row['uuid']})]


def test_rescue_without_a_body(site):
    server = site.server()
    password = act(site, server, 'rescue').json['adminPass']
    (row,) = site.rows(server)
    assert row['args']['image'] is None
    assert site.opened(server).admin_password == password
    for body in ('x', {'rescue_image_ref': 'no-uuid'}, {'adminPass': 5}, {'other': 'x'}):
        assert refused(site, server, 'rescue', body)[0] == 400


def test_change_password(site):
    """It travels sealed, and is in no other place."""
    server = site.server()
    body = {'adminPass': 'for-the-agent'}
    assert refused(site, server, 'changePassword', body) == (409, 'QEMU guest agent is not enabled')
    with site.cell1.write() as conn:
        instances.set_system_metadata(conn, server, {'image_hw_qemu_guest_agent': 'yes'})
    site.conductor.calls.clear()
    assert act(site, server, 'changePassword', body, user='bob').status_int == 202
    (row,) = site.rows(server)
    assert (row['kind'], site.row(server)['task_state']) == ('set_admin_password', 'updating_password')
    assert site.ok('GET', f'/servers/{server}')['server']['status'] == 'PASSWORD'
    assert site.opened(server).admin_password == 'for-the-agent' and 'for-the-agent' not in str(row)
    assert site.conductor.calls == [('run_operation', {'operation': row['uuid']})]


def test_change_password_needs_keys(make_site):
    site = make_site(secrets__key_file='')
    server = site.server()
    with site.cell1.write() as conn:
        instances.set_system_metadata(conn, server, {'image_hw_qemu_guest_agent': 'yes'})
    assert refused(site, server, 'changePassword', {'adminPass': ''})[0] == 503
    assert site.rows(server) == []


def test_locked_servers(site):
    server = site.server(locked=True)
    assert refused(site, server, 'os-stop', user='bob') == (409, f'Instance {server} is locked')
    assert site.fault('DELETE', f'/servers/{server}', user='bob') == (409, f'Instance {server} is locked')
    assert act(site, server, 'os-stop').status_int == 202


def test_the_loser_of_a_race_gets_409(site, monkeypatch):
    from kilonova.api.services import server_operations

    server = site.server()
    stale = server_operations.find_server

    def late(backend, ctxt, uuid, **kwargs):
        found = stale(backend, ctxt, uuid, **kwargs)
        with site.cell1.write() as conn:
            instances.transition(conn, uuid, 'stop.start')
        return found

    monkeypatch.setattr('kilonova.api.wsgi.find_server', late)
    assert refused(site, server, 'os-stop') == (
        409,
        f"Cannot 'stop' instance {server} while it is in task_state powering-off",
    )
    assert site.rows(server) == []


# --- moves -----------------------------------------------------------------------------------------------------------
def test_resize(site, statements):
    """A resize stores the PCI requests of the new flavor in its operation."""
    small = site.flavor({'pci_passthrough:alias': 'gpu:1'})
    large = site.flavor({'pci_passthrough:alias': 'gpu:2'}, vcpus=2, ram=1024)
    server = site.server(flavor=small)
    site.conductor.calls.clear()
    response = act(site, server, 'resize', {'flavorRef': large}, user='bob')
    assert response.status_int == 202
    (row,) = site.rows(server)
    args = row['args']
    assert (row['kind'], args['migration_type'], args['host']) == ('resize', 'resize', None)
    assert object_of(args['flavor']).flavorid == large
    spec, old = object_of(args['request_spec']), object_of(args['old_request_spec'])
    assert (spec.flavor.flavorid, spec.pci_requests.requests[0].count, spec.num_instances) == (large, 2, 1)
    assert (old.flavor.flavorid, old.pci_requests.requests[0].count) == (small, 1)
    assert spec.pci_requests.requests[0].request_id != old.pci_requests.requests[0].request_id
    assert spec.ignore_hosts == ['h1']
    assert args['image']['properties']['hw_disk_bus'] == 'virtio' and args['image']['disk_format'] == 'qcow2'
    assert site.row(server)['task_state'] == 'resize_prep'
    ((method, message),) = site.conductor.calls
    assert (method, message) == ('migrate_server', {'operation': row['uuid']})
    with site.databases.api().read() as conn:
        stored = json.loads(request_specs.get(conn, server)['spec'])
    assert stored['nova_object.data']['flavor']['nova_object.data']['flavorid'] == small


def test_resize_to_the_same_host_is_the_operators_choice(make_site):
    site = make_site(allow_resize_to_same_host=True)
    server = site.server()
    act(site, server, 'resize', {'flavorRef': site.flavor()})
    assert object_of(site.rows(server)[0]['args']['request_spec']).ignore_hosts is None


def test_refused_resizes(make_site):
    site = make_site(quota__cores=4)
    flavor = site.flavor(disk=1)
    server = site.server(flavor=flavor)
    accelerated = site.flavor({'accel:device_profile': 'p'})
    unknown = site.flavor()
    site.ok('POST', f'/flavors/{unknown}/os-extra_specs', {'extra_specs': {'pci_passthrough:alias': 'nosuch:1'}})
    private = site.flavor(**{'os-flavor-access:is_public': False})
    for wanted, code, message in (
        ('99', 400, 'Flavor 99 could not be found.'),
        (private, 400, f'Flavor {private} could not be found.'),
        (flavor, 400, 'When resizing, instances must change flavor!'),
        (site.flavor(disk=0), 400, 'Resize to zero disk flavor is not allowed.'),
        (site.flavor(vcpus=5), 403, 'Quota exceeded for cores: Requested 4, but already used 1 of 4 cores'),
        (accelerated, 400, 'There is no accelerator service'),
        (unknown, 400, 'PCI alias nosuch is not defined'),
    ):
        got, text = refused(site, server, 'resize', {'flavorRef': wanted}, user='bob')
        assert got == code and message in text
    assert site.rows(server) == [] and site.row(server)['task_state'] is None


def test_a_disabled_flavor_is_none(site):
    from kilonova.db.queries import flavors

    flavor = site.flavor()
    server = site.server()
    with site.databases.api().write() as conn:
        conn.execute(flavors.flavors.update().where(flavors.flavors.c.flavorid == flavor).values(disabled=True))
    assert refused(site, server, 'resize', {'flavorRef': flavor}) == (400, f'Flavor {flavor} could not be found.')


def test_a_smaller_flavor_needs_no_quota(make_site):
    site = make_site(quota__cores=4)
    server = site.server(flavor=site.flavor(vcpus=4))
    with site.databases.api().write() as conn:
        from kilonova.db.models import api as models

        conn.execute(models.Quota.__table__.insert(), {'project_id': 'p1', 'resource': 'cores', 'hard_limit': 1})
    assert act(site, server, 'resize', {'flavorRef': site.flavor(vcpus=3)}).status_int == 202


def test_migrate(site):
    with site.databases.api().write() as conn:
        cells.map_hosts(conn, site.cell1.cell.id, ['h1', 'h2'])
    server, other = site.server(), site.server()
    assert act(site, server, 'migrate').status_int == 202
    args = site.rows(server)[0]['args']
    spec = object_of(args['request_spec'])
    assert (args['migration_type'], spec.ignore_hosts) == ('migration', ['h1'])
    # Nowhere in particular, but in its cell; how that is reached is nobody's business.
    where = spec.requested_destination
    assert ('host' in where, where.cell.uuid) == (False, site.cell1.cell.uuid)
    assert not any(name in where.cell for name in ('transport_url', 'database_connection'))
    assert act(site, other, 'migrate', {'host': 'h2'}).status_int == 202
    args = site.rows(other)[0]['args']
    assert (args['host'], object_of(args['request_spec']).requested_destination.host) == ('h2', 'h2')
    (told,) = site.ok('GET', f'/servers/{other}/os-instance-actions')['instanceActions']
    assert told['action'] == 'migrate'


def undefine_aliases(monkeypatch):
    """The API's file has other names for its aliases than when servers were made."""

    def unknown(aliases, name):
        raise pci_request.PciRequestAliasNotDefined(alias=name)

    monkeypatch.setattr(pci_request.Aliases, '__getitem__', unknown)


@pytest.mark.parametrize('action', ['migrate', 'evacuate', 'os-migrateLive'])
def test_moves_that_keep_the_flavor_need_no_alias_found_1_13(make_site, monkeypatch, action):
    alias = {'name': 'gpu', 'vendor_id': '10de', 'product_id': '13f1', 'live_migratable': 'true'}
    site = make_site(pci__alias=[json.dumps(alias)])
    server = site.server(flavor=site.flavor({'pci_passthrough:alias': 'gpu:2'}))
    _, extra = instances.split(site.row(server))
    (made,) = json.loads(extra['pci_requests'])
    undefine_aliases(monkeypatch)
    body = {'host': None, 'block_migration': 'auto'} if action == 'os-migrateLive' else {}
    monkeypatch.setattr('kilonova.api.services.evacuate._check_down', lambda *args: None)
    response = act(site, server, action, None if action == 'migrate' else body, version='2.30')
    assert response.status_int in (200, 202), response.text
    spec = object_of(site.rows(server)[0]['args']['request_spec'])
    (request,) = spec.pci_requests.requests
    assert (request.alias_name, request.count, request.spec) == ('gpu', 2, made['spec'])
    # In a move the server holds devices at both hosts, by requests of their own.
    assert request.request_id != made['request_id']


def test_a_resize_needs_the_aliases_of_the_new_flavor_found_1_13(site, monkeypatch):
    server = site.server(flavor=site.flavor({'pci_passthrough:alias': 'gpu:1'}))
    plain, large = site.flavor(), site.flavor({'pci_passthrough:alias': 'gpu:2'})
    undefine_aliases(monkeypatch)
    assert refused(site, server, 'resize', {'flavorRef': large}) == (400, 'PCI alias gpu is not defined')
    assert act(site, server, 'resize', {'flavorRef': plain}).status_int == 202
    spec = object_of(site.rows(server)[0]['args']['request_spec'])
    assert spec.pci_requests.requests == []


def test_refused_migrations(site):
    """A cold migration to the server's own host, to an unknown host, or by a member is refused. Before 2.56 the
    host is ignored."""
    server = site.server()
    assert refused(site, server, 'migrate', {'host': 'h1'}) == (
        400,
        'Cannot migrate to the host where the server exists.',
    )
    assert refused(site, server, 'migrate', {'host': 'nosuch'}) == (400, 'Compute host nosuch could not be found.')
    assert refused(site, server, 'migrate', {})[0] == 400
    assert refused(site, server, 'migrate', user='bob')[0] == 403
    assert act(site, server, 'migrate', {'host': 'ignored'}, version='2.55').status_int == 202


def resized(site, **more):
    server = site.server(vm_state='resized', host='h2', **more)
    with site.cell1.write() as conn:
        row = migrations.create(
            conn,
            {
                'uuid': '11111111-2222-3333-4444-555555555555',
                'instance_uuid': server,
                'status': 'finished',
                'migration_type': 'resize',
                'source_compute': 'h1',
                'dest_compute': 'h2',
            },
        )
    return server, row['uuid']


@pytest.mark.parametrize(
    ('action', 'kind', 'status', 'task', 'code', 'method'),
    [
        ('confirmResize', 'confirm', 'confirming', None, 204, 'confirm_resize'),
        ('revertResize', 'revert', 'reverting', 'resize_reverting', 202, 'revert_resize'),
    ],
)
def test_confirm_and_revert(site, action, kind, status, task, code, method):
    server, migration = resized(site)
    site.conductor.calls.clear()
    assert act(site, server, action, user='bob').status_int == code
    (row,) = site.rows(server)
    assert (row['kind'], row['args']['migration_uuid']) == (kind, migration)
    assert site.row(server)['task_state'] == task
    assert site.conductor.calls == [(method, {'operation': row['uuid']})]
    with site.cell1.read() as conn:
        assert migrations.get(conn, uuid=migration)['status'] == status
    for other in ('confirmResize', 'revertResize'):
        assert refused(site, server, other)[0] in (400, 409)
    assert len(site.rows(server)) == 1


def test_revert_carries_the_old_flavors_spec(site):
    small = site.flavor({'pci_passthrough:alias': 'gpu:1'})
    large = site.flavor({'pci_passthrough:alias': 'gpu:2'})
    server, _ = resized(site, flavor=small)
    row, extra = instances.split(site.row(server))
    server_object = objects.Instance.from_row(None, row, extra)
    old_requests = server_object.pci_requests
    server_object.old_flavor = server_object.flavor
    server_object.flavor = objects.Flavor.from_row(None, {**site_flavor(site, large)})
    server_object.migration_context = objects.MigrationContext(
        instance_uuid=server, migration_id=1, old_pci_requests=old_requests, new_pci_requests=None
    )
    with site.cell1.write() as conn:
        instances.update_extra(conn, server, server_object.extra_values(['flavor', 'migration_context']))
    act(site, server, 'revertResize')
    spec = object_of(site.rows(server)[0]['args']['request_spec'])
    assert spec.flavor.flavorid == small
    assert spec.pci_requests.requests[0].request_id == old_requests.requests[0].request_id


def site_flavor(site, flavor):
    from kilonova.db.queries import flavors, owners

    with site.databases.api().read() as conn:
        return flavors.get(conn, flavor, owners.ALL)


def test_nothing_to_confirm(site):
    server = site.server(vm_state='resized')
    for action in ('confirmResize', 'revertResize'):
        assert refused(site, server, action) == (400, 'Instance has not been resized.')


# --- delete and reset ------------------------------------------------------------------------------------------------
def test_delete(site, statements):
    server = site.server()
    site.conductor.calls.clear()
    statements.clear()
    response = site.request('DELETE', f'/servers/{server}', user='bob')
    assert response.status_int == 204 and not response.body
    assert len([1 for _, statement in statements if statement != 'COMMIT']) <= 6
    (row,) = site.rows(server)
    assert (row['kind'], row['slot']) == ('delete', 'run')
    assert site.row(server)['task_state'] == 'deleting'
    assert site.conductor.calls == [('terminate_instance', {'operation': row['uuid']})]
    assert site.request('DELETE', f'/servers/{server}').status_int == 204
    assert len(site.rows(server)) == 1


def test_delete_beside_a_running_operation(site):
    """operations.md rule 17."""
    server = site.server()
    act(site, server, 'os-stop')
    assert site.request('DELETE', f'/servers/{server}').status_int == 204
    rows = {row['kind']: row for row in site.rows(server)}
    assert rows['stop']['cancelled'] and rows['delete']['slot'] == 'wait'


def test_early_delete(site):
    """A delete before the hand-over to a cell removes the build request, and the boot's operation is cancelled
    (operations.md rule 18)."""
    waiting = site.create()
    assert site.request('DELETE', f'/servers/{waiting}').status_int == 204
    assert site.fault('GET', f'/servers/{waiting}')[0] == 404
    (row,) = site.rows(waiting)
    assert row['kind'] == 'boot' and row['cancelled']


def test_early_delete_that_comes_too_late_deletes_in_the_cell(site, monkeypatch):
    from kilonova.db.queries import operations

    waiting = site.create()
    early = operations.delete_build_request

    def late(api_db, uuid):
        site.hand_over(uuid, vm_state='active', host='h1')
        return early(api_db, uuid)

    monkeypatch.setattr(operations, 'delete_build_request', late)
    assert site.request('DELETE', f'/servers/{waiting}').status_int == 204
    assert [row['kind'] for row in site.rows(waiting)] == ['delete']


def test_a_server_that_never_got_a_host_can_be_deleted(site):
    server = site.server(site.cell0, vm_state='error', host=None, launched_at=None)
    assert site.request('DELETE', f'/servers/{server}').status_int == 204
    assert [row['kind'] for row in site.rows(server)] == ['delete']


def test_reset_state(site):
    server = site.server()
    act(site, server, 'os-stop')
    assert act(site, server, 'os-resetState', {'state': 'error'}).status_int == 202
    row = site.row(server)
    assert (row['vm_state'], row['task_state']) == ('error', None)
    assert site.rows(server)[0]['cancelled']
    assert refused(site, server, 'os-resetState', {'state': 'error'}, user='bob')[0] == 403
    assert refused(site, server, 'os-resetState', {'state': 'stopped'})[0] == 400
    doomed = site.server()
    site.request('DELETE', f'/servers/{doomed}')
    assert act(site, doomed, 'os-resetState', {'state': 'active'}).status_int == 202
    assert [(row['kind'], row['cancelled']) for row in site.rows(doomed)] == [('delete', False)]
    assert refused(site, site.create(), 'os-resetState', {'state': 'active'})[0] == 404


def test_other_projects_act_on_nothing(site):
    server = site.server()
    assert refused(site, server, 'os-stop', user='bob', project=OTHER) == (
        404,
        f'Instance {server} could not be found.',
    )
