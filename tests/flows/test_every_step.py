"""Every step of every flow: fail it, lose its messages, crash who works on it, delete beside it (operations.md).

Where messages or statements are disturbed, a test goes on until the flow has no further one.
"""

from __future__ import annotations

import threading

import pytest

from kilonova.conductor import flows
from kilonova.errors import KilonovaError, Unanswered
from tests.fixtures.cloud import Crash
from tests.flows.cases import (
    ASKING_HOSTS,
    ASKING_PLACEMENT,
    CASES,
    CAST,
    ELSEWHERE,
    STEP_IDS,
    STEPS,
    Subjects,
    check,
    clear,
    disturb,
    first_after_each_effect,
)


def test_every_flow_has_a_case():
    assert {case.kind for case in CASES.values()} | ELSEWHERE == set(flows.FLOWS)


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('name', CASES)
def test_a_step_fails(ground, monkeypatch, name, when):
    """When a step fails, before or after its work, the server is as it was before the operation, and nothing is
    left over. Flows without an undo, and steps after which the end is written, end well."""
    case, flow = CASES[name], flows.FLOWS[CASES[name].kind]
    subjects = Subjects(ground, case)
    for index in range(len(flow.steps)):
        server, failed = subjects.next(), []
        images = set(ground.images.made)

        def do(real, work, failed=failed):
            if failed:
                return real(work)
            if when == 'after':
                real(work)
            failed.append(work.uuid)
            raise KilonovaError('injected failure')

        with monkeypatch.context() as patch:
            disturb(patch, case.kind, index, do)
            server = case.act(ground, server)
            ground.settle()
        last_written = when == 'after' and index == len(flow.steps) - 1
        if flow.forward_only or last_written:
            check(ground, case, server, case.good)
        else:
            check(ground, case, server, case.bad)
            assert set(ground.images.made) == images
        assert failed, flow.steps[index].name
        subjects.end()


@pytest.mark.parametrize('lost', ['message', 'reply'])
@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_each_message_is_lost_in_turn(ground, name, lost):
    """Silence means ask, never undo: downward and upward. Ends when the flow has no further message. Each reply, and
    each third message: where nothing was done there is less to find when it is asked again."""
    case, number, seen = CASES[name], 0, [None]
    subjects = Subjects(ground, case)
    while len(seen) > number:
        server, seen = subjects.next(), []

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen):
            seen.append(method)
            if len(seen) - 1 != number:
                return deliver()
            if lost == 'reply':
                deliver()
            if kind == 'cast':
                return None
            raise Unanswered(who=topic, reason='injected silence')

        ground.on_message = on_message
        server = case.act(ground, server)
        ground.settle()
        ground.on_message = None
        check(ground, case, server, case.good)
        subjects.end()
        number += 3 if lost == 'message' else case.stride
    assert number > 2, f'{name} has only {number} messages'


@pytest.mark.parametrize('lost', ['request', 'answer'])
@pytest.mark.parametrize('name', ASKING_PLACEMENT)
def test_each_request_to_placement_is_lost_in_turn(ground, name, lost):
    case, number, seen = CASES[name], 0, [None]
    subjects = Subjects(ground, case)
    while len(seen) > number:
        server, seen = subjects.next(), []

        def lose(method, path, number=number, seen=seen):
            if not threading.current_thread().name.startswith('flow-'):
                return
            seen.append(path)
            if len(seen) - 1 == number:
                raise ground.placement.broken()

        setattr(ground.placement, 'before' if lost == 'request' else 'after', lose)
        server = case.act(ground, server)
        ground.settle()
        ground.placement.before = ground.placement.after = None
        check(ground, case, server, case.good)
        subjects.end()
        number += case.stride
    assert number > 2, f'{name} has only {number} requests'


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('name', CASES)
def test_the_conductor_crashes_after_each_effect_in_turn(ground, monkeypatch, name):
    """The conductor dies before the first statement of the flow's worker, and before the first statement after each
    commit or message. Another conductor takes the row over and finishes the operation."""
    case, number, happened = CASES[name], 0, True
    subjects = Subjects(ground, case)
    while happened:
        server, seen = subjects.next(), []
        crashed = threading.Event()

        def listener(database, statement, many, number=number, seen=seen, crashed=crashed):
            if not threading.current_thread().name.startswith('flow-') or crashed.is_set() or ground.in_upcall:
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
        subjects.end()
        number += case.stride
    assert number > 2, f'{name} has only {number} effects'


