"""The audit reports records of a host that exist in one store and are missing in another, with what to do.

The stores are the cell database, the API database and Placement.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.clients import aggregates as mirror
from kilonova.clients.providers import OWNER
from kilonova.conductor.audit import compare as audit
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.arguments.releases import SyncAggregateArguments
from kilonova.db.models.api import AggregateHost, HostMapping
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.db.queries import cells
from kilonova.db.queries.operations import OperationRow, insert
from tests.fixtures.cloud import Cloud
from tests.functional.test_audit_of_busy_clouds import look

SERVICES, NODES = Service.__table__, ComputeNode.__table__
STRAY, CONSUMER = '57a90000-0000-4000-8000-000000000001', 'c0250000-0000-4000-8000-000000000001'


def aggregate(cloud: Cloud, name: str, *hosts: str) -> dict[str, Any]:
    made: dict[str, Any] = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': name}})['aggregate']
    for host in hosts:
        cloud.ok('POST', f'/os-aggregates/{made["id"]}/action', {'add_host': {'host': host}})
    return made


def node_of(cloud: Cloud, host: str) -> str:
    found: str = cloud.computes[host].host.tracker.node.uuid
    return found


def disagreements(cloud: Cloud) -> list[str]:
    report, _ = look(cloud)
    assert report.exit_code == (1 if report.disagreements else 0)
    return report.disagreements


def service(cloud: Cloud, host: str, age: datetime.timedelta) -> None:
    with cloud.cell.write() as conn:
        now = conn.execute(sa.select(engine.db_utcnow())).scalar_one()
        conn.execute(
            SERVICES.insert().values(
                uuid=CONSUMER, host=host, binary='nova-compute', topic='compute', version=1, created_at=now - age
            )
        )


# -- databases --------------------------------------------------------------------------------------------------------
def test_a_mapping_without_a_service(cloud: Cloud) -> None:
    with cloud.databases.api().write() as conn:
        cells.map_hosts(conn, cloud.cell.cell.id, ['gone'])
    uuid = cloud.cell.cell.uuid
    line = (
        'database: host gone is mapped to cell cell1, which has no compute service for this host: start '
        f"nova-compute there, or run 'kilonova-manage cell_v2 delete_host --cell_uuid {uuid} --host gone'"
    )
    assert disagreements(cloud) == [line]


def test_a_mapping_to_another_cell_than_the_services(make_cloud: Callable[..., Cloud]) -> None:
    cloud = make_cloud(cells={'cell1': ['gpu1'], 'cell2': ['gpu2']})
    assert disagreements(cloud) == []
    with cloud.databases.api().write() as conn:
        conn.execute(
            HostMapping.__table__.update()
            .where(HostMapping.__table__.c.host == 'gpu2')
            .values(cell_id=cloud.cell_named('cell1').cell.id)
        )
    # Messages to it take the wrong queue.
    (line,) = look(cloud, compute=None)[0].disagreements
    assert line.startswith('database: host gpu2 is mapped to cell cell1, which has no compute service for this host')


def test_a_member_of_an_aggregate_without_a_service(cloud: Cloud) -> None:
    made = aggregate(cloud, 'a', 'gpu1')
    with cloud.databases.api().write() as conn:
        conn.execute(AggregateHost.__table__.insert().values(aggregate_id=made['id'], host='gone'))
    line = "database: host gone of aggregate a has no compute service: run 'openstack aggregate remove host a gone'"
    assert disagreements(cloud) == [line]


def test_a_node_without_a_service(cloud: Cloud) -> None:
    with cloud.cell.write() as conn:
        conn.execute(SERVICES.update().where(SERVICES.c.host == 'gpu1').values(deleted=SERVICES.c.id))
    lines = disagreements(cloud)
    assert lines[0] == (
        'database: node gpu1 of host gpu1 has no compute service: start nova-compute there; if the '
        'host is to be removed, delete the service afterwards'
    )
    assert len(lines) == 2 and lines[1].startswith('database: host gpu1 is mapped to cell cell1, which has no compute')


@pytest.mark.parametrize(('minutes', 'told'), [(5, False), (15, True)])
def test_a_service_without_a_node(cloud: Cloud, minutes: int, told: bool) -> None:
    service(cloud, 'gpu9', datetime.timedelta(minutes=minutes))
    line = (
        'database: the compute service of gpu9 has no node: its log says why it does not start; '
        f"if the host is gone, run 'openstack compute service delete {CONSUMER}'"
    )
    assert disagreements(cloud) == [line] * told


# -- Placement --------------------------------------------------------------------------------------------------------
def test_a_provider_without_a_node(cloud: Cloud) -> None:
    """Its children aren't named, and neither is what belongs to others."""
    client = cloud.placement.client
    client.sync_compute(
        STRAY,
        'gone',
        {'VCPU': {'total': 4}},
        (),
        {'gone_0000:08:00.0': {'resource_class': 'CUSTOM_GPU', 'traits': [OWNER], 'total': 1}},
    )
    client.ensure_provider('storage', CONSUMER)
    line = (
        f'Placement: provider {STRAY} (gone) belongs to no compute node%s: stop nova-compute there if it runs; '
        "then run 'openstack resource provider delete' for its children and for the provider itself"
    )
    assert disagreements(cloud) == [line % '']
    client.claim(CONSUMER, {STRAY: {'resources': {'VCPU': 2}}}, project_id='p', user_id='u', generation=None)
    assert disagreements(cloud) == [line % f', and consumer {CONSUMER} holds VCPU 2 of it']


