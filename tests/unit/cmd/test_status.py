from __future__ import annotations

import datetime

import pytest
from oslo_utils import timeutils

from kilonova.clients import session
from kilonova.cmd import cli, status
from kilonova.cmd.daemon import caps
from kilonova.cmd.status import Result
from kilonova.db.queries import cells, compute_nodes, services
from kilonova.errors import Unanswered
from kilonova.rpc import versions


@pytest.fixture
def cloud(synced):
    made = cli.Cloud(synced())
    yield made
    made.databases.dispose()


def test_cells(cloud, monkeypatch):
    result, details = status.cells_v2(cloud)
    assert result is Result.FAILURE
    assert details.startswith('There needs to be at least two cell mappings, one for cell0')
    uuid = cells.create_cell(cloud.databases, transport_url='fake://', database_connection=cloud.databases.main_url)
    cells.create_cell(cloud.databases, transport_url='fake://2', database_connection='sqlite:///other', disabled=True)
    assert status.cells_v2(cloud)[1].startswith('No cell0 mapping found.')
    cells.map_cell0(cloud.databases)
    result, details = status.cells_v2(cloud)
    assert result is Result.SUCCESS
    assert details.startswith('No host mappings or compute nodes were found.')
    monkeypatch.setattr(compute_nodes, 'any_nodes', lambda connection: True)
    result, details = status.cells_v2(cloud)
    assert (result, details[:58]) == (Result.FAILURE, 'No host mappings found but there are compute nodes. Run co')
    with cloud.databases.api().write() as connection:
        cells.map_hosts(connection, cells.get_cell(connection, uuid)['id'], ['gpu1'])
    assert status.cells_v2(cloud) == (Result.SUCCESS, None)


class Answer:
    def __init__(self, body):
        self._body = body

    def json(self):
        if isinstance(self._body, Exception):
            raise self._body
        return self._body


@pytest.mark.parametrize(
    ('answer', 'outcome'),
    [
        ({'versions': [{'max_version': '1.39'}]}, (Result.SUCCESS, None)),
        ({'versions': [{'max_version': '1.36'}]}, (Result.SUCCESS, None)),
        ({'versions': [{'max_version': '1.4'}]}, (Result.FAILURE, 'Placement API version 1.36 needed, you have 1.4.')),
        ({}, (Result.FAILURE, 'The service that [placement] names does not respond like Placement.')),
        (ValueError('html'), (Result.FAILURE, 'The service that [placement] names does not respond like Placement.')),
    ],
)
def test_placement(cloud, monkeypatch, answer, outcome):
    monkeypatch.setattr(session, 'send', lambda *args: Answer(answer))
    assert status.placement_api(cloud) == outcome


@pytest.mark.parametrize('error', [Unanswered(who='Placement', reason='refused'), Exception('password is required')])
def test_placement_that_does_not_answer(cloud, monkeypatch, error):
    def send(*args):
        raise error

    monkeypatch.setattr(session, 'send', send)
    result, details = status.placement_api(cloud)
    assert result is Result.FAILURE
    assert str(error) in details


@pytest.mark.parametrize('worst', list(Result))
def test_exit_code_is_the_worst(write_conf, monkeypatch, capsys, worst):
    monkeypatch.setattr(
        status, 'CHECKS', {'A': lambda cloud: (Result.SUCCESS, None), 'B': lambda cloud: (worst, 'word ' * 20)}
    )
    assert status.main(['--config-file', write_conf(), 'upgrade', 'check']) == int(worst)
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines} == {status.WIDTH + 4}
    assert lines[3].startswith('| Check: A ')
    assert f'| Result: {worst.name.capitalize()} ' in '\n'.join(lines)


def test_error_that_no_check_expects(write_conf, monkeypatch, capsys):
    def check(cloud):
        raise RuntimeError('disk')

    monkeypatch.setattr(status, 'CHECKS', {'A': check})
    assert status.main(['--config-file', write_conf(), 'upgrade', 'check']) == 255
    assert 'RuntimeError: disk' in capsys.readouterr().out


def test_schemas(cloud):
    cells.create_cell(cloud.databases, transport_url='fake://', database_connection=cloud.databases.main_url, name='c1')
    assert status.schemas(cloud) == (Result.SUCCESS, None)
    cells.map_cell0(cloud.databases)
    cloud.cells.reload()
    result, details = status.schemas(cloud)
    assert (result, details) == (Result.FAILURE, "database cell0 is at revision None, run 'kilonova-manage db sync'.")


def test_old_computes(cloud, monkeypatch):
    monkeypatch.setattr(caps, 'minimum_version', lambda cells, binary: versions.OLDEST_SUPPORTED)
    assert status.old_computes(cloud) == (Result.SUCCESS, None)
    monkeypatch.setattr(caps, 'minimum_version', lambda cells, binary: 0)
    assert status.old_computes(cloud) == (Result.SUCCESS, None)
    monkeypatch.setattr(caps, 'minimum_version', lambda cells, binary: versions.OLDEST_SUPPORTED - 1)
    result, details = status.old_computes(cloud)
    assert result is Result.FAILURE
    assert f'does not support computes older than {versions.OLDEST_SUPPORTED}' in details


@pytest.mark.parametrize('binary', ['nova-compute', 'nova-conductor', 'nova-scheduler'])
def test_services_that_hold_messages_back_and_do_not_report(cloud, binary):
    """The upgrade check warns of a service of an old release that no longer reports, with its last report.

    A service of an old release that still reports gives no warning, as it can be upgraded next.
    """
    cells.create_cell(cloud.databases, transport_url='fake://', database_connection=cloud.databases.main_url, name='c1')
    cells.map_cell0(cloud.databases)
    cloud.cells.reload()
    with cloud.databases.main().write() as connection:
        made = services.get_or_create(connection, 'old1', binary, 'topic', version=versions.SERVICE_VERSION - 1)
        services.report(connection, made['id'])
    assert status.silent_services(cloud) == (Result.SUCCESS, None)
    with cloud.databases.main().write() as connection:
        services.update(connection, made['id'], {'last_seen_up': timeutils.utcnow() - datetime.timedelta(days=30)})
    result, details = status.silent_services(cloud)
    assert result is Result.WARNING
    assert f'{binary} on host old1 (version {versions.SERVICE_VERSION - 1}, last report 30 days ago)' in details


@pytest.mark.parametrize(
    ('files', 'words'),
    [
        ({}, None),
        ({'policy.yaml': '"a:b": "role:x"\n'}, None),
        ({'policy.yaml': '{"a:b": "role:x"}'}, 'is JSON-formatted'),
        ({'policy.json': '{"a:b": "role:x"}'}, 'is not read'),
        ({'policy.json': '{}', 'policy.yaml': 'a: b\n'}, None),
    ],
)
def test_policy_files(cloud, tmp_path, files, words):
    """Both are looked for beside the configuration file."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result, details = status.policy_json(cloud)
    assert (result, bool(details)) == ((Result.FAILURE, True) if words else (Result.SUCCESS, False))
    assert words is None or words in details
