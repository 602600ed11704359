"""Services, hypervisors, aggregates and zones."""

from __future__ import annotations

import json

import pytest

from kilonova.api.services import hosts as hosts_service
from kilonova.db.queries import aggregates, cells, compute_nodes, migrations, services
from kilonova.errors import Unanswered
from kilonova.rpc.interface import VersionCapError
from tests.unit.api.conftest import moment

NODE = {
    'vcpus': 8,
    'memory_mb': 1024,
    'local_gb': 100,
    'vcpus_used': 2,
    'memory_mb_used': 512,
    'local_gb_used': 10,
    'hypervisor_type': 'QEMU',
    'hypervisor_version': 7002000,
    'cpu_info': json.dumps({'arch': 'x86_64'}),
    'free_ram_mb': 512,
    'free_disk_gb': 90,
    'current_workload': 0,
    'running_vms': 1,
    'disk_available_least': 80,
    'host_ip': '10.0.0.1',
}


def uuid_of(number):
    return f'{number:08d}-2222-3333-4444-555555555555'


@pytest.fixture
def hosts(site):
    """h1 and h2 in cell1, h3 in cell2, a conductor; service ids by host."""
    found = {}
    for number, (cell, host) in enumerate(((site.cell1, 'h1'), (site.cell1, 'h2'), (site.cell2, 'h3')), start=1):
        with cell.write() as conn:
            service = services.get_or_create(conn, host, 'nova-compute', 'compute')
            services.report(conn, service['id'])
            compute_nodes.get_or_create(
                conn, {**NODE, 'uuid': uuid_of(number), 'host': host, 'hypervisor_hostname': f'{host}.example'}
            )
            found[host] = service
        with site.databases.api().write() as conn:
            cells.map_hosts(conn, cell.cell.id, [host])
    with site.cell1.write() as conn:
        found['controller'] = services.get_or_create(conn, 'controller', 'nova-conductor', 'conductor')
        services.get_or_create(conn, 'controller', 'nova-osapi_compute', 'x')
    return found


# --- services --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(('version', 'more'), [('2.1', set()), ('2.10', set()), ('2.11', {'forced_down'})])
def test_services_of_each_version(site, hosts, version, more):
    rows = site.ok('GET', '/os-services', version=version)['services']
    assert {row['host'] for row in rows} == {'h1', 'h2', 'h3', 'controller'} and len(rows) == 4
    assert set(rows[0]) == {'id', 'binary', 'host', 'zone', 'status', 'state', 'updated_at', 'disabled_reason'} | more
    assert isinstance(rows[0]['id'], int)
    zones = {row['host']: row['zone'] for row in rows}
    assert (zones['h1'], zones['controller']) == ('nova', 'internal')
    assert all(row['state'] == 'up' for row in rows)


def test_services_have_uuids_from_2_53_on(site, hosts):
    rows = site.ok('GET', '/os-services?host=h1&binary=nova-compute')['services']
    assert [row['id'] for row in rows] == [hosts['h1']['uuid']]
    assert site.ok('GET', '/os-services?binary=nova-conductor')['services'][0]['host'] == 'controller'


