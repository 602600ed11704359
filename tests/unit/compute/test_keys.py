"""Keys, locks, undo, the calls upward, timers, what errors leave as."""
from __future__ import annotations

import logging
import threading
import time

import pytest

from kilonova import errors
from kilonova.clients.placement import PlacementInvalid
from kilonova.compute import endpoint
from kilonova.compute.host import Host, Stopping, Upcalls
from kilonova.compute.keys import Keys, Locks, Work, matches
from kilonova.compute.operation import Operation
from kilonova.objects import Instance, Save
from kilonova.timers import Timers
from kilonova.virt.driver import GuestFailed, HypervisorUnavailable

UUID = '3b7d22a7-6d1f-4ccb-8a6f-3b0d1e4a0c11'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(keys, method, key, act, **options):
    """``act(work)`` once a key, as an endpoint does it."""
    with keys.doing(method, key, **options) as (work, first):
        if not first:
            return work.outcome()
        work.result = act(work)
    return work.result


def test_a_finished_key_gives_its_result_again():
    keys, done = Keys(), []
    for _ in range(2):
        assert run(keys, 'm', 'k', lambda work: done.append(1) or 'result') == 'result'
    assert done == [1]
    # Another method under the same key is other work: an undo has the key of its do.
    assert run(keys, 'undo_m', 'k', lambda work: 'undone') == 'undone'


def test_a_finished_key_gives_its_error_again():
    keys, done = Keys(), []

    def act(work):
        done.append(1)
        raise errors.HostRejected(reason='full')
    for _ in range(2):
        with pytest.raises(errors.HostRejected, match='full'):
            run(keys, 'm', 'k', act)
    assert done == [1]


@pytest.mark.parametrize(('error', 'remember'), [
    (errors.KilonovaError('x'), False), (errors.Unanswered(who='x', reason='y'), True)])
def test_failures_that_are_no_outcome_are_tried_again(error, remember):
    keys = Keys()

    def act(work):
        raise error
    with pytest.raises(errors.KilonovaError):
        run(keys, 'm', 'k', act, remember_errors=remember)
    assert run(keys, 'm', 'k', lambda work: 'now', remember_errors=remember) == 'now'


def test_the_registry_is_bounded_in_time_and_number():
    clock = Clock()
    keys = Keys(clock, keep_seconds=600, keep_count=3)
    for number in range(10):
        run(keys, 'm', f'k{number}', lambda work: None)
        keys.cancel(f'c{number}')
    assert len(keys) <= 3
    clock.now = 601
    run(keys, 'm', 'new', lambda work: None)
    assert len(keys) == 1


def test_who_waits_when_the_thread_is_ended_hears_silence():
    keys, works = Keys(), []

    def act(work):
        works.append(work)
        raise SystemExit
    with pytest.raises(SystemExit):
        run(keys, 'm', 'k', act)
    with pytest.raises(errors.Unanswered):
        works[0].outcome()
    assert keys.running() == [] and len(keys) == 0


def test_cancel_reaches_running_work_of_the_operation_only():
    keys, seen = Keys(), {}

    def act(work):
        keys.cancel('o1')
        keys.cancel('o2/1.build/1')
        seen['running'] = keys.running()
        work.check()
        return 'went on'
    with pytest.raises(errors.Cancelled):
        run(keys, 'm', 'o1/1.build/1', act)
    assert seen['running'] == ['m o1/1.build/1']
    assert run(keys, 'm', 'o2/1.build/10', act) == 'went on'
    assert run(keys, 'undo_m', 'o1/1.build/1', act, cancellable=False) == 'went on'


@pytest.mark.parametrize(('key', 'prefix', 'same'), [
    ('o/1.build/1', 'o', True), ('o/1.build/1', 'o/', True), ('o/1.build/1', 'o/1.build/1', True),
    ('o/1.build/10', 'o/1.build/1', False), ('other/1.build/1', 'o', False)])
def test_prefixes_are_whole_parts(key, prefix, same):
    assert matches(key, prefix) is same


def test_locks_exclude_and_leave_nothing_behind():
    """Row 1.33."""
    locks, inside, most = Locks(), [], []

    def work():
        with locks.hold('a'):
            inside.append(1)
            most.append(len(inside))
            inside.pop()
    threads = [threading.Thread(target=work) for _ in range(8)]
    with locks.hold('a'), locks.hold('b'):
        for thread in threads:
            thread.start()
        assert len(locks) == 2
    for thread in threads:
        thread.join(5)
    assert most == [1] * 8 and len(locks) == 0


class Conductor:
    """``over``: each operation of a check has ended."""

    over = False

    def check_key(self, ctxt, *, key, undo, host):
        if self.over:
            raise errors.KeyGone(key=key)


def operation(conductor=None):
    upcalls = Upcalls(conductor or Conductor(), threading.Event(), (0,))
    return Operation(Host('gpu1', None, None, upcalls, None, None), Work('o/1.stop/1'), None, Instance(uuid=UUID))


