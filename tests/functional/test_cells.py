"""A cloud of two cells, each with a database, a message queue and a conductor of its own; and what is left when the
database of one of them is silent."""

from __future__ import annotations

import uuid

import pytest

from kilonova.db.queries import archive, cell_changes
from tests.fixtures.cloud import GPUS, IMAGE_ID, OTHER_PROJECT, PROJECT

HERE, THERE, BESIDE = 'gpu1', 'gpu2', 'gpu3'
CELLS = {'cell1': [HERE], 'cell2': [THERE, BESIDE]}
HOSTS = {**GPUS, BESIDE: ['0000:c5:00.0', '0000:c6:00.0']}


@pytest.fixture
def cloud(make_cloud):
    """gpu1 in cell1; gpu2 and gpu3 in cell2."""
    return make_cloud(HOSTS, cells=CELLS)


def boot_on(cloud, host, flavor, **more):
    return cloud.boot(flavor, availability_zone=f'nova:{host}', **more)


def listed(cloud, query='', **more):
    return [server['id'] for server in cloud.ok('GET', f'/servers{query}', **more)['servers']]


def test_servers_of_two_cells(cloud):
    """Servers of two cells boot, appear in lists, stop, resize within their cell and are deleted. Messages go over
    the queue of the host's cell."""
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    here, there = boot_on(cloud, HERE, small, name='a'), boot_on(cloud, THERE, small, name='b')
    anywhere = [cloud.boot(cloud.flavor(), name=name) for name in 'cd']
    assert [cloud.host_of(server) for server in (here, there)] == [HERE, THERE]
    for name, hosts in CELLS.items():
        with cloud.cell_named(name).read() as conn:
            found = {row.uuid for row in conn.exec_driver_sql('SELECT uuid FROM instances WHERE deleted = 0')}
        assert found == {server for server in (here, there, *anywhere) if cloud.host_of(server) in hosts}
    assert sorted(listed(cloud)) == sorted([here, there, *anywhere])
    assert len(cloud.ok('GET', '/servers/detail')['servers']) == 4
    for action, status in (('os-stop', 'SHUTOFF'), ('os-start', 'ACTIVE')):
        cloud.action(there, action)
        assert (cloud.status(there), cloud.status(here)) == (status, 'ACTIVE')
    cloud.assert_clean()
    cloud.action(there, 'resize', {'flavorRef': large})
    assert (cloud.status(there), cloud.host_of(there)) == ('VERIFY_RESIZE', BESIDE), cloud.story(there)
    cloud.action(there, 'confirmResize')
    assert len(cloud.hostdevs(there)) == 2
    cloud.assert_clean()
    assert len(cloud.ok('GET', '/os-hypervisors')['hypervisors']) == 3
    assert [move['instance_uuid'] for move in cloud.ok('GET', '/os-migrations')['migrations']] == [there]
    for server in (here, there, *anywhere):
        assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    cloud.assert_empty()


def test_a_move_stays_in_the_cell(cloud):
    """However empty the hosts of others are; and where its own has no host for it, it says so and stays as it was."""
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    here, there = boot_on(cloud, HERE, small), boot_on(cloud, THERE, small)
    for server, action, body in (
        (here, 'resize', {'flavorRef': large}),
        (here, 'migrate', None),
        (here, 'migrate', {'host': BESIDE}),
    ):
        # The filled host of its own cell is the only other one there.
        cloud.action(server, action, body)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', HERE)
        told = str(cloud.story(server)[0][2])
        considered = 1 if isinstance(body, dict) and 'host' in body else 3
        assert f'No valid host was found. {considered} host' in told, told
        assert f'{min(considered, 2)} in another cell' in told, told
        assert len(cloud.hostdevs(server)) == 1
        cloud.assert_clean()
    filler = boot_on(cloud, THERE, cloud.flavor(vcpus=1))
    cloud.action(there, 'migrate')
    assert (cloud.status(there), cloud.host_of(there)) == ('VERIFY_RESIZE', BESIDE), cloud.story(there)
    cloud.action(there, 'revertResize')
    assert cloud.host_of(there) == THERE
    for server in (here, there, filler):
        cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()


