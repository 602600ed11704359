"""os-quota-sets, os-quota-class-sets, and what they mean for creates and resizes."""

from __future__ import annotations

import json
import threading

import pytest

from kilonova.api.services import quota
from kilonova.db.models import api as models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import operations
from tests.unit.api.conftest import IMAGE, PROJECT

QUOTAS = {'cores', 'instances', 'key_pairs', 'metadata_items', 'ram', 'server_group_members', 'server_groups'}
INJECTED = {'injected_file_content_bytes', 'injected_file_path_bytes', 'injected_files'}
NETWORK = {'fixed_ips', 'floating_ips', 'security_group_rules', 'security_groups'}
VERSIONS = [
    ('2.1', QUOTAS | INJECTED | NETWORK),
    ('2.35', QUOTAS | INJECTED | NETWORK),
    ('2.36', QUOTAS | INJECTED),
    ('2.56', QUOTAS | INJECTED),
    ('2.57', QUOTAS),
    ('2.104', QUOTAS),
]
P1 = '/os-quota-sets/p1'


def put(site, path=P1, version='2.104', **values):
    return site.ok('PUT', path, {'quota_set': values}, version=version)['quota_set']


def refused(site, path=P1, **values):
    return site.fault('PUT', path, {'quota_set': values})


def group(site, user='bob'):
    with site.databases.api().write() as conn:
        conn.execute(
            models.InstanceGroup.__table__.insert(), {'uuid': user, 'name': 'g', 'user_id': user, 'project_id': 'p1'}
        )


# --- sets ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(('version', 'keys'), VERSIONS)
@pytest.mark.parametrize('path', ['', '/detail', '/defaults'])
def test_quota_sets_of_each_version(site, version, keys, path):
    answer = site.ok('GET', f'{P1}{path}', version=version, user='bob')['quota_set']
    assert set(answer) == keys | {'id'} and answer['id'] == 'p1'
    if path == '/detail':
        assert answer['cores'] == {'limit': 20, 'in_use': 0, 'reserved': 0}
    else:
        assert answer['cores'] == 20


@pytest.mark.parametrize(('version', 'keys'), VERSIONS)
def test_update_of_each_version(site, version, keys):
    answer = put(site, version=version, cores=5, ram='7')
    assert set(answer) == keys and (answer['cores'], answer['ram'], answer['instances']) == (5, 7, 10)
    assert site.ok('GET', P1, user='bob')['quota_set']['cores'] == 5


def test_every_resource_can_be_set(site):
    values = {name: number for number, name in enumerate(sorted(QUOTAS | INJECTED | NETWORK), 1)}
    assert put(site, version='2.1', **values) == values
    assert {**site.ok('GET', P1, version='2.1')['quota_set'], 'id': None} == {**values, 'id': None}
    assert site.request('DELETE', P1).status_int == 202
    shown = site.ok('GET', P1, version='2.1')['quota_set']
    assert shown == site.ok('GET', f'{P1}/defaults', version='2.1')['quota_set']
    assert (shown['fixed_ips'], shown['injected_file_path_bytes']) == (-1, 255)


@pytest.mark.parametrize(
    ('version', 'values'),
    [
        ('2.104', {'nosuch': 1}),
        ('2.36', {'fixed_ips': 1}),
        ('2.57', {'injected_files': 1}),
        ('2.1', {'cores': -2}),
        ('2.1', {'cores': 'x'}),
        ('2.1', {'cores': 2**31}),
        ('2.1', {'cores': None}),
        ('2.1', {'force': 'maybe'}),
        ('2.1', {'cores': 1.5}),
        ('2.1', {'cores': ''}),
    ],
)
def test_what_cannot_be_set(site, version, values):
    assert site.fault('PUT', P1, {'quota_set': values}, version=version)[0] == 400
    assert site.fault('PUT', P1, {}, version=version)[0] == 400


