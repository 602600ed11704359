"""A host falls silent for good, nobody says that it is off, and its hypervisor runs on: no second guest is started.

A boot ends in ERROR, a move back waits until the host answers again or is forced down; a delete needn't wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from kilonova import objects
from kilonova.compute.guests import HostGuests
from kilonova.errors import Unanswered
from kilonova.states import PowerState
from kilonova.virt import driver as virt_driver
from tests.fixtures.cloud import Cloud, Crash
from tests.flows.cases import (
    CASES,
    booted,
    check,
    delete,
    force_down,
    look_again,
    lose_host,
    offloaded,
    resized,
    silent_hosts,
)

OTHER = {'gpu1': 'gpu2', 'gpu2': 'gpu1'}


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Hosts whose service counts as down, though nobody forced it."""
    return silent_hosts(monkeypatch)


def lose_at(cloud: Cloud, down: set[str], method: str) -> list[str]:
    """The host that does this dies when it tells the first thing after its claim: its guest is there by then."""
    lost: list[str] = []
    hosts: dict[int, str] = {}

    def on_message(kind: str, topic: str, host: str, called: str, args: dict, deliver: Callable) -> object:
        worker = threading.get_ident()
        if topic == 'compute' and called == method and not lost:
            hosts[worker] = host
            try:
                return deliver()
            except Crash:
                down.add(host)
                lost.append(host)
                cloud.crash_compute(host)
                raise Unanswered(who=host, reason='crashed') from None
            finally:
                hosts.pop(worker, None)
        if topic == 'conductor' and worker in hosts and called == 'save_instance':
            raise Crash
        return deliver()

    cloud.on_message = on_message
    return lost


def back(cloud: Cloud, down: set[str], host: str) -> None:
    cloud.on_message = None
    cloud.start_compute(host)
    down.discard(host)
    force_down(cloud, host, False)
    cloud.settle()


def test_a_boot_whose_host_may_run_the_guest_is_tried_nowhere_else(ground, down):
    lost = lose_at(ground, down, 'build_and_run_instance')
    server = ground.create(ground.small)['server']['id']
    ground.settle(kinds_left=('release',))
    (host,) = lost
    assert ground.status(server) == 'ERROR'
    fault = ground.show(server)['fault']['message']
    assert host in fault and 'may still run the server' in fault, fault
    assert {row['kind'] for row in ground.rows()} == {'release'}
    back(ground, down, host)
    ground.assert_clean()
    assert not ground.owned(server)


def test_a_boot_whose_host_claimed_nothing_goes_on_elsewhere(ground, down):
    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and not down:
            down.add(host)
            raise Unanswered(who=host, reason='dead')
        return deliver()

    ground.on_message = on_message
    server = ground.create(ground.small)['server']['id']
    ground.settle(kinds_left=('release',))
    (host,) = down
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[host])
    down.clear()
    ground.settle()
    ground.assert_clean()


@pytest.mark.parametrize('written', [False, True], ids=['not-claimed', 'claimed'])
def test_a_host_that_comes_back_forced_down_takes_no_order(ground, down, written):
    """An order waited in its queue; an earlier process may have claimed for it."""
    dying: set[str] = set()
    lost: list[str] = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and not lost:
            dying.add(host)
            with contextlib.suppress(Crash):
                deliver()
            dying.clear()
            lost.append(host)
            ground.crash_compute(host)
            force_down(ground, host, True)
            ground.start_compute(host)
            return deliver()
        if method == 'claim_instance' and dying:
            if written:
                deliver()
            raise Crash
        return deliver()

    ground.on_message = on_message
    server = ground.create(ground.small)['server']['id']
    ground.settle(kinds_left=('release',))
    (host,) = lost
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[host])
    assert not runs(ground.computes[host].host.driver, server)
    back(ground, down, host)
    ground.assert_clean()