def test_pages_and_orders_over_cells(cloud):
    """Each page begins behind the last server of the one before, in whichever cell that is; in any order."""
    flavor = cloud.flavor()
    names = ['m', 'B', 'a', 'Z', 'ä', 'b']
    servers = {name: boot_on(cloud, (HERE, THERE)[number % 2], flavor, name=name) for number, name in enumerate(names)}
    doomed = cloud.create(cloud.flavor(vcpus=999), name='k')['server']['id']
    cloud.settle()
    assert cloud.status(doomed) == 'ERROR', 'it is in cell0'
    by_id = {**{server: name for name, server in servers.items()}, doomed: 'k'}
    for query in (
        '',
        'sort_key=display_name&sort_dir=asc',
        'sort_key=display_name&sort_dir=desc',
        'sort_key=uuid',
        'sort_key=power_state&sort_dir=asc&sort_key=display_name&sort_dir=desc',
        'sort_key=task_state',
    ):
        whole = listed(cloud, f'?{query}')
        assert sorted(whole) == sorted(by_id)
        pages: list[str] = []
        while True:
            marker = f'&marker={pages[-1]}' if pages else ''
            page = listed(cloud, f'?limit=2&{query}{marker}')
            pages += page
            if len(page) < 2:
                break
        assert pages == whole, query
        if query == 'sort_key=display_name&sort_dir=asc':
            assert [by_id[server] for server in whole] == ['B', 'Z', 'a', 'b', 'k', 'm', 'ä']
    created = [server['created'] for server in cloud.ok('GET', '/servers/detail')['servers']]
    assert created == sorted(created, reverse=True)
    assert sorted(listed(cloud, '?name=^[A-Z]')) == sorted([servers['Z'], servers['B']])


def test_a_silent_cell_in_lists(cloud, caplog):
    """From 2.69 its servers are UNKNOWN, where nothing narrows the list; before and elsewhere they are left out."""
    flavor = cloud.flavor()
    here, there = boot_on(cloud, HERE, flavor), boot_on(cloud, THERE, flavor)
    gone = boot_on(cloud, THERE, flavor)
    cloud.request('DELETE', f'/servers/{gone}')
    cloud.settle()
    with cloud.silenced('cell2'):
        assert listed(cloud, version='2.68') == [here]
        assert 'Cell cell2 is not responding and hence only partial results are available' in caplog.text
        brief = cloud.ok('GET', '/servers', version='2.69')['servers']
        assert [sorted(server) for server in brief] == [['id', 'links', 'name'], ['id', 'links', 'status']]
        assert [server['id'] for server in brief] == [here, there]
        detail = cloud.ok('GET', '/servers/detail?all_tenants=1', version='2.69')['servers'][1]
        assert set(detail) == {'id', 'status', 'tenant_id', 'created', 'links'}
        assert (detail['id'], detail['status'], detail['tenant_id']) == (there, 'UNKNOWN', PROJECT)
        for query in ('?limit=9', '?sort_key=uuid', '?name=s'):
            assert listed(cloud, query) == [here]
        assert listed(cloud, user='bob', project=OTHER_PROJECT) == []
        assert cloud.request('GET', f'/servers?marker={there}').status_int == 503
    assert sorted(listed(cloud)) == sorted([there, here])


def test_a_silent_cell_in_show_and_actions(cloud):
    """From 2.69 the server is told as far as the API database knows it; nothing can be done with it."""
    flavor = cloud.flavor(vcpus=3)
    there = boot_on(cloud, THERE, flavor)
    with cloud.silenced('cell2'):
        server = cloud.show(there, version='2.69')
        created = server.pop('created')
        assert len(created) == 20
        assert server.pop('links')[0]['href'].endswith(f'/servers/{there}')
        assert server.pop('image')['id'] == IMAGE_ID
        flavor_shown = server.pop('flavor')
        assert (flavor_shown['vcpus'], flavor_shown['original_name']) == (3, 'f1')
        assert server == {
            'id': there,
            'status': 'UNKNOWN',
            'tenant_id': PROJECT,
            'user_id': 'admin',
            'OS-EXT-AZ:availability_zone': 'nova',
            'OS-EXT-STS:power_state': 0,
        }
        assert cloud.request('GET', f'/servers/{there}', version='2.68').status_int == 503
        assert cloud.request('GET', f'/servers/{there}', user='bob', project=OTHER_PROJECT).status_int == 404
        for method, path, body in (
            ('POST', '/action', {'os-stop': None}),
            ('DELETE', '', None),
            ('GET', '/os-instance-actions', None),
            ('GET', '/metadata', None),
            ('PUT', '', {'server': {'name': 'x'}}),
        ):
            response = cloud.request(method, f'/servers/{there}{path}', body)
            assert response.status_int == 503, (method, path, response.text)
        assert cloud.request('GET', f'/servers/{uuid.uuid4()}').status_int == 404
    assert cloud.status(there) == 'ACTIVE'
    cloud.assert_clean()


