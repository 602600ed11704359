"""DELETE of a compute service: node, mapping, members and providers go, whatever fails between two of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.api.services import host_removal as use_case
from kilonova.api.services import hosts
from kilonova.clients import host_removal as removal
from kilonova.context import get_admin_context
from kilonova.db.arguments.releases import HostRemovalArguments
from kilonova.db.queries import aggregates, cells, compute_nodes, operations, services
from tests.fixtures.cloud import Cloud, Crash
from tests.functional.test_audit_of_busy_clouds import look

HOST = 'gpu1'
FOREIGN = '0b5e55ed-0000-4000-8000-00000000f0e1'


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)


@pytest.fixture
def burnt(cloud: Cloud) -> Iterator[Cloud]:
    """Host gpu1 is in two aggregates and will never run again."""
    for name in ('a', 'b'):
        made = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': name}})['aggregate']
        cloud.ok('POST', f'/os-aggregates/{made["id"]}/action', {'add_host': {'host': HOST}})
    cloud.crash_compute(HOST)
    cloud.placement.requests.clear()
    yield cloud
    cloud.placement.before = cloud.placement.after = None


def delete(cloud: Cloud) -> int:
    (service,) = cloud.ok('GET', f'/os-services?host={HOST}&binary=nova-compute')['services']
    return cloud.request('DELETE', f'/os-services/{service["id"]}').status_int


def go_on(cloud: Cloud) -> None:
    """The row is due, and conductors look."""
    for database in (cloud.databases.api(), *cloud.cells.databases()):
        with database.write() as conn:
            conn.exec_driver_sql('UPDATE operations SET not_before = 0')
    for conductor in cloud.conductors:
        conductor.runner.sweep()


def left(cloud: Cloud) -> dict[str, Any]:
    """What the cloud still knows of the host."""
    with cloud.databases.api().read() as conn:
        found: dict[str, Any] = {
            'mapping': cells.get_host(conn, HOST) is not None,
            'aggregates': [row['name'] for row in aggregates.snapshot(conn, hosts=[HOST])],
        }
    found['providers'] = [
        row['name'] for row in cloud.placement.client.list_providers() if row['name'].startswith(HOST)
    ]
    with cloud.cell.read() as conn:
        found['nodes'] = len(compute_nodes.by_host(conn, HOST))
    return found


NOTHING = {'mapping': False, 'aggregates': [], 'providers': [], 'nodes': 0}


def test_one_delete(burnt: Cloud) -> None:
    """At once, and without a row that stays."""
    assert delete(burnt) == 204
    assert left(burnt) == NOTHING and burnt.rows() == []
    burnt.assert_clean()


# A list of the tree, four devices and the root.
REQUESTS = 6


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('lost', range(REQUESTS))
def test_a_request_to_placement_is_lost(burnt: Cloud, lost: int, when: str) -> None:
    """If a request to Placement or its answer is lost while a service is deleted, a conductor completes the removal."""
    asked: list[str] = []

    def lose(method: str, path: str) -> None:
        if threading.current_thread() is front and (method == 'DELETE' or 'in_tree' in path):
            asked.append(path)
            # A question is asked again at once.
            if len(asked) > lost:
                raise burnt.placement.broken()

    front = threading.current_thread()
    setattr(burnt.placement, when, lose)
    assert delete(burnt) == 204
    burnt.placement.before = burnt.placement.after = None
    assert asked and [(row['kind'], row['host']) for row in burnt.rows()] == [('host_removal', HOST)]
    go_on(burnt)
    burnt.settle()
    assert left(burnt) == NOTHING
    burnt.assert_clean()


def test_the_api_database_goes_away_behind_the_first_write(burnt: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delete of a service is accepted and completed later if the API database fails after the first write."""
    real = removal.forget
    silence = burnt.silenced('api')

    def forget(*args: Any) -> None:
        monkeypatch.setattr(removal, 'forget', real)
        silence.__enter__()
        real(*args)

    monkeypatch.setattr(removal, 'forget', forget)
    assert delete(burnt) == 204
    silence.__exit__(None, None, None)
    assert left(burnt) == {**left(burnt), 'mapping': True, 'aggregates': ['a', 'b'], 'nodes': 0}
    go_on(burnt)
    burnt.settle()
    assert left(burnt) == NOTHING
    burnt.assert_clean()


