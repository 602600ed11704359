"""kilonova-manage scheduler: explain, dry-run, capacity."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from kilonova.clients import session
from kilonova.clients.placement import PlacementClient
from kilonova.cmd.daemon import parts
from kilonova.cmd.manage import main as manage
from kilonova.db import engine
from kilonova.db.clock import db_utcnow
from kilonova.db.models.api import Aggregate, AggregateHost, AggregateMetadata
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.db.queries import decisions, flavors
from tests.fixtures.placement import Placement, placement
from tests.unit.scheduler.builders import node as row_of
from tests.unit.scheduler.builders import pools, uuid

__all__ = ['placement']

S1 = uuid('s1')


@pytest.fixture
def hosts(cloud, parse, placement: Placement, monkeypatch):
    """Two computes of 16 vCPUs, one disabled, and a flavor of four; the command."""
    databases = engine.configure(parse())
    flavors.create(
        databases.api(),
        {
            'name': 'quad',
            'flavorid': '7',
            'vcpus': 4,
            'memory_mb': 64,
            'root_gb': 1,
            'ephemeral_gb': 0,
            'swap': 0,
            'disabled': False,
            'is_public': True,
        },
    )
    with databases.main().write() as connection:
        for name, disabled in (('gpu1', False), ('gpu2', True)):
            placement.host(name, uuid=uuid(name), vcpus=16)
            row = row_of(name)
            connection.execute(
                ComputeNode.__table__.insert(),
                {key: value for key, value in row.items() if key not in ('id', 'service')},
            )
            connection.execute(
                Service.__table__.insert().values(
                    uuid=uuid(f'service {name}'),
                    host=name,
                    binary='nova-compute',
                    topic='compute',
                    disabled=disabled,
                    last_seen_up=db_utcnow(),
                )
            )
    databases.dispose()
    monkeypatch.setattr(parts, 'placement', lambda conf: placement.client)
    return cloud


def told(run, *arguments):
    code, lines = run('scheduler', *arguments, '--format', 'json')
    return code, json.loads('\n'.join(lines))


def test_capacity(hosts, placement):
    code, found = told(hosts, 'capacity', '--flavor', '7')
    assert (code, found['total'], found['hosts'], found['zones']) == (0, 4, {'gpu1': 4, 'gpu2': 0}, {'nova': 4})
    assert found['flavor'] == '7' and list(found['cells'].values()) == [4] and found['silent'] == []
    assert told(hosts, 'capacity', '--flavor', 'quad')[1]['total'] == 4
    assert told(hosts, 'capacity', '--flavor', 'quad', '--az', 'nova:gpu1')[1]['hosts'] == {'gpu1': 4}
    code, lines = hosts('scheduler', 'capacity', '--flavor', '7', '--format', 'prometheus')
    assert 'kilonova_capacity_servers{flavor="7"} 4' in lines
    assert any(
        line.split()[1:4] == ['total', '|', '|'] and '4' in line
        for line in hosts('scheduler', 'capacity', '--flavor', '7')[1]
    )
    assert hosts('scheduler', 'capacity', '--flavor', 'nope') == (2, ['Flavor nope could not be found.'])
    assert placement.allocations() == {}


def test_the_table_tells_devices_by_alias_numa_policy_and_device(hosts, write_conf, parse):
    databases = engine.configure(parse())
    flavors.create(
        databases.api(),
        {
            'name': 'gpu',
            'flavorid': '8',
            'vcpus': 4,
            'memory_mb': 64,
            'root_gb': 1,
            'ephemeral_gb': 0,
            'swap': 0,
            'disabled': False,
            'is_public': True,
        },
    )
    flavors.set_specs(
        databases.api(), '8', {'pci_passthrough:alias': 'gpu:1', 'hw:pci_numa_affinity_policy': 'required'}
    )
    with databases.main().write() as connection:
        connection.execute(
            ComputeNode.__table__.update()
            .where(ComputeNode.host == 'gpu1')
            .values(pci_stats=pools('0000:08:00.0', '0000:09:00.0', host='gpu1'))
        )
    databases.dispose()
    write_conf(sections='[pci]\nalias = {"name": "gpu", "vendor_id": "10de", "product_id": "13f1"}')
    _, lines = hosts('scheduler', 'capacity', '--flavor', 'gpu')
    assert [[cell.strip() for cell in line.split('|')[1:4]] for line in lines if 'free' in line] == [
        ['free gpu (required)', '10de:13f1', '2']
    ]
    assert told(hosts, 'capacity', '--flavor', 'gpu')[1]['devices'] == {'gpu': {'required': {'10de:13f1': 2}}}


def test_the_answer_is_that_of_a_project(hosts, parse, write_conf, placement):
    """Aggregates in Placement that are a project's own, and one who has none."""
    databases = engine.configure(parse())
    with databases.api().write() as connection:
        key = connection.execute(
            Aggregate.__table__.insert(), {'uuid': uuid('gold'), 'name': 'gold'}
        ).inserted_primary_key[0]
        connection.execute(AggregateHost.__table__.insert(), {'host': 'gpu1', 'aggregate_id': key})
        connection.execute(
            AggregateMetadata.__table__.insert(), {'aggregate_id': key, 'key': 'filter_tenant_id', 'value': 'gold'}
        )
    databases.dispose()
    placement.client.set_member(uuid('gpu1'), uuid('gold'), True)
    write_conf(
        sections='[scheduler]\nlimit_tenants_to_placement_aggregate = true\n'
        'placement_aggregate_required_for_tenants = true'
    )
    assert told(hosts, 'capacity', '--flavor', '7', '--project', 'gold')[1]['total'] == 4
    assert told(hosts, 'capacity', '--flavor', '7', '--project', 'other')[1]['total'] == 0
    assert told(hosts, 'capacity', '--flavor', '7')[1]['total'] == 0
    assert told(hosts, 'dry-run', '--flavor', '7', '--project', 'gold')[1]['hosts'] == ['gpu1']
    assert told(hosts, 'dry-run', '--flavor', '7', '--project', 'other')[0] == 1