def test_a_silent_cell_and_everything_else(cloud):
    """While the database of a cell does not answer, lists of hosts and migrations contain those of the other cells,
    and boots go there. The cell's servers still count for quotas."""
    flavor = cloud.flavor(vcpus=2)
    there = boot_on(cloud, THERE, flavor)
    numbers = {node['hypervisor_hostname']: node['id'] for node in cloud.ok('GET', '/os-hypervisors')['hypervisors']}
    services = {row['host']: row['id'] for row in cloud.ok('GET', '/os-services?binary=nova-compute')['services']}
    usage = cloud.ok('GET', '/limits?reserved=1')['limits']['absolute']
    with cloud.silenced('cell2'):
        rows = cloud.ok('GET', '/os-services?binary=nova-compute')['services']
        assert [(row['host'], row['status']) for row in rows] == [
            (HERE, 'enabled'),
            (THERE, 'UNKNOWN'),
            (BESIDE, 'UNKNOWN'),
        ]
        rows = cloud.ok('GET', '/os-services?binary=nova-compute', version='2.68')['services']
        assert [row['host'] for row in rows] == [HERE]
        rows = cloud.ok('GET', '/os-hypervisors')['hypervisors']
        assert [row['hypervisor_hostname'] for row in rows] == [HERE]
        assert cloud.request('GET', f'/os-hypervisors/{numbers[HERE]}').status_int == 200
        assert cloud.request('GET', f'/os-hypervisors/{numbers[THERE]}').status_int == 503
        assert cloud.ok('GET', '/os-hypervisors/statistics', version='2.87')['hypervisor_statistics']['count'] == 1
        assert cloud.ok('GET', '/os-migrations')['migrations'] == []
        for host, code in ((HERE, 200), (THERE, 503)):
            response = cloud.request('PUT', f'/os-services/{services[host]}', {'status': 'enabled'})
            assert response.status_int == code, response.text
        assert cloud.ok('GET', '/limits?reserved=1')['limits']['absolute'] == usage
        assert usage['totalCoresUsed'] == 2
        for query in ('', '?detailed=1'):
            assert cloud.ok('GET', f'/os-simple-tenant-usage{query}')['tenant_usages'] == []
        servers = [
            cloud.create(flavor, **more)['server']['id']
            for more in ({}, {'availability_zone': 'nova'}, {'availability_zone': f'nova:{HERE}'})
        ]
        cloud.settle()
        assert [cloud.status(server) for server in servers] == ['ACTIVE'] * 3
        assert {cloud.host_of(server) for server in servers} == {HERE}
    assert sorted(listed(cloud)) == sorted([there, *servers])
    cloud.assert_clean()


def test_a_silent_cell_without_skipping(make_cloud):
    """[api]list_records_by_skipping_down_cells = false: an error instead of a part, but for what 2.69 can tell."""
    cloud = make_cloud(HOSTS, cells=CELLS, api__list_records_by_skipping_down_cells=False)
    server = boot_on(cloud, THERE, cloud.flavor())
    with cloud.silenced('cell2'):
        assert cloud.request('GET', '/servers', version='2.68').status_int == 503
        assert cloud.request('GET', '/servers?limit=2').status_int == 503
        assert [row['id'] for row in cloud.ok('GET', '/servers')['servers']] == [server]


def test_archiving_where_a_release_is_pending(cloud):
    """A host that died keeps what its deleted server held until it is back, archived or not."""
    flavor = cloud.flavor(gpus=1)
    server = boot_on(cloud, THERE, flavor)
    assert cell_changes.locate(cloud.databases, server).state == 'here'
    cloud.crash_compute(THERE)
    number = next(
        row['id'] for row in cloud.ok('GET', '/os-services?binary=nova-compute')['services'] if row['host'] == THERE
    )
    cloud.ok('PUT', f'/os-services/{number}', {'forced_down': True})
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle(kinds_left=('release',))
    assert cell_changes.locate(cloud.databases, server).state == 'deleted'
    cell = cloud.cell_named('cell2')
    moved = archive.archive(cloud.databases.api(), cell, max_rows=1000)
    assert (moved['instances'], moved['API_DB.instance_mappings'], moved['API_DB.request_specs']) == (1, 1, 1)
    assert cell_changes.locate(cloud.databases, server).state == 'unknown'
    assert [row['kind'] for row in cloud.rows()] == ['release']
    cloud.start_compute(THERE)
    cloud.ok('PUT', f'/os-services/{number}', {'forced_down': False})
    cloud.settle()
    cloud.assert_empty()
