"""Hosts that nobody could hear for a while, and a conductor that died on this machine: work goes on, and nothing fails
for that."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kilonova import errors
from kilonova.clients.placement import CONCURRENT_UPDATE
from kilonova.conductor import process
from kilonova.db.queries import instances, operation_leases, operations, services
from kilonova.errors import Unanswered
from tests.fixtures.cloud import Cloud

GPUS = {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']}


@pytest.fixture
def quiet(make_cloud, monkeypatch) -> Cloud:
    """Hosts report when a test says so."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS, report_interval=3600, service_down_time=60, conductor__sweep_interval=15)


def heard(cloud: Cloud, ago: float) -> None:
    """All hosts reported last so many seconds ago."""
    with cloud.cell.write() as conn:
        for row in services.list_services(conn, down_time=60, binary='nova-compute'):
            services.update(conn, row['id'], {'last_seen_up': instances.utcnow() - datetime.timedelta(seconds=ago)})


def await_true(what: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if what():
            return
        pause.wait(0.02)
    raise AssertionError('it did not become true')


def tries(cloud: Cloud) -> int:
    return max((operations.OperationRow.read(row).outputs.get('tries', 0) for row in cloud.rows()), default=0)


def test_a_boot_waits_for_hosts_that_could_not_report(quiet: Cloud) -> None:
    """All hosts count as down since the queue was away: the boots wait, and go on when hosts are heard again."""
    flavor = quiet.flavor(gpus=1)
    heard(quiet, 80)
    servers = [quiet.create(flavor)['server']['id'] for _ in range(2)]
    await_true(lambda: tries(quiet) >= 2)
    assert [quiet.status(server) for server in servers] == ['BUILD', 'BUILD']
    heard(quiet, 0)
    quiet.settle()
    assert [quiet.status(server) for server in servers] == ['ACTIVE', 'ACTIVE']
    quiet.assert_clean()


def test_hosts_that_stay_silent_are_given_up(quiet: Cloud) -> None:
    """Nobody was heard for more than twice service_down_time: the boot ends and says why."""
    # A conductor that heard nobody since it started would wait for them as long.
    quiet.conductors[0].env.liveness.look(quiet.cell)
    heard(quiet, 130)
    server = quiet.boot(quiet.flavor(gpus=1))
    assert quiet.show(server)['fault']['message'].startswith('No valid host was found. ')
    quiet.assert_clean()


def test_nobody_is_given_up_while_the_conductor_does_not_reach_itself(make_cloud) -> None:
    """The queue was away for longer than any patience, and nothing was sent meanwhile: hosts are heard again soon."""
    cloud = make_cloud(GPUS, report_interval=3600, service_down_time=6, conductor__sweep_interval=15)
    flavor, away = cloud.flavor(gpus=1), [True]
    pinged = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'ping':
            pinged.append((topic, host))
            if away[0]:
                raise Unanswered(who=topic, reason='injected silence')
        return deliver()

    cloud.on_message = on_message
    heard(cloud, 100)
    await_true(lambda: len(pinged) >= 2)
    server = cloud.create(flavor)['server']['id']
    await_true(lambda: tries(cloud) >= 2)
    assert cloud.status(server) == 'BUILD' and set(pinged) == {('conductor', cloud.conductors[0].env.host)}
    heard(cloud, 0)
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    # The queue is there, and yet nobody is heard: that ends.
    away[0] = False
    heard(cloud, 100)
    assert cloud.show(cloud.boot(flavor))['fault']['message'].startswith('No valid host was found. ')
    cloud.assert_clean()


def test_nobody_is_refused_for_writing_to_placement_at_the_same_time(quiet: Cloud, monkeypatch) -> None:
    """Stale generations again and again: nobody knows whether there is room, so the boot asks until that is known."""
    seen = []

    def conflicts(method: str, path: str) -> None:
        if method == 'PUT' and path.startswith('/allocations/') and len(seen) < 6:
            seen.append(path)
            raise errors.PlacementConflict(detail='concurrent', placement_code=CONCURRENT_UPDATE)

    monkeypatch.setattr(quiet.placement.client, 'on_request', conflicts)
    monkeypatch.setattr('kilonova.clients.placement.WRITE_ATTEMPTS', 1)
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    server = quiet.boot(quiet.flavor(gpus=1))
    assert quiet.status(server) == 'ACTIVE', quiet.story(server)
    assert len(seen) == 6
    quiet.assert_clean()


def test_a_cancelled_wait_leaves_nothing(quiet: Cloud, monkeypatch) -> None:
    """Delete beside a boot that waits for hosts."""
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 0.2)
    heard(quiet, 80)
    server = quiet.create(quiet.flavor(gpus=1))['server']['id']
    await_true(lambda: tries(quiet) >= 1)
    quiet.request('DELETE', f'/servers/{server}')
    quiet.settle()
    assert quiet.status(server) == 'GONE'
    heard(quiet, 0)
    quiet.assert_empty()


def test_a_resize_waits_for_hosts_that_could_not_report(quiet: Cloud) -> None:
    server = quiet.boot(quiet.flavor(gpus=1))
    heard(quiet, 80)
    response = quiet.request('POST', f'/servers/{server}/action', {'migrate': None})
    assert response.status_int == 202
    await_true(lambda: tries(quiet) >= 2)
    heard(quiet, 0)
    quiet.settle()
    assert quiet.status(server) == 'VERIFY_RESIZE', quiet.story(server)


def test_a_host_at_work_is_asked_again_while_nobody_could_report(quiet: Cloud) -> None:
    """It isn't given up for an alternate: the build stays where it was."""
    silent, asked = [True], []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance':
            asked.append(host)
            if silent[0]:
                raise Unanswered(who=host, reason='injected silence')
        return deliver()

    quiet.on_message = on_message
    flavor = quiet.flavor(gpus=1)
    server = quiet.create(flavor)['server']['id']
    await_true(lambda: len(asked) >= 1)
    heard(quiet, 80)
    await_true(lambda: len(asked) >= 4)
    heard(quiet, 0)
    silent[0] = False
    quiet.settle()
    assert len(set(asked)) == 1 and quiet.host_of(server) == asked[0]
    assert quiet.status(server) == 'ACTIVE'
    quiet.assert_clean()


def test_rows_of_a_dead_process_of_this_machine_go_on_at_once(quiet: Cloud) -> None:
    """Its lease would hold them for another hour. While it lives nobody touches them."""
    server = quiet.boot(quiet.flavor())
    (conductor,) = quiet.conductors
    quiet.on_message = lambda kind, topic, host, method, args, deliver: None if kind == 'cast' else deliver()
    quiet.request('POST', f'/servers/{server}/action', {'os-stop': None})
    quiet.on_message = None
    child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)
    try:
        operation_leases.begin_lease(quiet.cell, 'its-owner', process.describe(conductor.env.host, child.pid), 3600)
        with quiet.cell.write() as conn:
            operation_leases.own(conn, quiet.rows()[0]['uuid'], 'its-owner')
        assert conductor.runner.sweep() == 0
        assert [row['owner'] for row in quiet.rows()] == ['its-owner']
    finally:
        child.kill()
        child.communicate()
    assert conductor.runner.sweep() == 1
    quiet.settle()
    assert quiet.status(server) == 'SHUTOFF'
    with quiet.cell.read() as conn:
        assert [owner for owner, _ in operation_leases.living(conn)] == [conductor.runner.leases.owner_in(quiet.cell)]