def test_a_move_waits_for_a_destination_that_may_run_the_guest(ground, down):
    server = booted(ground)
    source = ground.host_of(server)
    lost = lose_at(ground, down, 'finish_resize')
    ground.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': ground.large}})
    ground.settle(kinds_left=('resize',))
    (host,) = lost
    assert host == OTHER[source]
    assert [(row['kind'], row['failed']) for row in ground.rows()] == [('resize', True)]
    # The operator says that it is off.
    force_down(ground, host, True)
    ground.settle(kinds_left=('release',))
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', source)
    back(ground, down, host)
    ground.assert_clean()


def test_a_move_ends_when_the_destination_is_back(ground, down):
    server = booted(ground)
    source = ground.host_of(server)
    lost = lose_at(ground, down, 'finish_resize')
    ground.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': ground.large}})
    ground.settle(kinds_left=('resize',))
    back(ground, down, lost[0])
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', source)
    ground.assert_clean()


def test_a_delete_does_not_wait_for_it(ground, down):
    server = booted(ground)
    source = ground.host_of(server)
    lost = lose_at(ground, down, 'finish_resize')
    ground.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': ground.large}})
    ground.settle(kinds_left=('resize',))
    started: list[str] = []
    driver = ground.computes[source].host.driver
    real = driver.moves.finish_revert_migration
    driver.moves.finish_revert_migration = lambda instance, image, devices, power_on, plugged=None: (
        started.append(power_on),
        real(instance, image, devices, power_on, plugged),
    )
    try:
        delete(ground, server)
        ground.settle(kinds_left=('release',))
    finally:
        driver.moves.finish_revert_migration = real
    assert ground.status(server) == 'GONE' and started == [False]
    back(ground, down, lost[0])
    ground.assert_empty()


def test_an_unshelve_waits_for_a_host_that_may_run_the_guest(ground, down):
    """Whether another host is left or not: somebody may ask again."""
    server = offloaded(ground)
    lost = lose_at(ground, down, 'unshelve_instance')
    ground.request('POST', f'/servers/{server}/action', {'unshelve': None})
    ground.settle(kinds_left=('unshelve',))
    (host,) = lost
    assert [row['kind'] for row in ground.rows()] == ['unshelve']
    assert (ground.status(server), ground.host_of(server)) == ('SHELVED_OFFLOADED', host)
    # The operator says that it is off: the next host takes the server.
    force_down(ground, host, True)
    ground.settle(kinds_left=('release',))
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[host])
    back(ground, down, host)
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[host])
    ground.assert_clean()


def test_a_revert_waits_for_a_destination_that_may_run_the_guest(ground, down):
    server = resized(ground)
    host = ground.host_of(server)
    ground.crash_compute(host)
    down.add(host)
    ground.request('POST', f'/servers/{server}/action', {'revertResize': None})
    ground.settle(kinds_left=('revert',))
    assert ground.status(server) == 'REVERT_RESIZE'
    force_down(ground, host, True)
    ground.settle(kinds_left=('release',))
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[host])
    back(ground, down, host)
    ground.assert_clean()


def test_a_stopped_server_is_reverted_at_once(ground, down):
    """Nothing of it runs anywhere."""
    server = booted(ground)
    ground.action(server, 'os-stop')
    ground.action(server, 'resize', {'flavorRef': ground.large})
    host = ground.host_of(server)
    ground.crash_compute(host)
    down.add(host)
    ground.request('POST', f'/servers/{server}/action', {'revertResize': None})
    ground.settle(kinds_left=('release',))
    assert (ground.status(server), ground.host_of(server)) == ('SHUTOFF', OTHER[host])
    back(ground, down, host)
    ground.assert_clean()


# -- evacuate ----------------------------------------------------------------------------------------------------------
def runs(driver: virt_driver.ComputeDriver, server: str) -> bool:
    return bool(driver.guests.get_info(objects.Instance(uuid=server)) == PowerState.RUNNING)


def evacuate(cloud: Cloud, server: str, *left: str) -> None:
    response = cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}, version='2.94')
    assert response.status_int == 200, response.text
    cloud.settle(kinds_left=left)


