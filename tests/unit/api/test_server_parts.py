"""What is looked at below a server: addresses, topology, diagnostics, password, console, live migrations."""

from __future__ import annotations

import json

import pytest

from kilonova import objects
from kilonova.db.models.cell import InstanceInfoCache
from kilonova.db.queries import instances, migrations, services
from kilonova.errors import ConsoleNotAvailable, Unanswered
from kilonova.rpc.interface import VersionCapError


# --- addresses -------------------------------------------------------------------------------------------------------
def test_addresses(site):
    server = site.server()
    assert site.ok('GET', f'/servers/{server}/ips') == {'addresses': {}}
    networks = [
        {
            'id': 'p1',
            'address': 'fa:16:3e:00:00:01',
            'network': {
                'label': 'private',
                'subnets': [
                    {
                        'ips': [
                            {
                                'address': '10.0.0.5',
                                'version': 4,
                                'type': 'fixed',
                                'floating_ips': [{'address': '203.0.113.5', 'version': 4, 'type': 'floating'}],
                            }
                        ]
                    },
                    {'ips': [{'address': 'fd00::5', 'version': 6, 'type': 'fixed'}]},
                ],
            },
        }
    ]
    with site.cell1.write() as conn:
        conn.execute(
            InstanceInfoCache.__table__.insert(),
            {'instance_uuid': server, 'deleted': 0, 'network_info': json.dumps(networks)},
        )
    found = [
        {'version': 4, 'addr': '10.0.0.5'},
        {'version': 4, 'addr': '203.0.113.5'},
        {'version': 6, 'addr': 'fd00::5'},
    ]
    assert site.ok('GET', f'/servers/{server}/ips', user='bob') == {'addresses': {'private': found}}
    assert site.ok('GET', f'/servers/{server}/ips/private', user='bob') == {'private': found}
    assert site.fault('GET', f'/servers/{server}/ips/public') == (404, 'Instance is not a member of specified network')
    assert site.ok('GET', f'/servers/{site.create()}/ips') == {'addresses': {}}


# --- topology --------------------------------------------------------------------------------------------------------
def test_topology(site):
    server = site.server()
    none = {'nodes': [], 'pagesize_kb': None}
    assert site.ok('GET', f'/servers/{server}/topology') == none == site.ok('GET', f'/servers/{site.create()}/topology')
    cells = [
        objects.InstanceNUMACell(
            id=number,
            cpuset=set(),
            pcpuset=set(cpus),
            memory=1024,
            pagesize=2048,
            cpu_topology=objects.VirtCPUTopology(sockets=1, cores=1, threads=2) if number else None,
            cpu_pinning_raw={str(cpu): cpu + 10 for cpu in cpus},
        )
        for number, cpus in enumerate(((0, 1), (2, 3)))
    ]
    topology = objects.InstanceNUMATopology(instance_uuid=server, cells=cells)
    with site.cell1.write() as conn:
        instances.update_extra(conn, server, {'numa_topology': topology.to_json()})
    first = {'memory_mb': 1024, 'vcpu_set': [0, 1], 'siblings': []}
    second = {'memory_mb': 1024, 'vcpu_set': [2, 3], 'siblings': [[2, 3]]}
    assert site.ok('GET', f'/servers/{server}/topology', user='bob') == {'nodes': [first, second], 'pagesize_kb': 2048}
    assert site.ok('GET', f'/servers/{server}/topology', version='2.78') == {
        'pagesize_kb': 2048,
        'nodes': [
            {**first, 'host_node': 0, 'cpu_pinning': {'0': 10, '1': 11}},
            {**second, 'host_node': 1, 'cpu_pinning': {'2': 12, '3': 13}},
        ],
    }
    assert site.fault('GET', f'/servers/{server}/topology', version='2.77')[0] == 404


# --- questions to the host -------------------------------------------------------------------------------------------
def up(site, host='h1', **values):
    with site.cell1.write() as conn:
        row = services.create(
            conn,
            {
                'host': host,
                'binary': 'nova-compute',
                'topic': 'compute',
                'report_count': 0,
                'disabled': False,
                'forced_down': False,
                'version': 73,
                'deleted': 0,
                **values,
            },
        )
        services.report(conn, row['id'])


@pytest.fixture
def host(site, monkeypatch):
    """``host(answer)``: h1 is up and gives this answer; returns what it was asked."""
    up(site)

    def answer(value):
        asked = []

        def ask(name):
            def call(ctxt, *, server, instance, **kwargs):
                asked.append((name, server, instance.uuid, kwargs))
                if isinstance(value, Exception):
                    raise value
                return value

            return call

        monkeypatch.setattr(type(site.compute), '__getattr__', lambda self, name: ask(name))
        return asked

    return answer