def test_what_the_oldest_clients_send_besides_is_dropped(site):
    answer = site.ok('PUT', P1, {'quota_set': {'cores': 1, 'nosuch': 2}}, mount='/v2', version=None)['quota_set']
    assert answer['cores'] == 1 and set(answer) == QUOTAS | INJECTED | NETWORK


def test_a_limit_below_what_is_used_needs_force(site):
    site.server(flavor=site.flavor(vcpus=1))
    group(site)
    told = 'Quota limit {} for {} must be greater than or equal to already used and reserved 1.'
    assert refused(site, cores=0) == (400, told.format(0, 'cores'))
    assert refused(site, server_groups=0) == (400, told.format(0, 'server_groups'))
    assert site.ok('GET', P1)['quota_set']['cores'] == 20
    assert put(site, cores=1)['cores'] == 1
    assert put(site, cores=0, force=True)['cores'] == 0
    assert put(site, cores=-1)['cores'] == -1
    assert put(site, key_pairs=0, metadata_items=0)['key_pairs'] == 0


def test_users_have_limits_of_their_own(site):
    site.server(flavor=site.flavor(vcpus=2))
    site.server(flavor=site.flavor(vcpus=3), user='alice')
    site.create(site.flavor(vcpus=1))
    of_bob = f'{P1}?user_id=bob'
    put(site, of_bob, cores=4)
    assert site.ok('GET', of_bob)['quota_set']['cores'] == 4
    assert site.ok('GET', P1)['quota_set']['cores'] == 20
    assert site.ok('GET', f'{P1}?user_id=alice', user='bob')['quota_set']['cores'] == 20
    detail = f'{P1}/detail'
    assert site.ok('GET', f'{detail}?user_id=bob')['quota_set']['cores'] == {'limit': 4, 'in_use': 3, 'reserved': 0}
    assert site.ok('GET', detail)['quota_set']['cores'] == {'limit': 20, 'in_use': 6, 'reserved': 0}
    assert site.ok('GET', detail)['quota_set']['instances']['in_use'] == 3
    assert refused(site, of_bob, cores=2) == (
        400,
        'Quota limit 2 for cores must be greater than or equal to already used and reserved 3.',
    )
    assert refused(site, f'{P1}?user_id=alice', cores=17) == (
        400,
        'Quota limit 17 for cores must be less than or equal to 16.',
    )
    assert refused(site, f'{P1}?user_id=alice', cores=-1)[0] == 400
    assert put(site, f'{P1}?user_id=alice', cores=16)['cores'] == 16
    assert refused(site, cores=19) == (
        400,
        'Quota limit 19 for cores must be greater than or equal to already used and reserved 20.',
    )
    assert site.request('DELETE', of_bob).status_int == 202
    assert site.ok('GET', of_bob)['quota_set']['cores'] == 20
    assert site.ok('GET', f'{P1}?user_id=alice')['quota_set']['cores'] == 16
    site.request('DELETE', P1)
    assert site.ok('GET', f'{P1}?user_id=alice')['quota_set']['cores'] == 20


def test_a_project_without_limit_leaves_its_users_free(site):
    put(site, cores=-1)
    assert put(site, f'{P1}?user_id=bob', cores=-1)['cores'] == -1
    assert put(site, f'{P1}?user_id=bob', cores=1000)['cores'] == 1000


def test_quotas_of_other_projects(site):
    put(site, '/os-quota-sets/p2', cores=7)
    for path in ('', '/detail'):
        assert site.fault('GET', f'/os-quota-sets/p2{path}', user='bob')[0] == 403
    assert site.ok('GET', '/os-quota-sets/p2')['quota_set']['cores'] == 7
    assert site.ok('GET', '/os-quota-sets/p2/defaults', user='bob')['quota_set']['cores'] == 20
    for method in ('PUT', 'DELETE'):
        verb = 'update' if method == 'PUT' else 'delete'
        assert site.fault(method, P1, {'quota_set': {'cores': 1}}, user='bob') == (
            403,
            f"Policy doesn't allow os_compute_api:os-quota-sets:{verb} to be performed.",
        )


