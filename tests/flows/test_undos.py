"""A flow fails when all that can be undone was done, and its undos are disturbed one by one.

The server must be what it is after an undisturbed failure. Where messages or statements are disturbed, a test goes on
until the undos have no further one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor import flows
from kilonova.conductor.flows.releases import UNDO_TRIES
from kilonova.conductor.work import Work
from kilonova.errors import Invalid, KilonovaError, Unanswered
from tests.fixtures.cloud import Cloud, Crash
from tests.flows.cases import (
    CASES,
    MOMENTS,
    Case,
    Subjects,
    bring_back,
    check,
    clear,
    disturb,
    first_after_each_effect,
    in_flow,
    look_again,
    lose_host,
)

NAMES = [
    name
    for name, case in CASES.items()
    if not flows.FLOWS[case.kind].forward_only and any(step.undo for step in flows.FLOWS[case.kind].steps)
]
TIMES = [(name, moment) for name, moment in MOMENTS if name in NAMES]
# Of these hosts undo something, too.
ON_HOSTS = [name for name in NAMES if CASES[name].undone_on_hosts]
TIMES_ON_HOSTS = [(name, moment) for name, moment in TIMES if name in ON_HOSTS]
# What ends with a save that says how the flow ended.
LAST = ('build_and_run_instance', 'snapshot_instance', 'rebuild_instance')
# The last thing that such a host says before there is no way back.
POINTS = ('build.done', 'snapshot.done', 'rebuild.spawning')
# What hosts are told to undo.
ORDERS = (
    'undo_build',
    'undo_prep_resize',
    'undo_resize_instance',
    'undo_finish_resize',
    'undo_snapshot_instance',
    'undo_shelve_instance',
    'undo_unshelve_instance',
    'undo_start_shelved_instance',
    'undo_evacuate_instance',
    'undo_live_migration',
    'rollback_live_migration_at_destination',
)
# The step that fails of a flow of which nothing is undone any more at its end.
FAILING = {'live_migrate': 'live_migration'}


class Failure:
    """The flow fails at its end; what a host could undo itself it can't. ``happened``: from then on it unwinds.
    ``over``: what is delivered now isn't disturbed any more."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
        self.happened: list[str] = []
        self.over = False
        self._order = ''
        cloud.on_message = self.on_message
        steps = flows.FLOWS[case.kind].steps
        if case.kind in FAILING:
            disturb(monkeypatch, case.kind, flows.FLOWS[case.kind].index(FAILING[case.kind]), self._fail)
        elif steps[-1].name.startswith('mark_'):
            # The flow writes the end state, no host.
            disturb(monkeypatch, case.kind, len(steps) - 1, self._fail)

    def _fail(self, real: Callable[[Work], Any], work: Work) -> None:
        self.happened.append(work.uuid)
        raise KilonovaError('injected failure')

    def on_message(
        self, kind: str, topic: str, host: str | None, method: str, args: dict[str, Any], deliver: Callable[[], Any]
    ) -> Any:
        if topic == 'compute' and kind != 'cast':
            self._order = method
        if method == 'save_instance' and not self.over and self._order in LAST:
            if args['save'].transition in POINTS:
                self.happened.append(method)
            if self.happened:
                raise Invalid('injected failure')
        return deliver()


@pytest.mark.parametrize(('name', 'when'), TIMES)
def test_an_undo_fails(ground, monkeypatch, name, when):
    """It is done again, and those before it."""
    case, undone = CASES[name], 0
    subjects = Subjects(ground, case)
    for index, step in enumerate(flows.FLOWS[case.kind].steps):
        if step.undo is None:
            continue
        server, failed = subjects.next(), []

        def undo(real, work, failed=failed):
            if failed:
                return real(work)
            if when == 'after':
                real(work)
            failed.append(work.uuid)
            raise KilonovaError('injected failure of an undo')

        with monkeypatch.context() as patch:
            failure = Failure(ground, patch, case)
            disturb(patch, case.kind, index, undo, 'undo')
            server = case.act(ground, server)
            ground.settle()
        ground.on_message = None
        check(ground, case, server, case.bad)
        assert failed and failure.happened, step.name
        subjects.end()
        undone += 1
    assert undone


@pytest.mark.parametrize(('name', 'when'), TIMES_ON_HOSTS)
def test_a_host_cannot_undo_for_a_while(ground, monkeypatch, name, when):
    """Each order fails more often than it is tried: what is to be given back becomes a pending release."""
    case, tries = CASES[name], {}
    server = case.before(ground)
    failure = Failure(ground, monkeypatch, case)

    def on_message(kind, topic, host, method, args, deliver):
        if method in ORDERS:
            tries[method] = tries.get(method, 0) + 1
            if tries[method] <= UNDO_TRIES + 2:
                if when == 'after':
                    failure.on_message(kind, topic, host, method, args, deliver)
                raise KilonovaError('injected failure of a host')
        return failure.on_message(kind, topic, host, method, args, deliver)

    ground.on_message = on_message
    server = case.act(ground, server)
    check(ground, case, server, case.bad)
    assert tries and all(count > UNDO_TRIES + 2 for count in tries.values()), ground.story(server)