def test_zones_come_from_aggregates(site, hosts):
    with site.databases.api().write() as conn:
        aggregate = aggregates.create(conn, 'a', {'availability_zone': 'z1'})
        aggregates.add_host(conn, aggregate['id'], 'h2')
    zones = {row['host']: row['zone'] for row in site.ok('GET', '/os-services')['services']}
    assert (zones['h1'], zones['h2']) == ('nova', 'z1')
    shown = site.ok('GET', '/os-availability-zone', user='bob')['availabilityZoneInfo']
    assert shown == [
        {'zoneName': 'nova', 'zoneState': {'available': True}, 'hosts': None},
        {'zoneName': 'z1', 'zoneState': {'available': True}, 'hosts': None},
    ]
    detail = {zone['zoneName']: zone for zone in site.ok('GET', '/os-availability-zone/detail')['availabilityZoneInfo']}
    assert set(detail) == {'nova', 'z1', 'internal'}
    state = detail['z1']['hosts']['h2']['nova-compute']
    assert (state['active'], state['available']) == (True, True)
    site.ok('PUT', f'/os-services/{hosts["h2"]["uuid"]}', {'status': 'disabled'})
    shown = site.ok('GET', '/os-availability-zone', user='bob')['availabilityZoneInfo']
    assert shown[1]['zoneState'] == {'available': False}
    detail = {zone['zoneName']: zone for zone in site.ok('GET', '/os-availability-zone/detail')['availabilityZoneInfo']}
    assert detail['z1'] == {'zoneName': 'z1', 'zoneState': {'available': False}, 'hosts': None}
    site.ok('PUT', f'/os-services/{hosts["h1"]["uuid"]}', {'status': 'disabled'})
    detail = {zone['zoneName']: zone for zone in site.ok('GET', '/os-availability-zone/detail')['availabilityZoneInfo']}
    assert detail['nova']['zoneState'] == {'available': True} and set(detail['nova']['hosts']) == {'h3'}
    (listed,) = site.ok('GET', '/os-aggregates')['aggregates']
    assert listed['hosts'] == ['h2'] and listed['availability_zone'] == 'z1' and listed['uuid']
    assert 'uuid' not in site.ok('GET', '/os-aggregates', version='2.40')['aggregates'][0]


def test_the_verbs_of_old_versions(site, hosts):
    def put(verb, version='2.52', **values):
        return site.ok(
            'PUT', f'/os-services/{verb}', {'host': 'h1', 'binary': 'nova-compute', **values}, version=version
        )['service']

    base = {'host': 'h1', 'binary': 'nova-compute'}
    assert put('disable', '2.1') == {**base, 'status': 'disabled'}
    assert put('disable-log-reason', '2.1', disabled_reason='r') == {
        **base,
        'status': 'disabled',
        'disabled_reason': 'r',
    }
    (row,) = site.ok('GET', '/os-services?host=h1')['services']
    assert (row['status'], row['disabled_reason']) == ('disabled', 'r')
    assert put('enable', '2.1') == {**base, 'status': 'enabled'}
    assert put('force-down', '2.11', forced_down='true') == {**base, 'forced_down': True}
    (row,) = site.ok('GET', '/os-services?host=h1')['services']
    assert (row['status'], row['state'], row['forced_down'], row['disabled_reason']) == ('enabled', 'down', True, None)
    assert [call for _, call in site.compute.calls] == [
        {'server': 'h1', 'enabled': enabled} for enabled in (False, False, True)
    ]
    body = {'host': 'nosuch', 'binary': 'nova-compute'}
    assert site.fault('PUT', '/os-services/enable', body, version='2.1') == (
        404,
        "Host 'nosuch' is not mapped to any cell",
    )
    assert site.fault('PUT', '/os-services/force-down', body, version='2.10') == (404, 'Unknown action')
    assert site.fault('PUT', '/os-services/enable', body)[0] in (400, 404)


def test_put_of_new_versions(site, hosts):
    path = f'/os-services/{hosts["h3"]["uuid"]}'
    row = site.ok('PUT', path, {'status': 'disabled', 'disabled_reason': 'r', 'forced_down': True})['service']
    assert set(row) == {
        'binary',
        'disabled_reason',
        'forced_down',
        'host',
        'id',
        'state',
        'status',
        'updated_at',
        'zone',
    }
    assert (row['status'], row['state'], row['id'], row['zone']) == ('disabled', 'down', hosts['h3']['uuid'], 'nova')
    row = site.ok('PUT', path, {'status': 'enabled', 'forced_down': False})['service']
    assert (row['status'], row['disabled_reason'], row['forced_down']) == ('enabled', None, False)


@pytest.mark.parametrize(
    ('body', 'message'),
    [
        ({}, 'No updates were requested'),
        ({'disabled_reason': 'r'}, 'requires that status'),
        ({'status': 'enabled', 'disabled_reason': 'r'}, 'is invalid'),
        ({'status': 'x'}, 'not one of'),
        ({'forced_down': 'maybe'}, 'not one of'),
    ],
)
def test_bad_updates(site, hosts, body, message):
    code, text = site.fault('PUT', f'/os-services/{hosts["h1"]["uuid"]}', body)
    assert code == 400 and message in text