@pytest.mark.parametrize('method', ['GET', 'PUT', 'DELETE'])
def test_unknown_parameters_since_2_75(site, method):
    body = {'quota_set': {}}
    assert site.request(method, f'{P1}?nosuch=1', body, version='2.74').status_int in (200, 202)
    assert site.fault(method, f'{P1}?nosuch=1', body, version='2.75')[0] == 400


# --- classes ---------------------------------------------------------------------------------------------------------
GROUPS = {'server_groups', 'server_group_members'}


@pytest.mark.parametrize(
    ('version', 'keys'),
    [
        ('2.1', QUOTAS - GROUPS | INJECTED | NETWORK),
        ('2.49', QUOTAS - GROUPS | INJECTED | NETWORK),
        ('2.50', QUOTAS | INJECTED),
        ('2.56', QUOTAS | INJECTED),
        ('2.57', QUOTAS),
    ],
)
def test_quota_classes_of_each_version(site, version, keys):
    shown = site.ok('GET', '/os-quota-class-sets/default', version=version)['quota_class_set']
    assert set(shown) == keys | {'id'} and shown['id'] == 'default' and shown['cores'] == 20
    changed = site.ok('PUT', '/os-quota-class-sets/default', {'quota_class_set': {'cores': 3}}, version=version)
    assert set(changed['quota_class_set']) == keys and changed['quota_class_set']['cores'] == 3


def test_the_default_class_counts_for_projects_without_their_own(site):
    put(site, '/os-quota-sets/p2', cores=9)
    for cores in (5, 6):
        site.ok('PUT', '/os-quota-class-sets/default', {'quota_class_set': {'cores': cores, 'ram': -1}})
    site.ok('PUT', '/os-quota-class-sets/other', {'quota_class_set': {'cores': 1}})
    assert site.ok('GET', P1)['quota_set']['cores'] == 6
    assert site.ok('GET', f'{P1}/defaults')['quota_set']['cores'] == 6
    assert site.ok('GET', '/os-quota-sets/p2')['quota_set']['cores'] == 9
    assert site.ok('GET', '/os-quota-class-sets/other')['quota_class_set']['cores'] == 1
    assert site.ok('GET', '/os-quota-class-sets/other')['quota_class_set']['ram'] == 51200


@pytest.mark.parametrize(
    ('version', 'values'),
    [
        ('2.104', {'nosuch': 1}),
        ('2.50', {'fixed_ips': 1}),
        ('2.57', {'injected_files': 1}),
        ('2.1', {'cores': -2}),
        ('2.1', {'force': True}),
    ],
)
def test_what_a_class_cannot_be_given(site, version, values):
    assert site.fault('PUT', '/os-quota-class-sets/default', {'quota_class_set': values}, version=version)[0] == 400


