"""kilonova-manage db archive_deleted_rows and db purge: arguments, what is printed, exit codes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import sqlalchemy as sa

from kilonova.cmd.manage import main as manage
from kilonova.db import engine
from kilonova.db.models.api import InstanceMapping
from kilonova.db.models.cell import Instance, InstanceFault, TaskLog

LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)


@pytest.fixture
def dead(cloud, parse):
    """Two deleted servers in the main database, one in cell0, each with a fault and a mapping; a task log."""
    databases = engine.configure(parse())
    places = {'main': databases.main(), 'cell0': databases.open(f'{databases.main_url}_cell0')}
    for uuid, place in (('one', 'main'), ('two', 'main'), ('three', 'cell0')):
        with places[place].write() as connection:
            connection.execute(sa.insert(Instance.__table__).values(uuid=uuid, deleted=9, deleted_at=LONG_AGO))
            connection.execute(sa.insert(InstanceFault.__table__).values(instance_uuid=uuid, code=500))
        with databases.api().write() as connection:
            connection.execute(sa.insert(InstanceMapping.__table__).values(instance_uuid=uuid, project_id='p'))
    with places['main'].write() as connection:
        connection.execute(sa.insert(TaskLog.__table__).values(task_name='t', state='DONE', host='h', message=''))
    databases.dispose()
    return cloud


def told(lines):
    """{table: rows} of a printed table."""
    cells = [[word.strip() for word in line.strip('|').split('|')] for line in lines if line.startswith('|')]
    assert cells[0] == ['Table', 'Number of Rows Archived']
    return {name: int(count) for name, count in cells[1:]}


@pytest.mark.parametrize(
    ('arguments', 'code', 'text'),
    [
        (('archive_deleted_rows',), 0, []),
        (('archive_deleted_rows', '--verbose'), 0, ['Nothing was archived.']),
        (('archive_deleted_rows', '--verbose', '--until-complete'), 0, ['Archiving.complete', 'Nothing was archived.']),
        (('archive_deleted_rows', '--max_rows', '-1'), 2, ['Must supply a positive value for max_rows']),
        (('archive_deleted_rows', '--max_rows', '4294967296'), 2, ['max rows must be <= 2147483647']),
        (('archive_deleted_rows', '--before', 'foo'), 4, ['Invalid value for --before: Unknown string format: foo']),
        (('purge',), 1, ['Either --before or --all is required']),
        (('purge', '--before', 'foo'), 2, ['Invalid value for --before: Unknown string format: foo']),
        (('purge', '--all'), 3, []),
    ],
)
def test_nothing_to_do_and_bad_arguments(cloud, arguments, code, text):
    assert cloud('db', *arguments) == (code, text)


@pytest.mark.parametrize(
    ('arguments', 'limit'),
    [
        (('api_db', 'sync'), 0),
        (('db', 'sync'), 0),
        (('db', 'archive_deleted_rows'), 0),
        (('db', 'purge', '--all'), 0),
        (('db', 'version'), 10),
        (('cell_v2', 'list_hosts'), 10),
    ],
)
def test_what_works_through_whole_tables_has_no_limit_of_time(cloud, arguments, limit, monkeypatch):
    seen = []
    configure = engine.configure
    monkeypatch.setattr(
        engine, 'configure', lambda *given, **changed: seen.append(configure(*given, **changed)) or seen[-1]
    )
    cloud(*arguments)
    assert [databases.options.statement_timeout for databases in seen] == [limit]


@pytest.mark.parametrize(
    ('arguments', 'code'), [(('archive_deleted_rows',), 3), (('purge', '--all', '--all-cells'), 4)]
)
def test_no_api_database(run, arguments, code):
    assert run('db', 'sync', '--local_cell')[0] == 0
    assert run('db', *arguments) == (code, ['Unable to get cell list from API DB. Is it configured?'])


def test_no_main_database_is_no_matter_of_the_api_database(cloud, write_conf, capsys):
    path = Path(write_conf(name='none.conf'))
    text = path.read_text()
    path.write_text(text[: text.index('[database]')] + text[text.index('[api_database]') :])
    capsys.readouterr()
    assert manage.main(['--config-file', str(path), 'db', 'archive_deleted_rows']) == 255
    told = capsys.readouterr()
    assert told.out == '' and told.err == 'kilonova-manage: No database is configured: [database]connection is empty.\n'


def test_archive_the_main_database(dead):
    code, lines = dead('db', 'archive_deleted_rows', '--verbose')
    assert (code, told(lines)) == (1, {'API_DB.instance_mappings': 2, 'instances': 2, 'instance_faults': 2})
    assert dead('db', 'archive_deleted_rows') == (0, [])
    assert dead('db', 'purge', '--all', '--verbose') == (
        0,
        ['Deleted 2 rows from shadow_instance_faults', 'Deleted 2 rows from shadow_instances'],
    )
    assert dead('db', 'purge', '--all') == (3, [])


def test_archive_all_cells_in_portions(dead):
    """--max_rows counts the rows of all cells together."""
    code, lines = dead('db', 'archive_deleted_rows', '--verbose', '--all-cells', '--max_rows', '2')
    assert (code, told(lines)) == (1, {'API_DB.instance_mappings': 1, 'cell0.instances': 1, 'cell0.instance_faults': 1})
    code, lines = dead('db', 'archive_deleted_rows', '--verbose', '--all-cells', '--until-complete', '--max_rows', '2')
    assert (code, lines[0]) == (1, 'Archiving....complete')
    assert sum(count for name, count in told(lines[1:]).items() if name.endswith('.instances')) == 2
    assert dead('db', 'purge', '--all', '--all-cells', '--verbose')[1][:1] == [
        'Deleted 1 rows from cell0.shadow_instance_faults'
    ]


def test_archive_with_dates_and_the_task_log(dead):
    assert dead('db', 'archive_deleted_rows', '--before', 'Dec 31 2025 12:00') == (0, [])
    code, lines = dead('db', 'archive_deleted_rows', '--before', '2026-01-02', '--task-log', '--verbose')
    assert (code, 'task_log' in told(lines)) == (1, False)
    assert told(dead('db', 'archive_deleted_rows', '--task-log', '--verbose')[1]) == {'task_log': 1}
    assert dead('db', 'purge', '--before', '2025-12-31') == (3, [])
    assert dead('db', 'purge', '--before', '2026-01-02T00:00:00+01:00') == (0, [])


def test_archive_and_purge_at_once(dead):
    code, lines = dead('db', 'archive_deleted_rows', '--purge', '--verbose')
    assert code == 1
    assert lines[-3:] == [
        'Rows were archived, running purge...',
        'Deleted 2 rows from shadow_instance_faults',
        'Deleted 2 rows from shadow_instances',
    ]


def test_an_error_of_the_database_is_told(write_conf, capsys):
    assert manage.main(['--config-file', write_conf(), 'db', 'archive_deleted_rows']) == 3
    assert manage.main(['--config-file', write_conf(), 'db', 'purge', '--all']) == 255
    assert 'has no tables yet' in capsys.readouterr().err
    assert manage.main(['--config-file', write_conf(), '--debug', 'db', 'purge', '--all']) == 255
    assert 'no such table' in capsys.readouterr().out