def test_only_computes_can_be_updated(site, hosts):
    code, message = site.fault('PUT', f'/os-services/{hosts["controller"]["uuid"]}', {'status': 'disabled'})
    assert code == 400 and 'nova-conductor' in message
    assert site.fault('PUT', '/os-services/nosuch', {'status': 'disabled'})[0] == 400
    assert site.fault('PUT', f'/os-services/{uuid_of(9)}', {'status': 'disabled'}) == (
        404,
        f'Service {uuid_of(9)} not found.',
    )


def test_a_host_that_cannot_be_told_is_disabled_nevertheless(site, hosts):
    site.compute.fails = Unanswered(who='h1', reason='gone')
    row = site.ok('PUT', f'/os-services/{hosts["h1"]["uuid"]}', {'status': 'disabled'})['service']
    assert row['status'] == 'disabled'


def test_a_host_that_is_down_is_not_asked(site, hosts):
    """It would take as long as a time-out; it reads its record when it comes back."""
    with site.cell1.write() as conn:
        services.update(conn, hosts['h1']['id'], {'last_seen_up': moment(2020, 1, 1)})
    path = f'/os-services/{hosts["h1"]["uuid"]}'
    row = site.ok('PUT', path, {'status': 'disabled'})['service']
    assert (row['status'], row['state']) == ('disabled', 'down') and site.compute.calls == []


def test_a_host_is_told_again_when_it_is_no_longer_forced_down(site, hosts):
    path = f'/os-services/{hosts["h1"]["uuid"]}'
    site.ok('PUT', path, {'forced_down': True})
    site.ok('PUT', path, {'status': 'disabled'})
    assert site.compute.calls == []
    row = site.ok('PUT', path, {'forced_down': False})['service']
    assert (row['state'], row['status']) == ('up', 'disabled')
    assert site.compute.calls == [('set_host_enabled', {'server': 'h1', 'enabled': False})]


def test_evacuated_hosts_stay_forced_down_until_they_are_cleaned(site, hosts):
    path = f'/os-services/{hosts["h1"]["uuid"]}'
    site.ok('PUT', path, {'forced_down': True})
    server = site.server(host='h2')
    with site.cell1.write() as conn:
        move = migrations.create(
            conn,
            {
                'uuid': uuid_of(7),
                'instance_uuid': server,
                'status': 'done',
                'migration_type': 'evacuation',
                'source_compute': 'h1',
                'dest_compute': 'h2',
            },
        )
    old = {'host': 'h1', 'binary': 'nova-compute', 'forced_down': False}
    for request in (('PUT', path, {'forced_down': False}), ('PUT', '/os-services/force-down', old)):
        code, message = site.fault(*request, version='2.104' if request[1] == path else '2.52')
        assert code == 400 and message.startswith('Unable to set forced_down to false: 1 evacuations from host h1')
    assert site.ok('PUT', path, {'status': 'disabled'})['service']['forced_down'] is True
    with site.cell1.write() as conn:
        migrations.update(conn, move['uuid'], {'status': 'completed'})
    assert site.ok('PUT', path, {'forced_down': False})['service']['forced_down'] is False


@pytest.fixture
def silent_cell(site, hosts, monkeypatch):
    """cell2 doesn't answer."""

    class Silent:
        name, cell = 'cell2', site.cell2.cell

        def read(self):
            raise Unanswered(who='cell2', reason='gone')

    monkeypatch.setattr(type(site.cells), 'databases', lambda self: [site.cell0, site.cell1, Silent()])


@pytest.mark.parametrize(
    ('version', 'query', 'unknown'),
    [
        ('2.68', '', []),
        ('2.69', '', ['h3']),
        ('2.69', '?host=h1', []),
        ('2.69', '?host=h3', ['h3']),
        ('2.69', '?binary=nova-compute', ['h3']),
        ('2.69', '?binary=nova-conductor', []),
    ],
)
def test_services_of_a_cell_that_does_not_answer(site, hosts, silent_cell, version, query, unknown):
    rows = site.ok('GET', f'/os-services{query}', version=version)['services']
    assert [row for row in rows if row['status'] == 'UNKNOWN'] == [
        {'binary': 'nova-compute', 'host': host, 'status': 'UNKNOWN'} for host in unknown
    ]
    assert ('h1' in {row['host'] for row in rows}) == (query in ('', '?host=h1', '?binary=nova-compute'))
    shown = site.ok('GET', '/os-availability-zone')['availabilityZoneInfo']
    assert [zone['zoneName'] for zone in shown] == ['nova']