# --- creates ---------------------------------------------------------------------------------------------------------
def body(flavor, **values):
    return {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none', **values}}


def test_a_users_own_limit_refuses_a_create(site):
    flavor = site.flavor(vcpus=2)
    put(site, f'{P1}?user_id=bob', cores=5)
    for _ in range(2):
        site.create(flavor)
    assert site.fault('POST', '/servers', body(flavor), user='bob') == (
        403,
        'Quota exceeded for cores: Requested 2, but already used 4 of 5 cores',
    )
    site.create(flavor, user='alice')
    made = site.ok('POST', '/servers', body(site.flavor(vcpus=1), max_count=3, return_reservation_id=True), user='bob')
    assert made['reservation_id']
    assert site.ok('GET', f'{P1}/detail?user_id=bob')['quota_set']['cores']['in_use'] == 5


def test_a_server_in_hand_over_counts_once(site):
    """In the cell already, and still a build request."""
    uuid = site.create(site.flavor(vcpus=2, ram=100))
    api = site.databases.api()
    with api.read() as conn:
        request = dict(conn.execute(models.BuildRequest.__table__.select()).mappings().one())
    site.hand_over(uuid)
    request.pop('id')
    with api.write() as conn:
        conn.execute(models.BuildRequest.__table__.insert(), request)
    detail = site.ok('GET', f'{P1}/detail')['quota_set']
    assert [detail[name]['in_use'] for name in ('instances', 'cores', 'ram')] == [1, 2, 100]


def test_soft_deleted_servers_do_not_count(site):
    site.server(vm_state='soft-delete')
    site.server(vm_state='error')
    assert site.ok('GET', f'{P1}/detail')['quota_set']['instances']['in_use'] == 1


def everything(site):
    """Rows that a create writes, by table."""
    found = {}
    with site.databases.api().read() as conn:
        for model in (models.BuildRequest, models.RequestSpec, models.InstanceMapping, models.Operation):
            found[model.__tablename__] = len(conn.execute(model.__table__.select()).all())
    return found


NOTHING = dict.fromkeys(('build_requests', 'request_specs', 'instance_mappings', 'operations'), 0)


@pytest.fixture
def rival(monkeypatch):
    """``rival(act)``: the next create or resize meets ``act``, which happens between its check and its write."""
    acts = []
    for name in ('accept_create', 'accept'):
        inner = getattr(operations, name)

        def accept(*args, inner=inner, **kwargs):
            if acts:
                acts.pop()()
            return inner(*args, **kwargs)

        monkeypatch.setattr(operations, name, accept)
    monkeypatch.setattr(quota, 'PAUSES', (0.0, 0.0))
    return acts.append


def test_creates_that_race_beyond_the_limit(make_site, rival):
    """Of creates that race beyond the limit the surplus is refused and removed again. Nothing of it is left over."""
    site = make_site(quota__instances=3)
    flavor = site.flavor()
    rival(lambda: site.create(flavor, min_count=2))
    before = everything(site)
    assert before == NOTHING
    site.conductor.calls.clear()
    assert site.fault('POST', '/servers', body(flavor, min_count=2), user='bob') == (
        403,
        'Quota exceeded for instances: Requested 2, but already used 2 of 3 instances',
    )
    assert everything(site) == dict.fromkeys(NOTHING, 2)
    assert site.conductor.names() == ['schedule_and_build_instances']
    assert len(site.ok('GET', '/servers', user='bob')['servers']) == 2


def test_what_lost_a_race_is_tried_again_with_what_is_left(make_site, rival):
    site = make_site(quota__instances=3)
    flavor = site.flavor()
    rival(lambda: site.create(flavor, min_count=2))
    site.ok('POST', '/servers', body(flavor, min_count=1, max_count=2), user='bob')
    assert everything(site) == dict.fromkeys(NOTHING, 3)


def test_without_the_recheck_a_race_exceeds_the_limit(make_site, rival):
    site = make_site(quota__instances=3, quota__recheck_quota=False)
    flavor = site.flavor()
    rival(lambda: site.create(flavor, min_count=2))
    site.ok('POST', '/servers', body(flavor, min_count=2), user='bob')
    assert everything(site) == dict.fromkeys(NOTHING, 4)


def test_a_conductor_that_was_quicker_unwinds_what_is_too_much(make_site, rival):
    """Its row is taken already: it is cancelled as by an early delete."""
    site = make_site(quota__instances=2)
    flavor = site.flavor()
    rival(lambda: site.create(flavor, min_count=2))
    inner = quota.recheck

    def recheck(backend, *args):
        with site.databases.api().write() as conn:
            conn.execute(operations.operations.update().values(owner='a conductor'))
        return inner(backend, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, 'recheck', recheck)
        assert site.fault('POST', '/servers', body(flavor), user='bob')[0] == 403
    with site.databases.api().read() as conn:
        rows = conn.execute(operations.operations.select()).mappings().all()
    assert sorted(row['cancelled'] for row in rows) == [False, False, True]
    assert everything(site)['build_requests'] == 2


def test_a_server_that_is_in_a_cell_already_is_deleted(make_site, rival):
    site = make_site(quota__instances=1)
    flavor = site.flavor()
    rival(lambda: site.create(flavor, name='rival'))
    inner = quota.recheck

    def recheck(backend, *args):
        found = site.ok('GET', '/servers?name=%5Eslow%24', user='bob')['servers']
        if found:
            site.hand_over(found[0]['id'], host='h1')
        return inner(backend, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, 'recheck', recheck)
        assert site.fault('POST', '/servers', body(flavor, name='slow'), user='bob')[0] == 403
    (uuid,) = [server['id'] for server in site.ok('GET', '/servers', user='bob')['servers'] if server['name'] == 'slow']
    assert site.row(uuid)['task_state'] == 'deleting'
    assert [row['kind'] for row in site.rows(uuid)] == ['delete']


def test_many_at_once_never_exceed_the_limit(make_site):
    """Many creates at once in several threads never exceed the limit, and those that fit are accepted."""
    site = make_site(quota__instances=3)
    flavor, codes = site.flavor(), []
    start = threading.Barrier(6)

    def one():
        start.wait()
        codes.append(site.request('POST', '/servers', body(flavor), user='bob').status_int)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) <= {202, 403} and 1 <= codes.count(202) <= 3
    assert everything(site) == dict.fromkeys(NOTHING, codes.count(202))


