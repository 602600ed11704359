"""A host dies while it works on a server, and is forced down: the server is evacuated at once, whatever it was at.

Tools that see to hosts ask once. The operation that was under way ends, and is never done afterwards; a delete wins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kilonova.db.queries import operations
from kilonova.errors import Unanswered
from tests.fixtures.cloud import Cloud
from tests.flows.cases import CASES, delete, force_down, lose_host

RELEASE = ('release',)
# Each operation that a server which may be evacuated can be at.
BUSY = (
    'stop',
    'start',
    'reboot',
    'reboot-soft',
    'pause',
    'suspend',
    'crash-dump',
    'snapshot',
    'backup',
    'shelve',
    'shelve-stopped',
    'resize',
    'resize-stopped',
    'migrate',
    'live-migrate',
    'rebuild',
    'rebuild-stopped',
    'rescue',
    'rescue-stopped',
    'change-password',
)
# An operation of each kind of steps: those that only begin it need not be tried in each way.
FEW = ('stop', 'snapshot', 'shelve', 'resize', 'live-migrate', 'rebuild')


@pytest.fixture(autouse=True)
def _long_pauses(monkeypatch: pytest.MonkeyPatch, ground: Cloud) -> Iterator[None]:
    """Nothing is tried again by itself while a test runs."""
    with monkeypatch.context() as patch:
        patch.setattr('kilonova.conductor.work.PAUSE', 600.0)
        patch.setattr('kilonova.conductor.work.LONGEST_PAUSE', 600.0)
        yield
    for host in set(ground.gpus) - set(ground.computes):
        ground.start_compute(host)
        force_down(ground, host, False)
    fall_due(ground)


def hang(cloud: Cloud, name: str, answered: threading.Event | None = None) -> tuple[str, str]:
    """Return a server in the middle of an operation, and its host, which doesn't answer.

    The operation waits for its next try; with ``answered`` it waits in its call to the host until that is set.
    """
    case = CASES[name]
    server = case.before(cloud)
    assert server is not None
    host, asked = cloud.host_of(server), []

    def silent(kind: str, topic: str, to: str | None, method: str, args: dict[str, Any], deliver: Any) -> Any:
        if topic == 'compute' and to == host and 'key' in args:
            asked.append(method)
            if answered is not None:
                assert answered.wait(30)
            raise Unanswered(who=host, reason='it hangs')
        return deliver()

    cloud.on_message = silent
    case.act(cloud, server)
    wait_for(lambda: asked and (answered is not None or not cloud.busy()))
    return server, host


def wait_for(what: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def die(cloud: Cloud, host: str) -> None:
    lose_host(cloud, host)
    cloud.on_message = None


def evacuate(cloud: Cloud, server: str, expect: int = 200) -> Any:
    response = cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}})
    assert response.status_int == expect, response.text
    return response


def come_back(cloud: Cloud, host: str) -> None:
    """The host starts, with what waits in its queue, and nothing is to be given back any more."""
    cloud.start_compute(host)
    force_down(cloud, host, False)
    fall_due(cloud)
    for conductor in cloud.conductors:
        conductor.runner.sweep()
    cloud.settle()


def fall_due(cloud: Cloud) -> None:
    """Whatever waits for its time has waited for long enough."""
    with cloud.cell.write() as conn:
        conn.execute(operations.operations.update().values(not_before=0))


@pytest.mark.parametrize('name', BUSY)
def test_a_server_is_evacuated_at_once_whatever_hangs(ground: Cloud, name: str) -> None:
    """A server whose host is forced down is evacuated at once, even if a call of its current operation hangs."""
    server, host = hang(ground, name)
    die(ground, host)
    evacuate(ground, server)
    check_evacuated(ground, server, host)


@pytest.mark.parametrize('name', FEW)
def test_an_evacuation_is_accepted_beside_a_call_that_has_not_ended(ground: Cloud, name: str) -> None:
    """An evacuation is accepted while a call to the dead host has not ended, and starts when that call has ended."""
    answered = threading.Event()
    server, host = hang(ground, name, answered)
    die(ground, host)
    evacuate(ground, server)
    evacuate(ground, server, 409)
    assert ground.show(server)['OS-EXT-STS:task_state'] == 'rebuilding' and ground.host_of(server) == host
    answered.set()
    check_evacuated(ground, server, host)


def check_evacuated(cloud: Cloud, server: str, host: str) -> None:
    """The server is on another host, what hung has failed, and the host that comes back does nothing of it."""
    cloud.settle(kinds_left=RELEASE)
    assert cloud.host_of(server) not in (None, host), cloud.story(server)
    assert cloud.status(server) == 'SHUTOFF', cloud.story(server)
    assert cloud.show(server)['OS-EXT-STS:task_state'] is None
    actions = {
        action['action']: action['message']
        for action in cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    }
    assert actions.pop('evacuate') is None
    assert host in next(iter(actions.values())), 'it names the reason'
    come_back(cloud, host)
    assert cloud.status(server) == 'SHUTOFF' and cloud.host_of(server) != host
    cloud.assert_clean()


@pytest.mark.parametrize('name', FEW)
def test_a_delete_wins_over_an_evacuation_that_waits(ground: Cloud, name: str) -> None:
    answered = threading.Event()
    server, host = hang(ground, name, answered)
    die(ground, host)
    evacuate(ground, server)
    delete(ground, server)
    answered.set()
    ground.settle(kinds_left=RELEASE)
    assert ground.status(server) == 'GONE'
    come_back(ground, host)
    ground.assert_empty()


@pytest.mark.parametrize('state', ['active', 'error'])
def test_a_reset_of_the_state_ends_an_evacuation_that_waits(ground: Cloud, state: str) -> None:
    answered = threading.Event()
    server, host = hang(ground, 'stop', answered)
    die(ground, host)
    evacuate(ground, server)
    ground.action(server, 'os-resetState', {'state': state})
    answered.set()
    ground.settle(kinds_left=RELEASE)
    assert (ground.status(server), ground.host_of(server)) == (state.upper(), host), ground.story(server)
    evacuate(ground, server)
    ground.settle(kinds_left=RELEASE)
    assert ground.host_of(server) != host
    come_back(ground, host)
    ground.assert_clean()


def test_a_guest_that_has_left_the_dead_host_is_not_built_anew(ground: Cloud) -> None:
    """The live migration had come to its end when its source died: the server is the other host's, as it is."""
    server = CASES['live-migrate'].before(ground)
    source, answered, carried = ground.host_of(server), threading.Event(), []

    def late(kind: str, topic: str, to: str | None, method: str, args: dict[str, Any], deliver: Any) -> Any:
        if method == 'live_migration':
            deliver()
            carried.append(server)
            answered.wait(30)
            raise Unanswered(who=source, reason='it died')
        return deliver()

    ground.on_message = late
    CASES['live-migrate'].act(ground, server)
    wait_for(lambda: carried)
    die(ground, source)
    evacuate(ground, server)
    answered.set()
    ground.settle(kinds_left=RELEASE)
    assert ground.host_of(server) != source and ground.status(server) == 'ACTIVE', ground.story(server)
    come_back(ground, source)
    ground.assert_clean()


