"""The first host refuses at its claim; the same disturbances meet the second attempt, and the undo of the first.

What happens before the refusal is that of ``test_every_step``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor import flows
from kilonova.conductor.work import Work
from kilonova.errors import ClaimConflict, HostRejected, KilonovaError, Unanswered
from tests.fixtures.cloud import Cloud, Crash
from tests.flows.cases import CASES, Subjects, check, disturb, first_after_each_effect

# Where a server moves there are two more.
GPUS = {
    'gpu1': ['0000:08:00.0', '0000:09:00.0'],
    'gpu2': ['0000:85:00.0', '0000:86:00.0'],
    'gpu3': ['0000:05:00.0', '0000:06:00.0'],
}
REFUSED = ['boot', 'resize', 'migrate']


def again(name: str) -> list[int]:
    """The steps that a second attempt does."""
    steps = flows.FLOWS[CASES[name].kind].steps
    first = next(step.again_from for step in steps if step.again_from is not None)
    return list(range(flows.FLOWS[CASES[name].kind].index(first), len(steps)))


STEPS = [(name, index) for name in REFUSED if not CASES[name].variant for index in again(name)]
STEP_IDS = [f'{name}-{flows.FLOWS[CASES[name].kind].steps[index].name}' for name, index in STEPS]


class Refusal:
    """The first claim of a host is refused. ``said``: [] before that."""

    def __init__(self, cloud: Cloud, error: Exception | None = None) -> None:
        self.said: list[str] = []
        self._error = error or ClaimConflict(devices='injected')
        cloud.on_message = self.on_message

    def on_message(
        self, kind: str, topic: str, host: str | None, method: str, args: dict[str, Any], deliver: Callable[[], Any]
    ) -> Any:
        if method == 'claim_instance' and not self.said:
            self.said.append(args['claim'].host)
            raise self._error
        return deliver()


def attempted(cloud: Cloud, refusal: Refusal, server: str, good: str) -> None:
    """The next host took it, where all went well."""
    if cloud.status(server) == good and refusal.said:
        assert cloud.host_of(server) not in refusal.said


@pytest.mark.parametrize(
    'error',
    [ClaimConflict(devices='injected'), HostRejected(reason='injected')],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize('name', REFUSED)
def test_the_next_host_takes_it(ground, name, error):
    case, refusal = CASES[name], Refusal(ground, error)
    refusal.said.append('not yet')
    server = case.before(ground)
    refusal.said.clear()
    server = case.act(ground, server)
    check(ground, case, server, case.good)
    assert refusal.said
    attempted(ground, refusal, server, case.good)


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize(('name', 'index'), STEPS, ids=STEP_IDS)
def test_a_step_fails(ground, monkeypatch, name, index, when):
    case, failed = CASES[name], []
    server = case.before(ground)
    refusal = Refusal(ground)

    def do(real, work):
        if failed or work.attempt == 1:
            return real(work)
        if when == 'after':
            real(work)
        failed.append(work.attempt)
        raise KilonovaError('injected failure')

    disturb(monkeypatch, case.kind, index, do)
    server = case.act(ground, server)
    last_written = when == 'after' and index == len(flows.FLOWS[case.kind].steps) - 1
    check(ground, case, server, case.good if last_written else case.bad)
    assert failed == [2]
    attempted(ground, refusal, server, case.good)


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize(('name', 'index'), STEPS, ids=STEP_IDS)
def test_delete_at_a_step(ground, monkeypatch, name, index, when):
    case, deleted = CASES[name], []
    server = case.before(ground)
    Refusal(ground)

    def do(real: Callable[[Work], Any], work: Work) -> Any:
        if deleted or work.attempt == 1:
            return real(work)
        result = real(work) if when == 'after' else None
        deleted.append(case.remove(ground, work.instance_uuid))
        return result if when == 'after' else real(work)

    disturb(monkeypatch, case.kind, index, do)
    server = case.act(ground, server)
    check(ground, case, server, 'GONE')
    assert deleted == [server]
    ground.assert_empty()


@pytest.mark.parametrize('lost', ['message', 'reply'])
@pytest.mark.parametrize('name', REFUSED)
def test_each_message_is_lost_in_turn(ground, name, lost):
    """From the refusal on: what the host tells of it, the undo of its attempt, the next attempt. Of each second message
    the reply is lost."""
    case, number, seen = CASES[name], int(lost == 'reply'), [None, None]
    subjects = Subjects(ground, case)
    while len(seen) > number:
        server, seen = subjects.next(), []
        refusal = Refusal(ground)

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen, refusal=refusal):
            if not refusal.said:
                return refusal.on_message(kind, topic, host, method, args, deliver)
            # Heartbeats come from threads of their own.
            if threading.current_thread().name.startswith('flow-'):
                seen.append(method)
                if len(seen) - 1 == number:
                    if lost == 'reply':
                        deliver()
                    raise Unanswered(who=topic, reason='injected silence')
            return deliver()

        ground.on_message = on_message
        server = case.act(ground, server)
        ground.settle()
        ground.on_message = None
        check(ground, case, server, case.good)
        attempted(ground, refusal, server, case.good)
        subjects.end()
        number += 2 * case.stride
    assert number > 5, f'{name} has only {number} messages'


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('name', REFUSED)
def test_the_conductor_crashes_after_each_effect_in_turn(ground, monkeypatch, name):
    """From the refusal on."""
    case, number, happened = CASES[name], 0, True
    subjects = Subjects(ground, case)
    while happened:
        server, seen = subjects.next(), []
        crashed, refusal = threading.Event(), Refusal(ground)

        def listener(database, statement, many, number=number, seen=seen, crashed=crashed, refusal=refusal):
            if (
                not (threading.current_thread().name.startswith('flow-') and refusal.said)
                or crashed.is_set()
                or ground.in_upcall
            ):
                return
            seen.append(statement)
            if len(seen) - 1 == number:
                crashed.set()
                raise Crash

        with first_after_each_effect(monkeypatch, listener):
            server = case.act(ground, server)
            while not crashed.is_set() and ground.rows():
                ground.go_on_with_releases()
                crashed.wait(0.02)
        happened = crashed.is_set()
        if happened:
            ground.crash_conductor()
            ground.start_conductor()
        check(ground, case, server, case.good)
        attempted(ground, refusal, server, case.good)
        subjects.end()
        number += case.stride
    assert number > 4, f'{name} has only {number} effects'