# --- resizes ---------------------------------------------------------------------------------------------------------
def resize(site, server, flavor, user='bob'):
    return site.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': flavor}}, user=user)


def test_a_resize_under_way_counts_with_what_it_will_have(make_site):
    site = make_site(quota__cores=10)
    small, large = site.flavor(vcpus=1, ram=100), site.flavor(vcpus=8, ram=50)
    server = site.server(flavor=small)
    assert resize(site, server, large).status_int == 202
    detail = site.ok('GET', f'{P1}/detail')['quota_set']
    assert (detail['cores']['in_use'], detail['ram']['in_use']) == (8, 100)
    other = site.server(flavor=small)
    response = resize(site, other, large)
    assert response.status_int == 403
    assert response.json['forbidden']['message'] == (
        'Quota exceeded for cores: Requested 7, but already used 9 of 10 cores'
    )


def test_resizes_that_race_beyond_the_limit(make_site, rival):
    """The loser is as it was before: no row, no task, no story."""
    site = make_site(quota__cores=10)
    small, large = site.flavor(vcpus=1), site.flavor(vcpus=8)
    first, second = site.server(flavor=small), site.server(flavor=small)
    rival(lambda: resize(site, first, large))
    response = resize(site, second, large)
    assert response.status_int == 403
    assert 'Requested 7, but already used 9 of 10 cores' in response.text
    row = site.row(second)
    assert (row['vm_state'], row['task_state'], site.rows(second)) == ('active', None, [])
    assert site.ok('GET', f'/servers/{second}/os-instance-actions')['instanceActions'] == []
    assert site.row(first)['task_state'] == 'resize_prep'
    assert site.conductor.names().count('migrate_server') == 1


def test_a_resize_that_a_conductor_has_already_is_unwound(make_site, rival):
    site = make_site(quota__cores=10)
    small, large = site.flavor(vcpus=1), site.flavor(vcpus=8)
    first, second = site.server(flavor=small), site.server(flavor=small)
    rival(lambda: resize(site, first, large))
    inner = quota.recheck

    def recheck(backend, *args):
        with site.cell1.write() as conn:
            conn.execute(cell_models.Operation.__table__.update().values(owner='a conductor'))
        return inner(backend, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, 'recheck', recheck)
        assert resize(site, second, large).status_int == 403
    (row,) = site.rows(second)
    assert row['cancelled'] and not site.rows(first)[0]['cancelled']


# --- restores --------------------------------------------------------------------------------------------------------
def restore(site, server):
    return site.request('POST', f'/servers/{server}/action', {'restore': None}, user='bob')


