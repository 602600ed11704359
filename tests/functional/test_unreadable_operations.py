"""An operation's row whose text can't be read takes no other operation down, and no server group whose rules can't."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import errors
from kilonova.cmd.manage import operations as manage_operations
from kilonova.context import get_admin_context
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries import host_removals, operations
from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.functional.test_expiry import until

OPERATIONS = models.Operation.__table__
GROUPS = api_models.InstanceGroup.__table__
POLICIES = api_models.InstanceGroupPolicy.__table__
BROKEN = '{"flavor": {"nova_obj'


def plant(cloud: Cloud, server: str, column: str, text: str, kind: str = 'resize', **values: Any) -> str:
    """Write a row of an operation as a restore or a script of an operator left it. Returns its uuid."""
    row = operations.OperationRow.new(get_admin_context(), kind, server)
    with cloud.cell.write() as conn:
        operations.insert(conn, [row])
        conn.execute(OPERATIONS.update().where(OPERATIONS.c.uuid == row.uuid).values({column: text, **values}))
    return row.uuid


def listed(cloud: Any, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert manage_operations.operation_list(cloud, argparse.Namespace(server=None, format='json')) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ('column', 'text'),
    [
        ('args', BROKEN),
        ('args', '"word"'),
        ('context', BROKEN),
        ('outputs', BROKEN),
        ('outputs', '{"select": ["word"]}'),
        ('kind', 'unknown'),
    ],
)
def test_an_operation_that_can_not_be_read_holds_up_no_other(
    cloud: Any,
    column: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operation row that cannot be read does not stop other operations of the same batch.

    The row is logged, listed and named by the audit, and is kept. After `operation forget` the delete of its server
    continues.
    """
    good, bad = (cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1') for _ in range(2))
    uuid = plant(cloud, bad, column, text)
    runner = cloud.conductors[0].runner
    caplog.set_level(logging.ERROR)
    with monkeypatch.context() as patch:
        patch.setattr(runner, 'wake', lambda *args, **kwargs: None)
        cloud.ok('POST', f'/servers/{good}/action', {'os-stop': None})
        until(lambda: not cloud.busy())
    stop = next(row['uuid'] for row in cloud.rows() if row['uuid'] != uuid)
    runner.wake(cloud.cell, [uuid, stop])
    cloud.settle(kinds_left=('resize', 'unknown'))
    assert not runner.holds(uuid) and not runner.holds(stop)
    assert [row['uuid'] for row in cloud.rows()] == [uuid]
    assert cloud.status(good) == 'SHUTOFF', cloud.story(good)
    (said,) = [record.getMessage() for record in caplog.records if uuid in record.getMessage()]
    assert column in said and bad in said
    assert runner.sweep() == 0, 'it is looked at again later'
    (row,) = listed(cloud, capsys)
    assert row['operation'] == uuid and row['state'].startswith('unreadable')
    assert column in row['reason'] and f'operation forget {uuid}' in row['reason']
    report = cloud.audit()
    assert [line for line in report.disagreements if uuid in line and column in line]
    assert not [line for line in report.disagreements if bad not in line]
    for path in ('/servers/detail', '/limits', '/os-hypervisors/detail'):
        assert cloud.request('GET', path).status_int == 200, path
    made = cloud.create(cloud.flavor(gpus=1), availability_zone='nova:gpu2')
    cloud.settle(kinds_left=('resize', 'unknown'))
    assert cloud.status(made['server']['id']) == 'ACTIVE'
    cloud.ok('DELETE', f'/servers/{bad}')
    capsys.readouterr()
    assert manage_operations.operation_forget(cloud, argparse.Namespace(which=uuid)) == 0
    assert manage_operations.operation_forget(cloud, argparse.Namespace(which=uuid)) == 1
    cloud.settle()
    assert cloud.status(bad) == 'GONE'
    cloud.assert_clean()


@pytest.mark.parametrize('column', ['args', 'outputs', 'context', 'error'])
def test_an_operation_of_a_host_that_can_not_be_read(cloud: Cloud, column: str) -> None:
    """A broken row of a host removal or of an aggregate mirror stops neither the audit nor the start of the service."""
    uuids = [plant(cloud, 'c' * 8, column, BROKEN, kind, host='gpu9', slot=kind) for kind in ('host_removal', 'mirror')]
    report = cloud.audit()
    named = [line for line in report.disagreements if uuids[0] in line or uuids[1] in line]
    assert report.disagreements == named and len(named) == (0 if column == 'error' else 2)
    with cloud.cell.read() as conn, pytest.raises(errors.HostIsBeingRemoved):
        host_removals.refuse(conn, 'gpu9')


@pytest.mark.parametrize('text', ['{"max_server', '"word"', '[]', '{"max_server_per_host": "many"}'])
def test_rules_of_a_group_that_can_not_be_read(cloud: Cloud, text: str) -> None:
    """If a server group's rules cannot be read, the list shows all groups and the broken group allows one server per
    host."""
    good, bad = (
        cloud.ok(
            'POST',
            '/os-server-groups',
            {'server_group': {'name': name, 'policy': 'anti-affinity', 'rules': {'max_server_per_host': 2}}},
            version='2.64',
        )['server_group']['id']
        for name in ('good', 'bad')
    )
    with cloud.databases.api().write() as conn:
        of_bad = sa.select(GROUPS.c.id).where(GROUPS.c.uuid == bad).scalar_subquery()
        conn.execute(POLICIES.update().where(POLICIES.c.group_id == of_bad).values(rules=text))
    shown = {one['id']: one['rules'] for one in cloud.ok('GET', '/os-server-groups', version='2.64')['server_groups']}
    assert shown == {good: {'max_server_per_host': 2}, bad: {}}
    assert cloud.ok('GET', f'/os-server-groups/{bad}', version='2.64')['server_group']['rules'] == {}
    flavor = cloud.flavor()
    servers = [
        cloud.ok(
            'POST',
            '/servers',
            {
                'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'},
                'os:scheduler_hints': {'group': bad},
            },
            version='2.64',
        )['server']['id']
        for _ in range(2)
    ]
    cloud.settle()
    assert {cloud.status(server) for server in servers} == {'ACTIVE'}
    assert {cloud.host_of(server) for server in servers} == {'gpu1', 'gpu2'}
    assert cloud.request('DELETE', f'/os-server-groups/{bad}').status_int == 204