def test_delete_of_a_compute_service(site, hosts):
    with site.databases.api().write() as conn:
        aggregate = aggregates.create(conn, 'a')
        aggregates.add_host(conn, aggregate['id'], 'h3')
    assert site.request('DELETE', f'/os-services/{hosts["h3"]["uuid"]}').status_int == 204
    assert 'h3' not in {row['host'] for row in site.ok('GET', '/os-services')['services']}
    assert len(site.ok('GET', '/os-hypervisors')['hypervisors']) == 2
    with site.databases.api().read() as conn:
        assert cells.get_host(conn, 'h3') is None
        assert aggregates.snapshot(conn)[0]['hosts'] == []
    assert site.placement.deleted == [uuid_of(3)]
    assert site.request('DELETE', f'/os-services/{hosts["controller"]["id"]}', version='2.52').status_int in (204, 400)


def test_hosts_in_use_keep_their_service(site, hosts):
    site.server(host='h1')
    code, message = site.fault('DELETE', f'/os-services/{hosts["h1"]["uuid"]}')
    assert code == 409 and 'hosting instances' in message
    with site.cell1.write() as conn:
        server = site_server(site)
        migrations.create(
            conn,
            {
                'uuid': uuid_of(7),
                'instance_uuid': server,
                'status': 'finished',
                'migration_type': 'resize',
                'source_compute': 'h2',
                'dest_compute': 'h1',
            },
        )
    code, message = site.fault('DELETE', f'/os-services/{hosts["h2"]["uuid"]}')
    assert code == 409 and 'in-progress migrations' in message


def site_server(site):
    return site.ok('GET', '/servers')['servers'][0]['id']


def test_numbers_that_mean_several_services(site, hosts):
    """Ids are a cell's own: 1 is h1 in one cell and h3 in the other."""
    assert site.fault('DELETE', '/os-services/1', version='2.52') == (400, 'Service id 1 refers to multiple services.')
    assert site.fault('DELETE', '/os-services/x', version='2.52')[0] == 400
    assert site.fault('DELETE', '/os-services/99', version='2.52')[0] == 404


# --- hypervisors -----------------------------------------------------------------------------------------------------
NUMBERS = {
    'vcpus',
    'memory_mb',
    'local_gb',
    'vcpus_used',
    'memory_mb_used',
    'local_gb_used',
    'free_ram_mb',
    'free_disk_gb',
    'current_workload',
    'running_vms',
    'disk_available_least',
    'cpu_info',
}
BRIEF = {'id', 'hypervisor_hostname', 'state', 'status'}
DETAIL = BRIEF | {'hypervisor_type', 'hypervisor_version', 'host_ip', 'service'}


@pytest.mark.parametrize(
    ('version', 'keys'),
    [('2.1', DETAIL | NUMBERS), ('2.53', DETAIL | NUMBERS), ('2.87', DETAIL | NUMBERS), ('2.88', DETAIL | {'uptime'})],
)
def test_hypervisors_of_each_version(site, hosts, version, keys):
    rows = site.ok('GET', '/os-hypervisors/detail', version=version)['hypervisors']
    assert [row['hypervisor_hostname'] for row in rows] == ['h1.example', 'h2.example', 'h3.example']
    assert set(rows[0]) == keys
    assert set(site.ok('GET', '/os-hypervisors', version=version)['hypervisors'][0]) == BRIEF
    shown = site.ok('GET', f'/os-hypervisors/{rows[0]["id"]}', version=version)['hypervisor']
    assert shown == rows[0]
    assert rows[0]['service'] == {
        'host': 'h1',
        'disabled_reason': None,
        'id': hosts['h1']['uuid' if version != '2.1' else 'id'],
    }


def test_cpu_info_becomes_an_object_with_2_28(site, hosts):
    for version, kind in (('2.27', str), ('2.28', dict)):
        row = site.ok('GET', '/os-hypervisors/detail', version=version)['hypervisors'][0]
        assert isinstance(row['cpu_info'], kind)