@pytest.mark.parametrize('place', ['forget', 'delete_providers', 'end'])
@pytest.mark.parametrize('when', ['before', 'after'])
def test_the_api_process_dies(burnt: Cloud, monkeypatch: pytest.MonkeyPatch, place: str, when: str) -> None:
    module: Any = operations if place == 'end' else removal
    real, died = getattr(module, place), []

    def die(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not front or died:
            return real(*args, **kwargs)
        died.append(place)
        if when == 'after':
            real(*args, **kwargs)
        raise Crash

    front = threading.current_thread()
    monkeypatch.setattr(module, place, die)
    with pytest.raises(Crash):
        delete(burnt)
    monkeypatch.setattr(module, place, real)
    go_on(burnt)
    burnt.settle()
    assert died and left(burnt) == NOTHING
    burnt.assert_clean()


@pytest.mark.parametrize('step', range(2))
@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_conductor_dies_too(burnt: Cloud, monkeypatch: pytest.MonkeyPatch, step: int, when: str) -> None:
    """Each step may be repeated by the next conductor."""

    def lose(method: str, path: str) -> None:
        raise burnt.placement.broken()

    burnt.placement.before = lose
    assert delete(burnt) == 204
    burnt.placement.before = None
    name = ('forget', 'delete_providers')[step]
    real, died = getattr(removal, name), []

    def die(*args: Any) -> None:
        if died:
            real(*args)
            return
        died.append(name)
        if when == 'after':
            real(*args)
        burnt.expire(burnt.conductors[0])
        raise burnt.placement.broken()

    monkeypatch.setattr(removal, name, die)
    burnt.start_conductor()
    go_on(burnt)
    burnt.settle()
    assert died and left(burnt) == NOTHING
    burnt.assert_clean()


# -- what holds a provider for ever -----------------------------------------------------------------------------------
def hold(cloud: Cloud) -> str:
    """A consumer that is no server holds something of the host; returns the node's uuid."""
    with cloud.cell.read() as conn:
        (node,) = compute_nodes.by_host(conn, HOST)
    cloud.placement.client.claim(
        FOREIGN, {node['uuid']: {'resources': {'VCPU': 1}}}, project_id='p', user_id='u', generation=None
    )
    uuid: str = node['uuid']
    return uuid


def test_a_consumer_that_is_no_server_holds_the_host(burnt: Cloud, operation_list: Callable[[Cloud], Any]) -> None:
    """The removal of a host waits while a foreign consumer holds its provider; `operation list` and the audit give the
    reason and what to do."""
    node = hold(burnt)
    assert delete(burnt) == 204
    go_on(burnt)
    burnt.settle(kinds_left=('host_removal',))
    assert left(burnt) == {**NOTHING, 'providers': [HOST]}
    (shown,) = operation_list(burnt)
    assert (shown['kind'], shown['host'], shown['server']) == ('host_removal', HOST, None)
    assert f'provider {node} ({HOST})' in shown['reason'] and f'{FOREIGN} (VCPU 1)' in shown['reason']
    report, _ = look(burnt)
    assert report.exit_code == 1
    (line,) = report.disagreements
    assert line.startswith(
        f'Placement: provider {node} ({HOST}) of host {HOST}, whose service was deleted, is held by '
        f'consumer {FOREIGN} (VCPU 1)'
    )
    assert f"'openstack resource provider allocation delete {FOREIGN}'" in line
    burnt.placement.client.delete_allocations(FOREIGN)
    go_on(burnt)
    burnt.settle()
    assert left(burnt) == NOTHING
    burnt.assert_clean()


@pytest.fixture
def operation_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Cloud], Any]:
    import argparse
    import json

    from kilonova.cmd.manage import operations as manage_operations

    def shown(cloud: Any) -> Any:
        capsys.readouterr()
        assert manage_operations.operation_list(cloud, argparse.Namespace(server=None, format='json')) == 0
        return json.loads(capsys.readouterr().out)

    return shown


# -- a new machine of that name ---------------------------------------------------------------------------------------
@pytest.mark.parametrize('machine', ['another', 'the same'])
def test_a_new_machine_of_that_name_waits(burnt: Cloud, machine: str) -> None:
    """The removal ends first, then the machine registers; nothing of it is taken for what the old one left."""
    hold(burnt)
    assert delete(burnt) == 204
    if machine == 'another':
        (burnt.directory / HOST / 'compute_id').unlink()
    starting = threading.Thread(target=burnt.start_compute, args=(HOST,))
    starting.start()
    time.sleep(0.5)
    assert starting.is_alive() and left(burnt) == {**NOTHING, 'providers': [HOST]}
    burnt.placement.client.delete_allocations(FOREIGN)
    end = time.monotonic() + 30
    while starting.is_alive() and time.monotonic() < end:
        go_on(burnt)
        starting.join(0.2)
    assert not starting.is_alive()
    cells.discover_hosts(burnt.databases)
    burnt.settle()
    assert left(burnt)['mapping'] and left(burnt)['nodes'] == 1 and HOST in left(burnt)['providers']
    server = burnt.boot(burnt.flavor(gpus=1), host=HOST)
    assert (burnt.status(server), burnt.host_of(server)) == ('ACTIVE', HOST)
    burnt.assert_clean()


def test_what_comes_late_changes_nothing_of_the_new_host(burnt: Cloud) -> None:
    """An API process that stood still goes on when the host is there again."""
    with burnt.cell.read() as conn:
        (node,) = compute_nodes.by_host(conn, HOST)
    assert delete(burnt) == 204
    burnt.start_compute(HOST)
    cells.discover_hosts(burnt.databases)
    burnt.ok('POST', '/os-aggregates/1/action', {'add_host': {'host': HOST}})
    before = left(burnt)
    removal.forget(burnt.databases.api(), burnt.cell, HOST)
    removal.delete_providers(burnt.placement.client, burnt.cells, [node['uuid']], lambda: None)
    assert left(burnt) == before and before['aggregates'] == ['a'] and HOST in before['providers']
    burnt.assert_clean()


def test_a_host_of_another_cell_is_left_alone(make_cloud: Callable[..., Cloud]) -> None:
    """A machine of that name was set up in another cell meanwhile."""
    cloud = make_cloud(cells={'cell1': ['gpu1'], 'cell2': ['gpu2']})
    removal.forget(cloud.databases.api(), cloud.cell_named('cell1'), 'gpu2')
    with cloud.databases.api().read() as conn:
        assert cells.get_host(conn, 'gpu2') is not None


def test_two_deletes_at_once(burnt: Cloud) -> None:
    """Each found the service; the second one is told that it is gone, and writes no row."""
    with burnt.cell.read() as conn:
        row = services.get(conn, host=HOST, binary='nova-compute')
    assert row is not None
    assert delete(burnt) == 204
    with pytest.raises(hosts.NoSuchService):
        use_case._destroy(
            burnt.cell,
            row,
            operations.OperationRow.new(
                get_admin_context(),
                'host_removal',
                row['uuid'],
                HostRemovalArguments(host=HOST, nodes=[]),
                beside=True,
                host=HOST,
            ),
        )
    assert burnt.rows() == []