MEASURED = objects.Diagnostics(
    state='running',
    driver='libvirt',
    hypervisor='kvm',
    hypervisor_os='linux',
    uptime=5,
    config_drive=False,
    memory_details=objects.MemoryDiagnostics(maximum=512, used=100),
    cpu_details=[objects.CpuDiagnostics(id=0, time=7, utilisation=None)],
    nic_details=[objects.NicDiagnostics(mac_address='fa:16:3e:00:00:01', rx_octets=1)],
    disk_details=[objects.DiskDiagnostics(read_bytes=1, read_requests=2)],
    num_cpus=1,
    num_nics=1,
    num_disks=1,
)


def test_diagnostics(site, host):
    server = site.server()
    asked = host({'cpu0_time': 1, 'memory': 2})
    assert site.ok('GET', f'/servers/{server}/diagnostics', version='2.47') == {'cpu0_time': 1, 'memory': 2}
    assert asked == [('get_diagnostics', 'h1', server, {})]
    asked = host(MEASURED)
    body = site.ok('GET', f'/servers/{server}/diagnostics', version='2.48')
    assert asked == [('get_instance_diagnostics', 'h1', server, {})]
    nic = dict.fromkeys(
        f'{way}_{what}' for way in ('rx', 'tx') for what in ('octets', 'errors', 'drop', 'packets', 'rate')
    )
    assert body == {
        'state': 'running',
        'driver': 'libvirt',
        'hypervisor': 'kvm',
        'hypervisor_os': 'linux',
        'uptime': 5,
        'config_drive': False,
        'num_cpus': 1,
        'num_nics': 1,
        'num_disks': 1,
        'memory_details': {'maximum': 512, 'used': 100},
        'cpu_details': [{'id': 0, 'time': 7, 'utilisation': None}],
        'nic_details': [{**nic, 'mac_address': 'fa:16:3e:00:00:01', 'rx_octets': 1}],
        'disk_details': [
            {'read_bytes': 1, 'read_requests': 2, 'write_bytes': None, 'write_requests': None, 'errors_count': None}
        ],
    }


@pytest.mark.parametrize(
    ('length', 'lines'), [(None, None), (-1, None), ('-1', None), (0, 0), (7, 7), ('7', 7), ('absent', None)]
)
def test_console_output(site, host, length, lines):
    server = site.server()
    asked = host('text')
    body = {} if length == 'absent' else {'length': length}
    path = f'/servers/{server}/action'
    assert site.ok('POST', path, {'os-getConsoleOutput': body}, user='bob') == {'output': 'text'}
    assert asked == [('get_console_output', 'h1', server, {'tail_length': lines})]


@pytest.mark.parametrize('length', [-2, '-2', 'x', 1.5, True, '', '7 ', 2**40, []])
def test_bad_lengths(site, length):
    assert site.fault('POST', f'/servers/{site.server()}/action', {'os-getConsoleOutput': {'length': length}})[0] == 400


QUESTIONS = [('GET', '/diagnostics', None), ('POST', '/action', {'os-getConsoleOutput': {}})]


@pytest.mark.parametrize(('method', 'tail', 'body'), QUESTIONS)
def test_hosts_that_cannot_be_asked(site, host, method, tail, body):
    up(site, 'h9', forced_down=True)
    for server, message in (
        (site.create(), 'Instance {} is not ready'),
        (site.server(host=None, vm_state='error'), 'Instance {} is not ready'),
        (site.server(host='h9'), 'Service is unavailable at this time.'),
        (site.server(host='nosuch'), 'Service is unavailable at this time.'),
    ):
        assert site.fault(method, f'/servers/{server}{tail}', body) == (409, message.format(server))
    server = site.server()
    for error, code in (
        (Unanswered(who='compute h1', reason='x'), 503),
        (ConsoleNotAvailable(), 404),
        (VersionCapError(version='6.7', cap='6.6'), 409),
    ):
        host(error)
        assert site.fault(method, f'/servers/{server}{tail}', body)[0] == code


OFFER = objects.ConsoleOffer(
    console_type='novnc', host='h1', port=5900, tls_port=None, access_url_base='http://proxy/vnc.html'
)


@pytest.mark.parametrize(
    ('task_state', 'is_opened'),
    [
        (None, True),
        ('rebooting', True),
        ('resize_migrating', True),
        ('deleting', False),
        ('soft-deleting', False),
        ('migrating', False),
    ],
)
def test_a_console_is_opened_unless_the_guest_is_about_to_end_or_to_move(site, host, task_state, is_opened):
    server = site.server(task_state=task_state)
    asked = host(OFFER)
    path, body = f'/servers/{server}/remote-consoles', {'remote_console': {'protocol': 'vnc', 'type': 'novnc'}}
    if is_opened:
        assert site.ok('POST', path, body)['remote_console']['url'].startswith('http://proxy/vnc.html?path=')
        assert [one[:3] for one in asked] == [('get_vnc_console', 'h1', server)]
    else:
        text = f"Cannot 'get_vnc_console' instance {server} while it is in task_state {task_state}"
        assert site.fault('POST', path, body) == (409, text) and asked == []