def test_dry_run(hosts, placement):
    code, found = told(hosts, 'dry-run', '--flavor', '7', '--count', '2')
    assert (code, found['hosts'], len(found['decisions'])) == (0, ['gpu1', 'gpu1'], 2)
    code, found = told(hosts, 'dry-run', '--flavor', '7', '--count', '5')
    assert (code, found['hosts']) == (1, [])
    assert found['decisions'][0]['failure'] == (
        'No valid host was found. 2 hosts considered: 1 could take one of the servers, not all of them, 1 disabled.'
    )
    code, lines = hosts('scheduler', 'dry-run', '--flavor', '7')
    assert code == 0 and '2 hosts considered; chosen: gpu1' in lines
    assert told(hosts, 'dry-run', '--flavor', '7', '--hint', f'same_host={S1}')[0] == 0
    assert placement.allocations() == {}


@pytest.mark.parametrize('command', ['dry-run', 'capacity'])
@pytest.mark.parametrize(('image', 'who'), [((), 'Placement'), (('--image', uuid('image')), 'The image service')])
def test_a_service_that_does_not_answer_has_an_exit_code_of_its_own(
    hosts, write_conf, monkeypatch, capsys, command, image, who
):
    monkeypatch.setattr(parts, 'placement', lambda conf: PlacementClient(session.adapter(conf, 'placement')))
    path = write_conf(sections='[glance]\nauth_type = none\nendpoint_override = http://127.0.0.1:1')
    assert manage.main(['--config-file', path, 'scheduler', command, '--flavor', '7', *image]) == 3
    told = capsys.readouterr()
    assert told.err.count(f'kilonova-manage: {who} does not answer: ') == 1 and 'Traceback' not in told.out + told.err


def test_explain(cloud, parse):
    assert cloud('scheduler', 'explain', S1) == (1, [f'No decision is stored for {S1}.'])
    databases = engine.configure(parse())
    at = dt.datetime(2026, 3, 1, 12)
    body = {
        'asked': {'vcpus': 4},
        'considered': 2,
        'chosen': 'gpu1',
        'alternates': ['gpu3'],
        'filters': [{'filter': 'ComputeFilter', 'before': 2, 'after': 1, 'fell': [{'host': 'gpu2', 'disabled': True}]}],
        'weighed': [{'host': 'gpu1', 'weight': 1.0, 'free_ram_mb': 77}],
        'claims_refused': ['gpu4'],
    }
    refused = {
        'asked': {'vcpus': 4},
        'considered': 1,
        'chosen': None,
        'failure': 'No valid host was found. Why.',
        'hosts': [{'host': 'gpu2', 'turned_away_by': ['disabled'], 'why': ['disabled']}],
    }
    with databases.api().write() as connection:
        decisions.add(
            connection,
            [
                {'request_id': 'req-1', 'instance_uuid': S1, 'created_at': at, 'chosen': 'gpu1', 'body': body},
                {'request_id': 'req-2', 'instance_uuid': S1, 'created_at': at, 'chosen': None, 'body': refused},
            ],
        )
        columns = {
            **body,
            'filters': [{**body['filters'][0], 'fell': {'host': ['gpu2'], 'disabled': [True]}}],
            'weighed': {'host': ['gpu1'], 'weight': [1.0], 'free_ram_mb': [77]},
        }
        decisions.add(
            connection,
            [{'request_id': 'req-3', 'instance_uuid': S1, 'created_at': at, 'chosen': 'gpu1', 'body': columns}],
        )
    databases.dispose()
    code, found = told(cloud, 'explain', S1)
    assert code == 0 and [row['body'] for row in found] == [body, refused, body]
    assert found[0]['created_at'] == '2026-03-01T12:00:00'
    assert [row['request_id'] for row in told(cloud, 'explain', 'req-2')[1]] == ['req-2']
    lines = '\n'.join(cloud('scheduler', 'explain', S1)[1])
    for words in (
        '2 hosts considered; chosen: gpu1; alternates: gpu3',
        'gpu2 (disabled True)',
        'claims refused: gpu4',
        'No valid host was found. Why.',
        f'2026-03-01T12:00:00.000Z server {S1} (request req-1)',
        ' 77 ',
    ):
        assert words in lines