def test_servers_of_hypervisors(site, hosts):
    server = site.server(host='h1')
    rows = site.ok('GET', '/os-hypervisors?with_servers=true', version='2.75')['hypervisors']
    assert rows[0]['servers'] == [{'uuid': server, 'name': f'instance-{site.row(server)["id"]:08x}'}]
    assert rows[1]['servers'] == []
    rows = site.ok('GET', '/os-hypervisors?with_servers=true', version='2.74')['hypervisors']
    assert 'servers' in rows[0] and 'servers' not in rows[1]
    old = site.ok('GET', '/os-hypervisors/h1/servers', version='2.52')['hypervisors']
    assert [row['servers'][0]['uuid'] for row in old] == [server]
    assert 'servers' not in site.ok('GET', '/os-hypervisors')['hypervisors'][0]
    assert site.ok('GET', f'/os-hypervisors/{uuid_of(1)}?with_servers=1')['hypervisor']['servers']


def test_patterns(site, hosts):
    found = site.ok('GET', '/os-hypervisors?hypervisor_hostname_pattern=h3')['hypervisors']
    assert [row['hypervisor_hostname'] for row in found] == ['h3.example']
    assert site.fault('GET', '/os-hypervisors?hypervisor_hostname_pattern=nosuch') == (
        404,
        "No hypervisor matching 'nosuch' could be found.",
    )
    assert site.fault('GET', '/os-hypervisors?hypervisor_hostname_pattern=h&limit=1')[0] == 400
    found = site.ok('GET', '/os-hypervisors/h2/search', version='2.52')['hypervisors']
    assert [row['hypervisor_hostname'] for row in found] == ['h2.example']
    assert site.fault('GET', '/os-hypervisors/nosuch/search', version='2.52')[0] == 404
    assert site.fault('GET', '/os-hypervisors/h2/search', version='2.53')[0] == 404


@pytest.mark.parametrize('version', ['2.33', '2.53'])
def test_pages_of_hypervisors(site, hosts, version):
    paged, path = [], '/os-hypervisors?limit=2'
    while path:
        answer = site.ok('GET', path, version=version)
        paged += [row['hypervisor_hostname'] for row in answer['hypervisors']]
        links = answer.get('hypervisors_links')
        path = links[0]['href'].removeprefix('http://localhost/v2.1') if links else None
    assert paged == ['h1.example', 'h2.example', 'h3.example']
    assert site.fault('GET', f'/os-hypervisors?marker={uuid_of(9)}', version=version) == (
        400,
        f'marker [{uuid_of(9)}] not found',
    )


def test_unknown_hypervisors(site, hosts):
    for identifier, version in (('99', '2.52'), ('x', '2.52'), (uuid_of(9), '2.53')):
        assert site.fault('GET', f'/os-hypervisors/{identifier}', version=version) == (
            404,
            f"Hypervisor with ID '{identifier}' could not be found.",
        )
    assert site.fault('GET', '/os-hypervisors/1', version='2.53') == (400, 'Invalid uuid 1')


def test_hosts_without_a_mapping_are_no_hypervisors_yet(site, hosts):
    with site.databases.api().write() as conn:
        cells.unmap_host(conn, 'h1')
    with site.cell1.write() as conn:
        services.destroy(conn, hosts['controller']['id'])
        compute_nodes.get_or_create(conn, {**NODE, 'uuid': uuid_of(4), 'host': 'h4', 'hypervisor_hostname': 'h4'})
    for path in ('/os-hypervisors', '/os-hypervisors/detail', '/os-hypervisors?hypervisor_hostname_pattern=h'):
        rows = site.ok('GET', path)['hypervisors']
        assert [row['hypervisor_hostname'] for row in rows] == ['h2.example', 'h3.example']
    assert [len(site.ok('GET', f'/os-hypervisors?limit={limit}')['hypervisors']) for limit in (0, 1, 2)] == [0, 1, 2]
    assert site.fault('GET', f'/os-hypervisors/{uuid_of(1)}')[0] == 404
    assert site.fault('GET', '/os-hypervisors/h1/search', version='2.52')[0] == 404
    # Services are there as soon as they have started.
    assert 'h1' in {row['host'] for row in site.ok('GET', '/os-services')['services']}