# --- password --------------------------------------------------------------------------------------------------------
def test_password(site):
    server = site.server()
    path = f'/servers/{server}/os-server-password'
    assert site.ok('GET', path, user='bob') == {'password': ''}
    with site.cell1.write() as conn:
        instances.set_system_metadata(
            conn, server, {'password_0': 'a' * 255, 'password_1': 'b', 'password_2': None, 'image_os_type': 'linux'}
        )
    assert site.ok('GET', path, user='bob') == {'password': 'a' * 255 + 'b'}
    assert site.request('DELETE', path, user='bob').status_int == 204
    assert site.ok('GET', path) == {'password': ''}
    with site.cell1.read() as conn:
        assert instances.get_system_metadata(conn, server)['image_os_type'] == 'linux'
    waiting = site.create()
    assert site.ok('GET', f'/servers/{waiting}/os-server-password') == {'password': ''}
    assert site.fault('DELETE', f'/servers/{waiting}/os-server-password') == (409, f'Instance {waiting} is not ready')


# --- live migrations -------------------------------------------------------------------------------------------------
LIVE = {
    'created_at',
    'dest_compute',
    'dest_host',
    'dest_node',
    'disk_processed_bytes',
    'disk_remaining_bytes',
    'disk_total_bytes',
    'id',
    'memory_processed_bytes',
    'memory_remaining_bytes',
    'memory_total_bytes',
    'server_uuid',
    'source_compute',
    'source_node',
    'status',
    'updated_at',
}


def move(site, server, number, **values):
    with site.cell1.write() as conn:
        return migrations.create(
            conn,
            {
                'uuid': f'{number:08d}-2222-3333-4444-555555555555',
                'instance_uuid': server,
                'status': 'running',
                'migration_type': 'live-migration',
                'source_compute': 'h1',
                'dest_compute': 'h2',
                'memory_total': 10,
                'memory_processed': 4,
                'memory_remaining': 6,
                'project_id': 'p1',
                'user_id': 'bob',
                **values,
            },
        )['id']


def test_live_migrations_under_way(site):
    server, other = site.server(), site.server()
    assert site.ok('GET', f'/servers/{server}/migrations') == {'migrations': []}
    running = move(site, server, 1)
    cold = move(site, server, 2, migration_type='resize')
    done = move(site, server, 3, status='completed')
    another = move(site, other, 4)
    for version, more in (('2.23', set()), ('2.59', {'uuid'}), ('2.80', {'uuid', 'user_id', 'project_id'})):
        (row,) = site.ok('GET', f'/servers/{server}/migrations', version=version)['migrations']
        assert set(row) == LIVE | more
        assert site.ok('GET', f'/servers/{server}/migrations/{running}', version=version) == {'migration': row}
    assert (row['id'], row['server_uuid'], row['dest_compute'], row['memory_remaining_bytes']) == (
        running,
        server,
        'h2',
        6,
    )
    for number, message in (
        (cold, f'Migration {cold} for server {server} is not live-migration.'),
        (done, f'Migration {done} for server {server} is not in progress.'),
        (another, f'In-progress live migration {another} is not found for server {server}.'),
        ('x', f'In-progress live migration x is not found for server {server}.'),
        ('9' * 30, None),
    ):
        code, text = site.fault('GET', f'/servers/{server}/migrations/{number}')
        assert code == 404 and message in (text, None)
    assert site.fault('GET', f'/servers/{server}/migrations', version='2.22')[0] == 404
    assert site.ok('GET', f'/servers/{site.create()}/migrations') == {'migrations': []}


def test_managers_see_no_hosts_of_live_migrations(make_site, tmp_path):
    (tmp_path / 'policy.yaml').write_text('"os_compute_api:servers:migrations:index": "rule:project_member_or_admin"\n')
    site = make_site(oslo_policy__policy_file=str(tmp_path / 'policy.yaml'))
    server = site.server()
    number = move(site, server, 1)
    (row,) = site.ok('GET', f'/servers/{server}/migrations', user='bob')['migrations']
    assert (row['id'], row['source_compute'], row['dest_compute']) == (number, None, None)
    assert site.fault('GET', f'/servers/{server}/migrations/{number}', user='bob')[0] == 403