@pytest.mark.parametrize('moment', ['before', 'after'])
@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_a_compute_crashes_at_each_upcall_in_turn(ground, name, moment):
    """The host is gone before each thing that it reports to the conductor, or right after each third: what is before
    the next is like it. It comes back empty."""
    case, number, happened = CASES[name], 0, True
    while happened:
        server, seen, gone, hosts = case.before(ground), [], [], {}

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen, gone=gone, hosts=hosts):
            # Of this thread alone: heartbeats of the same host come from another one.
            worker = threading.get_ident()
            if topic == 'compute' and kind != 'cast':
                hosts[worker] = host
                try:
                    return deliver()
                except Crash:
                    ground.crash_compute(host)
                    gone.append(host)
                    raise Unanswered(who=host, reason='crashed') from None
                finally:
                    del hosts[worker]
            if topic == 'conductor' and worker in hosts and not gone:
                seen.append(method)
                if len(seen) - 1 == number:
                    if moment == 'after':
                        deliver()
                    raise Crash
            return deliver()

        ground.on_message = on_message
        server = case.act(ground, server)
        end = threading.Event()
        for _ in range(500):
            if gone or not ground.rows():
                break
            ground.go_on_with_releases()
            end.wait(0.02)
        happened = bool(gone)
        if gone:
            ground.start_compute(gone[0])
        ground.settle()
        ground.on_message = None
        for compute in ground.computes.values():
            # What its timer does a few seconds later: guests whose flows started none.
            compute.guests.look_again()
        check(ground, case, server, *case.ends)
        clear(ground)
        number += 3 if moment == 'after' else case.stride
    assert number > 1, f'{name} has no upcall'


@pytest.mark.parametrize('name', CASES)
def test_two_conductors_on_one_row(ground, name):
    case = CASES[name]
    server = case.before(ground)
    second = ground.start_conductor()
    first = next(conductor for conductor in ground.conductors if conductor is not second)

    def on_message(kind, topic, host, method, args, deliver):
        if kind == 'cast' and topic == 'conductor':
            uuids = args.get('operations') or [args['operation']]
            database = ground.databases.api() if args.get('operations') else ground.cell
            for conductor in (first, second):
                conductor.runner.wake(database, uuids)
            return None
        return deliver()

    ground.on_message = on_message
    server = case.act(ground, server)
    check(ground, case, server, case.good)
    ground.on_message = None
    ground.conductors.remove(first)
    first.stop(5)


DELETED = [
    (one, *pair, when)
    for one, pair in zip(STEP_IDS, STEPS, strict=True)
    for when in ('before', 'after')
    if CASES[pair[0]].kind not in ('delete', 'release') and (when == 'after' or not CASES[pair[0]].variant)
]


@pytest.mark.parametrize(
    ('name', 'index', 'when'), [row[1:] for row in DELETED], ids=[f'{when}-{one}' for one, *_, when in DELETED]
)
def test_delete_at_a_step(ground, monkeypatch, name, index, when):
    """Delete always wins, and gives back what both sides had."""
    case, deleted = CASES[name], []
    server = case.before(ground)

    def do(real, work):
        result = real(work) if when == 'after' else None
        if not deleted:
            deleted.append(case.remove(ground, work.instance_uuid))
        return result if when == 'after' else real(work)

    disturb(monkeypatch, case.kind, index, do)
    server = case.act(ground, server)
    check(ground, case, server, 'GONE')
    assert deleted == [server]
    ground.assert_empty()


@pytest.mark.parametrize('name', CAST)
def test_the_broker_loses_the_cast(ground, name):
    case = CASES[name]
    server = case.before(ground)
    ground.on_message = lambda kind, topic, host, method, args, deliver: None if kind == 'cast' else deliver()
    server = case.act(ground, server)
    ground.settle()
    ground.on_message = None
    check(ground, case, server, case.good)