def test_before_pages_the_list_is_whole(make_site):
    site = make_site(api__max_limit=1)
    for number in (1, 2):
        with site.cell1.write() as conn:
            services.get_or_create(conn, f'h{number}', 'nova-compute', 'compute')
            compute_nodes.get_or_create(
                conn, {**NODE, 'uuid': uuid_of(number), 'host': f'h{number}', 'hypervisor_hostname': f'h{number}'}
            )
    with site.databases.api().write() as conn:
        cells.map_hosts(conn, site.cell1.cell.id, ['h1', 'h2'])
    assert len(site.ok('GET', '/os-hypervisors', version='2.32')['hypervisors']) == 2
    assert len(site.ok('GET', '/os-hypervisors', version='2.33')['hypervisors']) == 1


def test_statistics(site, hosts):
    sums = site.ok('GET', '/os-hypervisors/statistics', version='2.1')['hypervisor_statistics']
    assert (sums['count'], sums['vcpus'], sums['memory_mb_used']) == (3, 24, 1536)
    assert set(sums) == {'count'} | NUMBERS - {'cpu_info'}
    assert site.fault('GET', '/os-hypervisors/statistics', version='2.88')[0] == 404


UPTIME = ' 10:00:00 up 1 day,  2:03,  0 users,  load average: 0.00, 0.01, 0.05'


def test_uptime(site, hosts):
    """Each host that is up is asked once; one that doesn't answer says nothing."""

    def get_host_uptime(ctxt, server):
        asked.append(server)
        if server == 'h2':
            raise Unanswered(who='h2', reason='gone')
        return UPTIME

    asked = []
    site.compute.get_host_uptime = get_host_uptime
    assert site.ok('GET', '/os-hypervisors/1/uptime', version='2.1') == {
        'hypervisor': {
            'id': 1,
            'hypervisor_hostname': 'h1.example',
            'state': 'up',
            'status': 'enabled',
            'uptime': UPTIME,
        }
    }
    shown = site.ok('GET', f'/os-hypervisors/{uuid_of(1)}/uptime', version='2.87')['hypervisor']
    assert (shown['id'], shown['uptime']) == (uuid_of(1), UPTIME)
    assert asked == ['h1', 'h1']
    rows = site.ok('GET', '/os-hypervisors/detail', version='2.88')['hypervisors']
    assert [row['uptime'] for row in rows] == [UPTIME, None, UPTIME] and sorted(asked[2:]) == ['h1', 'h2', 'h3']
    assert site.ok('GET', f'/os-hypervisors/{uuid_of(3)}')['hypervisor']['uptime'] == UPTIME
    asked.clear()
    site.ok('GET', '/os-hypervisors/detail', version='2.87')
    site.ok('GET', '/os-hypervisors', version='2.88')
    assert asked == []


def test_hosts_that_do_not_tell_their_uptime(site, hosts):
    path = f'/os-hypervisors/{uuid_of(1)}/uptime'
    assert site.fault('GET', path, version='2.87') == (501, 'The requested functionality is not supported.')
    site.compute.fails = VersionCapError(version='6.7', cap='6.6')
    assert site.fault('GET', path, version='2.87')[0] == 501
    site.compute.fails = Unanswered(who='compute h1', reason='timed out')
    assert site.fault('GET', path, version='2.87')[0] == 503
    site.ok('PUT', f'/os-services/{hosts["h1"]["uuid"]}', {'forced_down': True})
    assert site.fault('GET', path, version='2.87') == (400, 'Compute service of h1 is unavailable at this time.')
    assert site.ok('GET', '/os-hypervisors/detail')['hypervisors'][0]['uptime'] is None
    assert site.fault('GET', '/os-hypervisors/99/uptime', version='2.1')[0] == 404
    assert site.fault('GET', '/os-hypervisors/x/uptime', version='2.53') == (400, 'Invalid uuid x')
    assert site.fault('GET', path) == (404, 'The resource could not be found.')


def test_a_long_list_asks_a_bounded_number_at_a_time(site, hosts, monkeypatch):
    monkeypatch.setattr(hosts_service, 'ASKED_AT_ONCE', 1)
    site.compute.get_host_uptime = lambda ctxt, server: f'{UPTIME} {server}'
    rows = site.ok('GET', '/os-hypervisors/detail')['hypervisors']
    assert [row['uptime'] for row in rows] == [f'{UPTIME} {host}' for host in ('h1', 'h2', 'h3')]