def test_aggregates_that_differ(cloud: Cloud) -> None:
    first, second = aggregate(cloud, 'a', 'gpu1'), aggregate(cloud, 'b')
    assert disagreements(cloud) == []
    client, one, two = cloud.placement.client, node_of(cloud, 'gpu1'), node_of(cloud, 'gpu2')
    client.set_member(one, first['uuid'], False)
    client.set_member(two, second['uuid'], True)
    remedy = "run 'kilonova-manage placement sync_aggregates'"
    assert disagreements(cloud) == [
        f'Placement: provider {one} (gpu1) is not in aggregate a, its host gpu1 is: {remedy}',
        f'Placement: provider {two} (gpu2) is in aggregate b, its host gpu2 is not: {remedy}',
    ]
    # A change that conductors still bring there is no disagreement.
    waiting = [
        OperationRow.new(
            get_admin_context(),
            mirror.KIND,
            made['uuid'],
            SyncAggregateArguments(aggregate=made['uuid'], host=host),
            beside=True,
        )
        for made, host in ((first, 'gpu1'), (second, 'gpu2'))
    ]
    with cloud.databases.api().write() as conn:
        for row in waiting:
            row.not_before = engine.now(conn) + 3600
        insert(conn, waiting)
    report, _ = look(cloud)
    assert (report.disagreements, len(report.in_flight)) == ([], 2)


def test_a_host_that_was_taken_out_of_its_cell_leaves_its_aggregates_in_placement(cloud: Cloud) -> None:
    """As after cell_v2 delete_host: its node is there, without a mapping."""
    made = aggregate(cloud, 'a', 'gpu1')
    with cloud.databases.api().write() as conn:
        cells.unmap_host(conn, 'gpu1')
    cloud.ok('POST', f'/os-aggregates/{made["id"]}/action', {'remove_host': {'host': 'gpu1'}})
    assert cloud.placement.client.list_providers(member_of=made['uuid']) == []
    cloud.placement.client.set_member(node_of(cloud, 'gpu1'), made['uuid'], True)
    assert len(disagreements(cloud)) == 1
    assert mirror.bring_all_up_to_date(cloud.placement.client, cloud.databases.api(), cloud.cells) == ['gpu1: a']
    cloud.settle()
    assert disagreements(cloud) == []


def test_statements_do_not_grow_with_hosts_and_aggregates(cloud: Cloud) -> None:
    """And of Placement one more question is asked for each aggregate."""

    def statements() -> int:
        found: list[str] = []
        stop = engine.listen(
            lambda database, statement, many: found.append(statement) if threading.current_thread() is here else None
        )
        try:
            audit._AuditRun(
                cloud.databases,
                cloud.cells,
                cloud.placement.reader,
                None,  # type: ignore[arg-type]
                get_admin_context(),
                None,
                None,
                None,
                None,
                {},
                0.0,
            ).report()
        finally:
            stop()
        return len(found)

    here = threading.current_thread()
    before = statements()
    for name in 'abcde':
        aggregate(cloud, name, 'gpu1', 'gpu2')
    assert statements() == before