@pytest.mark.parametrize('lost', ['message', 'reply'])
@pytest.mark.parametrize('name', ON_HOSTS)
def test_each_message_is_lost_in_turn(ground, monkeypatch, name, lost):
    """Of each second one the reply."""
    case, number, seen = CASES[name], int(lost == 'reply'), [None, None]
    subjects = Subjects(ground, case)
    while len(seen) > number:
        server, seen = subjects.next(), []
        with monkeypatch.context() as patch:
            failure = Failure(ground, patch, case)

            def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen, failure=failure):
                if failure.happened and in_flow():
                    seen.append(method)
                    if len(seen) - 1 == number:
                        if lost == 'reply':
                            failure.on_message(kind, topic, host, method, args, deliver)
                        raise Unanswered(who=topic, reason='injected silence')
                return failure.on_message(kind, topic, host, method, args, deliver)

            ground.on_message = on_message
            server = case.act(ground, server)
            ground.settle()
        ground.on_message = None
        check(ground, case, server, case.bad)
        subjects.end()
        number += 2 * case.stride
    assert number > 2, f'{name} undoes with {number} messages'


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('name', NAMES)
def test_the_conductor_crashes_after_each_effect_in_turn(ground, monkeypatch, name):
    """Of the undo and of the failure that began it."""
    case, number, happened = CASES[name], 0, True
    subjects = Subjects(ground, case)
    while happened:
        server, seen, crashed = subjects.next(), [], threading.Event()
        with monkeypatch.context() as patch:
            failure = Failure(ground, patch, case)

            def listener(database, statement, many, number=number, seen=seen, crashed=crashed, failure=failure):
                if not failure.happened or not in_flow() or crashed.is_set() or ground.in_upcall:
                    return
                seen.append(statement)
                if len(seen) - 1 == number:
                    crashed.set()
                    raise Crash

            with first_after_each_effect(patch, listener):
                server = case.act(ground, server)
                while not crashed.is_set() and ground.rows():
                    ground.go_on_with_releases()
                    crashed.wait(0.02)
            happened = crashed.is_set()
            if happened:
                ground.crash_conductor()
                ground.start_conductor()
            ground.settle()
        ground.on_message = None
        check(ground, case, server, case.bad)
        subjects.end()
        number += case.stride
    assert number > 2, f'{name} undoes with {number} effects'


@pytest.mark.parametrize(('name', 'moment'), TIMES_ON_HOSTS)
def test_a_compute_crashes_at_each_upcall_in_turn(ground, monkeypatch, name, moment):
    """The host is gone before each thing that it tells while it undoes, or right after each third; it comes back
    empty."""
    case, number, happened = CASES[name], 0, True
    while happened:
        server, seen, gone, asked = case.before(ground), [], [], []
        with monkeypatch.context() as patch:
            failure = Failure(ground, patch, case)

            def on_message(
                kind,
                topic,
                host,
                method,
                args,
                deliver,
                number=number,
                seen=seen,
                gone=gone,
                asked=asked,
                failure=failure,
            ):
                if method in ORDERS:
                    asked.append(method)
                    try:
                        return failure.on_message(kind, topic, host, method, args, deliver)
                    except Crash:
                        ground.crash_compute(host)
                        ground.start_compute(host)
                        gone.append(host)
                        raise Unanswered(who=host, reason='crashed') from None
                    finally:
                        asked.pop()
                if asked and topic == 'conductor' and in_flow() and not gone:
                    seen.append(method)
                    if len(seen) - 1 == number:
                        if moment == 'after':
                            deliver()
                        raise Crash
                return failure.on_message(kind, topic, host, method, args, deliver)

            ground.on_message = on_message
            server = case.act(ground, server)
            ground.settle()
        happened, ground.on_message = bool(gone), None
        look_again(ground)
        check(ground, case, server, case.bad)
        clear(ground)
        number += 3 if moment == 'after' else case.stride
    assert number > 1, f'{name} undoes without upcalls'


@pytest.mark.parametrize(('name', 'moment'), TIMES_ON_HOSTS)
def test_a_host_is_gone_for_good_at_each_undo_in_turn(ground, monkeypatch, name, moment):
    """Asking ends, what it held becomes a pending release, the server is as it was; later the host comes back."""
    case, number, gone = CASES[name], 0, ['yes']
    subjects = Subjects(ground, case)
    while gone:
        server, gone, seen = subjects.next(), [], []
        with monkeypatch.context() as patch:
            failure = Failure(ground, patch, case)

            def on_message(
                kind, topic, host, method, args, deliver, number=number, seen=seen, gone=gone, failure=failure
            ):
                if method in ORDERS and not gone:
                    seen.append(method)
                    if len(seen) - 1 == number:
                        if moment == 'after':
                            failure.on_message(kind, topic, host, method, args, deliver)
                        gone.append(host)
                        lose_host(ground, host)
                        raise Unanswered(who=host, reason='gone')
                return failure.on_message(kind, topic, host, method, args, deliver)

            ground.on_message = on_message
            server = case.act(ground, server)
            ground.settle(kinds_left=('release',))
        ground.on_message = None
        if gone:
            assert case.status(ground, server) == case.bad, ground.story(server)
            assert {(row['kind'], row['host']) for row in ground.rows()} == {('release', gone[0])}
            bring_back(ground, gone[0])
        check(ground, case, server, case.bad)
        subjects.end()
        number += 1
    assert number > 1, f'{name} asks no host to undo'