def test_an_order_asks_behind_the_lock_whether_it_stands():
    """Rule 14: what it waited for may have ended its operation."""
    conductor, told = Conductor(), []
    op = operation(conductor)
    locks = op.host.locks

    def order():
        try:
            with op.turn():
                told.append('did it')
        except errors.KeyGone:
            told.append('gone')
    thread = threading.Thread(target=order)
    with locks.hold(UUID):
        thread.start()
        while locks._locks[UUID][1] < 2:
            time.sleep(0.01)
        conductor.over = True
    thread.join(5)
    assert told == ['gone']


def test_undo_runs_newest_first_and_keeps_the_error(caplog):
    done, op = [], operation()

    def broken():
        raise ValueError('undo broke')

    def act():
        with op.undoing('op'):
            op.undo(done.append, 1)
            op.undo(broken)
            op.undo(done.append, 2)
            raise KeyError('reason')
    with pytest.raises(KeyError, match='reason'):
        act()
    assert done == [2, 1] and isinstance(op.error, KeyError)
    assert 'op: undo broken failed' in caplog.text


@pytest.mark.parametrize('error', [None, Stopping(who='conductor', reason='ends'), SystemExit()])
def test_undo_does_nothing_when_all_went_well_or_the_process_ends(error):
    done, op = [], operation()

    def act():
        with op.undoing('op'):
            op.undo(done.append, 1)
            if error is not None:
                raise error
    if error is None:
        act()
    else:
        with pytest.raises(type(error)):
            act()
    assert done == []


class Client:
    def __init__(self, silent):
        self.silent, self.sent = silent, []

    def save_instance(self, ctxt, *, save):
        self.sent.append(save)
        if len(self.sent) <= self.silent:
            raise errors.Unanswered(who='conductor', reason='timed out')
        return {'written': True}


def test_silence_is_asked_again_with_growing_pauses(caplog):
    pauses = []

    class Event(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return False
    client = Client(4)
    assert Upcalls(client, Event(), (1, 2, 4)).save(None, Save(instance_uuid=UUID)) == {'written': True}
    assert len(client.sent) == 5 and pauses == [1, 2, 4, 4]
    assert f'The save for {UUID} was not answered' in caplog.text


def test_an_error_is_an_answer():
    client = Client(0)
    client.save_instance = lambda ctxt, save: (_ for _ in ()).throw(errors.KeyGone(key='k'))
    with pytest.raises(errors.KeyGone):
        Upcalls(client, threading.Event(), (0,)).save(None, Save(instance_uuid=UUID))


@pytest.mark.parametrize(('error', 'cls', 'text'), [
    (errors.HostRejected(reason='full'), errors.HostRejected, 'Insufficient compute resources: full.'),
    (GuestFailed(act='start', uuid='u', reason='no'), errors.KilonovaError, 'could not start guest u: no'),
    (HypervisorUnavailable(host='h', reason='gone'), errors.Unavailable, 'Connection to the hypervisor'),
    (PlacementInvalid(detail='d'), errors.Invalid, 'Placement refuses'),
    (OSError('/secret'), errors.KilonovaError, 'OSError on the compute host')])
def test_errors_leave_as_classes_that_the_other_side_knows(error, cls, text):
    told = endpoint.as_known(error)
    assert type(told) is cls and text in str(told)


def test_timers_go_on_after_a_failure(caplog):
    stopping, ran, third = threading.Event(), [], threading.Event()
    timers = Timers(stopping)

    def task():
        ran.append(1)
        if len(ran) == 3:
            third.set()
        raise ValueError('one round failed')
    with caplog.at_level(logging.ERROR):
        timers.every(0.001, task, 'a task')
        timers.every(-1, task, 'never')
        assert third.wait(5)
        stopping.set()
        timers.join(5)
    assert 'Error during a task' in caplog.text and timers.spacing == {'a task': 0.001}


def test_timers_tell_their_last_runs():
    """Which tasks there are, those that are off too, and how their last run ended."""
    stopping, ran = threading.Event(), threading.Event()
    timers = Timers(stopping)

    def fail():
        ran.set()
        raise ValueError('one round failed')
    timers.every(3600, fail, 'failing', at_once=True)
    timers.every(3600, lambda: None, 'later')
    timers.every(-1, fail, 'off')
    assert ran.wait(60)
    stopping.set()
    timers.join(60)
    failing, later, off = timers.told()
    assert (failing['name'], failing['result'], failing['spacing']) == ('failing', 'ValueError', 3600)
    assert failing['took'] is not None and failing['last_run'].startswith('20')
    assert later == {'name': 'later', 'spacing': 3600, 'last_run': None, 'took': None, 'result': None}
    assert off == {'name': 'off', 'spacing': -1, 'last_run': None, 'took': None, 'result': None}