def two_deleted(make_site, driver, **options):
    """A site where one of two soft-deleted servers of one core each fits."""
    site = make_site(reclaim_instance_interval=86400, quota__driver=f'kilonova.quota.{driver}', **options)
    site.limits.registered = {'servers': 10, 'class:VCPU': 1}
    flavor = site.flavor(vcpus=1)
    # One after the other: neither counts.
    first, second = [site.server(flavor=flavor, cell=cell, vm_state='soft-delete') for cell in (site.cell1, site.cell2)]
    put(site, cores=1)
    site.conductor.calls.clear()
    return site, first, second


DRIVERS = pytest.mark.parametrize('driver', [quota.DB, quota.UNIFIED])


@DRIVERS
def test_a_restore_under_way_counts_for_the_next_one(make_site, driver):
    site, first, second = two_deleted(make_site, driver)
    assert restore(site, first).status_int == 202
    response = restore(site, second)
    assert response.status_int == 403 and 'Requested 1, but already used 1 of 1' in response.text
    assert site.row(second, site.cell2)['task_state'] is None
    assert site.conductor.names() == ['run_operation']


@DRIVERS
def test_restores_that_race_beyond_the_limit(make_site, rival, driver):
    """The loser is as it was before: no row, no task, no story."""
    site, first, second = two_deleted(make_site, driver)
    rival(lambda: restore(site, first))
    response = restore(site, second)
    assert response.status_int == 403 and 'Requested 1, but already used 1 of 1' in response.text
    row = site.row(second, site.cell2)
    assert (row['vm_state'], row['task_state'], site.rows(second)) == ('soft-delete', None, [])
    assert site.ok('GET', f'/servers/{second}/os-instance-actions')['instanceActions'] == []
    assert site.row(first)['task_state'] == 'restoring'
    assert site.conductor.names() == ['run_operation']


def test_a_restore_that_meets_a_create_is_taken_back(make_site, rival):
    site, first, _ = two_deleted(make_site, quota.DB)
    flavor = site.flavor(vcpus=1)
    rival(lambda: site.create(flavor))
    assert restore(site, first).status_int == 403
    assert (site.row(first)['task_state'], site.rows(first)) == (None, [])


def test_a_restore_that_a_conductor_has_already_is_unwound(make_site, rival):
    site, first, second = two_deleted(make_site, quota.DB)
    rival(lambda: restore(site, first))
    inner = quota.recheck

    def recheck(backend, *args, **kwargs):
        with site.cell2.write() as conn:
            conn.execute(cell_models.Operation.__table__.update().values(owner='a conductor'))
        return inner(backend, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, 'recheck', recheck)
        assert restore(site, second).status_int == 403
    (row,) = site.rows(second)
    assert row['cancelled'] and not site.rows(first)[0]['cancelled']


def test_without_the_recheck_restores_that_race_exceed_the_limit(make_site, rival):
    site, first, second = two_deleted(make_site, quota.DB, quota__recheck_quota=False)
    rival(lambda: restore(site, first))
    assert restore(site, second).status_int == 202


def test_the_limits_of_the_servers_user_count(site):
    small, large = site.flavor(vcpus=1), site.flavor(vcpus=4)
    server = site.server(flavor=small)
    put(site, f'{P1}?user_id=bob', cores=2)
    response = resize(site, server, large, user='admin')
    assert response.status_int == 403
    assert json.loads(response.text)['forbidden']['message'] == (
        'Quota exceeded for cores: Requested 3, but already used 1 of 2 cores'
    )


def test_nothing_of_the_network_is_bounded_here_found_1_18(site):
    """The network service has quotas of its own; -1 is no limit."""
    shown = site.ok('GET', f'/os-quota-sets/{PROJECT}', version='2.35')['quota_set']
    assert {name: shown[name] for name in ('floating_ips', 'fixed_ips', 'security_groups', 'security_group_rules')} == {
        'floating_ips': -1,
        'fixed_ips': -1,
        'security_groups': -1,
        'security_group_rules': -1,
    }
    assert site.ok('GET', '/limits', version='2.35')['limits']['absolute']['maxTotalFloatingIps'] == -1