@pytest.mark.parametrize('name', FEW)
def test_what_waits_for_a_host_ends_as_soon_as_it_is_forced_down(ground: Cloud, name: str) -> None:
    """An operation that waits for a silent host ends when the host is forced down, not at its next try in 600 s."""
    server, host = hang(ground, name)
    die(ground, host)
    ground.settle(kinds_left=RELEASE)
    assert ground.show(server)['OS-EXT-STS:task_state'] is None
    assert (
        f'compute service of host {host} is down'
        in ground.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions'][0]['message']
    )


def test_what_is_parked_for_a_silent_host_goes_on_when_that_is_forced_down(ground: Cloud) -> None:
    """An operation that is parked because its host is silent continues when the host is forced down.

    The conductor sends one call at a time to a silent host; other operations of that host wait for the end of this
    call.
    """
    answered = threading.Event()
    others = {host: ground.boot(ground.flavor(), host=host) for host in ground.gpus}
    _, host = hang(ground, 'stop', answered)
    other = others[host]
    (conductor,) = ground.conductors
    conductor.runner.slots.silent(host)
    ground.request('POST', f'/servers/{other}/action', {'os-stop': None})
    wait_for(conductor.runner.slots.parked)
    die(ground, host)
    wait_for(lambda: ground.show(other)['OS-EXT-STS:task_state'] is None)
    answered.set()
    ground.settle(kinds_left=RELEASE)
