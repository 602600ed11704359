from __future__ import annotations

import json

import pytest

from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import cells as manage_cells
from kilonova.cmd.manage import main as manage
from kilonova.conductor.audit import compare as audit
from kilonova.db import engine, migration
from kilonova.db.queries import cells


def test_versions_and_sync(run):
    assert run('db', 'version') == (0, ['None'])
    assert run('api_db', 'version') == (0, ['None'])
    assert run('api_db', 'sync') == (0, [])
    assert run('db', 'sync', '--local_cell') == (0, [])
    assert run('db', 'version') == (0, [migration.newest('cell')])
    assert run('api_db', 'version') == (0, [migration.newest('api')])
    assert run('db', 'sync', 'nope') == (1, ['The cell database has no revision nope.'])


def test_db_sync_without_cell0_says_so(write_conf, capsys):
    assert manage.main(['--config-file', write_conf(), 'db', 'sync']) == 0
    told = capsys.readouterr()
    assert told.out == ''
    assert told.err.startswith('cell0 is not mapped')


def test_db_sync_brings_cell0_too(cloud, tmp_path):
    database = engine.Database(f'sqlite:///{tmp_path}/main.db_cell0', 'cell0')
    assert migration.version(database, 'cell') == migration.newest('cell')
    database.dispose()


def test_map_cell0(run):
    run('api_db', 'sync')
    assert run('cell_v2', 'map_cell0') == (0, [])
    assert run('cell_v2', 'map_cell0') == (0, ['Cell0 is already setup'])


def test_simple_cell_setup(cloud, node):
    assert cloud('cell_v2', 'list_hosts')[1][-1].startswith('+')
    code, lines = cloud('cell_v2', 'simple_cell_setup')
    assert (code, lines) == (0, ['Cell0 is already setup'])
    assert any('gpu1' in line for line in cloud('cell_v2', 'list_hosts')[1])
    assert len(cloud('cell_v2', 'list_cells')[1]) == 6


def test_simple_cell_setup_without_hosts(run):
    run('api_db', 'sync')
    assert run('cell_v2', 'simple_cell_setup') == (0, ['No hosts found to map to cell, exiting.'])
    assert run('cell_v2', 'simple_cell_setup') == (
        0,
        ['Cell0 is already setup', 'No hosts found to map to cell, exiting.'],
    )


def test_create_cell(run):
    run('api_db', 'sync')
    told = [
        manage_cells.NOT_GIVEN.format('transport-url', '[DEFAULT]/transport_url'),
        manage_cells.NOT_GIVEN.format('database_connection', '[database]/connection'),
    ]
    assert told[0] == (
        '--transport-url not provided in the command line, using the value [DEFAULT]/transport_url '
        'from the configuration file'
    )
    code, lines = run('cell_v2', 'create_cell', '--name', 'c1', '--verbose')
    assert (code, lines[:2]) == (0, told)
    uuid = lines[2]
    code, lines = run('cell_v2', 'create_cell', '--name', 'c1')
    assert (code, lines[:2]) == (2, told)
    assert lines[2] == (
        'The specified transport_url and/or database_connection combination already exists for '
        f'another cell with uuid {uuid}.'
    )
    assert run(
        'cell_v2',
        'create_cell',
        '--transport-url',
        'rabbit://u:secret@h/',
        '--database_connection',
        'sqlite:///other',
        '--disabled',
    ) == (0, [])
    hidden, shown = run('cell_v2', 'list_cells')[1], run('cell_v2', 'list_cells', '--verbose')[1]
    assert [word.strip() for word in hidden[1].strip('|').split('|')] == [
        'Name',
        'UUID',
        'Transport URL',
        'Database Connection',
        'Disabled',
    ]
    assert any('rabbit://u:****@h/' in line and 'True' in line for line in hidden)
    assert any('rabbit://u:secret@h/' in line for line in shown)


def test_create_cell_without_urls(run, tmp_path, capsys):
    path = tmp_path / 'bare.conf'
    path.write_text(f'[api_database]\nconnection = sqlite:///{tmp_path}/api.db\n[DEFAULT]\ntransport_url = fake://\n')
    assert manage.main(['--config-file', str(path), 'cell_v2', 'create_cell']) == 1
    assert 'Must specify --database_connection if [database]/connection is not set' in capsys.readouterr().out