# --- hosts, until 2.42 -----------------------------------------------------------------------------------------------
def test_os_hosts(site, hosts):
    site.ok('PUT', f'/os-services/{hosts["h2"]["uuid"]}', {'status': 'disabled'})
    rows = site.ok('GET', '/os-hosts', version='2.42')['hosts']
    assert rows == [
        {'host_name': 'h1', 'service': 'compute', 'zone': 'nova'},
        {'host_name': 'controller', 'service': 'conductor', 'zone': 'internal'},
        {'host_name': 'h3', 'service': 'compute', 'zone': 'nova'},
    ]
    assert site.ok('GET', '/os-hosts?zone=internal', version='2.1')['hosts'] == [rows[1]]
    for path in ('', '/h1'):
        assert site.fault('GET', f'/os-hosts{path}', version='2.43') == (404, 'The resource could not be found.')


def test_the_resources_of_a_host(site, hosts):
    flavor = site.flavor(ram=512, vcpus=2, disk=3, **{'OS-FLV-EXT-DATA:ephemeral': 4})
    for project in ('p1', 'p1', 'p2'):
        site.server(flavor=flavor, project=project, host='h1')
    site.server(flavor=flavor, host='h2')
    shown = [entry['resource'] for entry in site.ok('GET', '/os-hosts/h1', version='2.1')['host']]
    assert [tuple(entry[name] for name in ('project', 'cpu', 'memory_mb', 'disk_gb')) for entry in shown] == [
        ('(total)', 8, 1024, 100),
        ('(used_now)', 2, 512, 10),
        ('(used_max)', 6, 1536, 21),
        ('p1', 4, 1024, 14),
        ('p2', 2, 512, 7),
    ]
    assert {entry['host'] for entry in shown} == {'h1'}
    for host in ('nosuch', 'controller'):
        assert site.fault('GET', f'/os-hosts/{host}', version='2.1') == (
            404,
            f"Host '{host}' is not mapped to any cell",
        )


def test_hosts_are_enabled_and_disabled(site, hosts):
    for word, status in (('disable', 'disabled'), ('Enable', 'enabled')):
        assert site.ok('PUT', '/os-hosts/h1', {'status': word}, version='2.42') == {'host': 'h1', 'status': status}
        assert site.ok('GET', '/os-services?host=h1')['services'][0]['status'] == status
    assert [call['enabled'] for _, call in site.compute.calls] == [False, True]
    assert site.fault('PUT', '/os-hosts/h1', {'maintenance_mode': 'enable', 'status': 'disable'}, version='2.1') == (
        501,
        'The requested functionality is not supported.',
    )
    assert site.ok('GET', '/os-services?host=h1')['services'][0]['status'] == 'enabled'
    assert site.fault('PUT', '/os-hosts/nosuch', {'status': 'disable'}, version='2.1') == (
        404,
        "Host 'nosuch' is not mapped to any cell",
    )
    for body in ({}, {'status': 'x'}, {'status': 'enable', 'x': 1}):
        assert site.fault('PUT', '/os-hosts/h1', body, version='2.1')[0] == 400


def test_a_silent_host_is_down(site, hosts):
    with site.cell1.write() as conn:
        services.update(conn, hosts['h1']['id'], {'last_seen_up': moment(2020, 1, 1)})
    assert site.ok('GET', '/os-hypervisors')['hypervisors'][0]['state'] == 'down'
    assert site.ok('GET', '/os-services?host=h1')['services'][0]['state'] == 'down'


@pytest.mark.parametrize('zone', [None, 'z1'])
def test_an_aggregate_was_updated_when_it_was_changed_found_1_18(site, zone):
    made = site.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a', 'availability_zone': zone}})['aggregate']
    assert made['updated_at'] is None and made['created_at']
    path = f'/os-aggregates/{made["id"]}'
    assert site.ok('GET', path)['aggregate']['updated_at'] is None
    changed = site.ok('PUT', path, {'aggregate': {'name': 'b'}})['aggregate']
    assert changed['updated_at'] is not None