def test_a_host_that_was_forced_down_too_early_destroys_its_guest_before_it_is_up(ground, monkeypatch):
    """Its hypervisor ran on. From the moment that it can be up again there is one guest."""
    server = booted(ground)
    source = ground.host_of(server)
    there = ground.computes[source].host.driver
    lose_host(ground, source)
    evacuate(ground, server, 'release')
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', OTHER[source])
    here = ground.computes[OTHER[source]].host.driver
    assert runs(there, server) and runs(here, server), 'the operator said that the host is off, and it was not'
    found: list[bool] = []
    real, boot = virt_driver.load, HostGuests.boot
    monkeypatch.setattr(virt_driver, 'load', lambda conf, images: there if conf.host == source else real(conf, images))
    monkeypatch.setattr(HostGuests, 'boot', lambda self: (found.append(runs(there, server)), boot(self))[1])
    ground.start_compute(source)
    assert found == [False], 'it looks at its guests, and reports, after that one has gone'
    force_down(ground, source, False)
    ground.settle()
    assert (runs(there, server), runs(here, server)) == (False, True)
    ground.assert_clean()


def test_a_host_that_is_no_longer_forced_down_keeps_its_server(ground):
    """Somebody takes the mark away while the other host is being chosen."""
    server = booted(ground)
    source = ground.host_of(server)
    lose_host(ground, source)
    taken: list[str] = []

    def on_message(kind, topic, host, method, args, deliver):
        answer = deliver()
        if method == 'select_destinations' and not taken:
            taken.append(method)
            force_down(ground, source, False)
        return answer

    ground.on_message = on_message
    evacuate(ground, server)
    assert taken and (ground.status(server), ground.host_of(server)) == ('ACTIVE', source)
    assert 'is not forced down (any more)' in str(ground.story(server))
    assert not runs(ground.computes[OTHER[source]].host.driver, server)
    ground.on_message = None
    ground.start_compute(source)
    ground.settle()
    ground.assert_clean()


def test_an_evacuation_waits_for_a_host_that_may_run_the_guest(ground, down):
    server = booted(ground)
    source = ground.host_of(server)
    lose_host(ground, source)
    lost = lose_at(ground, down, 'evacuate_instance')
    evacuate(ground, server, 'evacuate')
    (host,) = lost
    assert host == OTHER[source] and [(row['kind'], row['failed']) for row in ground.rows()] == [('evacuate', True)]
    back(ground, down, host)
    assert (ground.status(server), ground.host_of(server)) == ('ACTIVE', source)
    assert not runs(ground.computes[host].host.driver, server)
    ground.start_compute(source)
    force_down(ground, source, False)
    ground.settle()
    ground.assert_clean()


@pytest.mark.parametrize(
    ('name', 'method'),
    [
        ('resize', 'resize_instance'),
        ('resize', 'finish_resize'),
        ('confirm', 'confirm_resize'),
        ('revert', 'check_revert'),
        ('revert', 'revert_resize'),
        ('revert', 'finish_revert_resize'),
        ('live-migrate', 'pre_live_migration'),
        ('live-migrate', 'live_migration'),
        ('stop', 'stop_instance'),
        ('start', 'start_instance'),
        ('reboot', 'reboot_instance'),
        ('rebuild', 'rebuild_instance'),
    ],
)
def test_a_host_that_comes_back_forced_down_begins_no_step(ground, name, method):
    """A host that restarts while it is forced down refuses steps from its queue, as the operation may be elsewhere by
    then."""
    case, answers, lost = CASES[name], [], []

    def on_message(kind, topic, host, called, args, deliver):
        if (topic, called) != ('compute', method) or lost:
            return deliver()
        lost.append(host)
        ground.crash_compute(host)
        force_down(ground, host, True)
        ground.start_compute(host)
        try:
            answers.append(deliver())
        except Unanswered as error:
            answers.append(str(error))
            raise

    server = case.before(ground)
    ground.on_message = on_message
    case.act(ground, server)
    ground.settle(kinds_left=('release', 'revert'))
    assert answers and f'{lost[0]} is forced down' in str(answers[0])
    back(ground, set(), lost[0])
    look_again(ground)
    check(ground, case, server, *case.ends, 'SHUTOFF')