def test_discover_hosts(cloud, node):
    uuid = next(line.split('|')[2].strip() for line in cloud('cell_v2', 'list_cells')[1] if 'main.db ' in line)
    assert cloud('cell_v2', 'discover_hosts', '--verbose', '--strict') == (
        0,
        [
            'Found 2 cell mappings.',
            'Skipping cell0 since it does not contain hosts.',
            f'Getting computes from cell: {uuid}',
            "Creating host mapping for compute host 'gpu1'",
            f'Found 1 unmapped computes in cell: {uuid}',
        ],
    )
    assert cloud('cell_v2', 'discover_hosts') == (0, [])
    assert cloud('cell_v2', 'discover_hosts', '--strict') == (1, [])
    assert cloud('cell_v2', 'discover_hosts', '--cell_uuid', 'x') == (1, ['Cell with uuid x was not found.'])
    assert any('gpu1' in line for line in cloud('cell_v2', 'list_hosts', '--cell_uuid', uuid)[1])
    assert cloud('cell_v2', 'list_hosts', '--cell_uuid', 'x') == (1, ['Cell with uuid x was not found.'])


def test_discover_hosts_of_two_cells(cloud, node, parse):
    databases = engine.configure(parse())
    other = cells.create_cell(databases, transport_url='fake://x', database_connection='sqlite:///other')
    with databases.api().write() as connection:
        cells.map_hosts(connection, cells.get_cell(connection, other)['id'], ['gpu1'])
    databases.dispose()
    code, lines = cloud('cell_v2', 'discover_hosts')
    assert code == 2
    assert lines == [f"Host 'gpu1' is already mapped to cell {other}."]


def test_device_list(cloud, node):
    rows = json.loads('\n'.join(cloud('device', 'list', '--format', 'json')[1]))
    held = {
        'host': 'gpu1',
        'address': '0000:81:00.0',
        'vendor_id': '10de',
        'product_id': '13f1',
        'dev_type': 'type-PCI',
        'numa_node': None,
        'status': 'allocated',
        'instance_uuid': 'u1',
        'server_name': None,
        'barred': {},
    }
    assert rows[0] == held
    assert [row['address'] for row in rows] == ['0000:81:00.0', '0000:82:00.0']
    code, lines = cloud('device', 'list')
    assert code == 0
    assert [word.strip() for word in lines[3].strip('|').split('|')] == [
        *(str(value) for value in list(held.values())[:-1]),
        '',
    ]


@pytest.mark.parametrize(
    ('report', 'code'),
    [
        (audit.AuditReport(checked={'servers': 2}), 0),
        (audit.AuditReport(disagreements=['device 7 is lost'], checked={'servers': 2}), 1),
        (audit.AuditReport(in_flight=['boot of u1'], silent=['gpu1'], checked={'servers': 2}), 2),
    ],
)
def test_audit(cloud, monkeypatch, report, code):
    monkeypatch.setattr(audit.Audit, 'run', lambda self: report)
    monkeypatch.setattr(parts, 'transport', lambda conf: type('Transport', (), {'close': lambda self: None})())
    got, lines = cloud('audit')
    assert got == code
    assert lines[:-1] == [
        *(f'in flight: {line}' for line in report.in_flight),
        *(f'no answer: {line}' for line in report.silent),
        *report.disagreements,
    ]
    assert lines[-1] == f'checked 2 servers: {len(report.disagreements)} disagreements'


def test_error_that_no_command_expects(cloud, monkeypatch):
    def fail(databases):
        raise ZeroDivisionError

    monkeypatch.setattr(cells, 'list_cells', fail)
    code, lines = cloud('cell_v2', 'list_cells')
    assert code == 255
    assert lines[0] == 'An error has occurred:'
    assert lines[-1] == 'ZeroDivisionError'


@pytest.mark.parametrize('arguments', [[], ['db'], ['db', 'drop'], ['device', 'list', '--format', 'xml']])
def test_wrong_command_lines(arguments):
    with pytest.raises(SystemExit) as caught:
        manage.main(arguments)
    assert caught.value.code == 2
