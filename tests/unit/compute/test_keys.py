"""Keys, locks, undo, the calls upward, timers, what errors leave as."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from kilonova import errors
from kilonova.clients.placement import PlacementInvalid
from kilonova.compute import endpoint
from kilonova.compute.host import ComputeHost, Stopping, Upcalls
from kilonova.compute.keys import SLOT_LOOK, NamedLocks, RunningTask, TaskRegistry, TaskSlots, matches
from kilonova.compute.operation import DETAILS_LIMIT, TRACE_LIMIT, HostTask, trace_of
from kilonova.compute.ops import move, resize
from kilonova.objects import Instance, Migration, Save
from kilonova.timers import Timers
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import HypervisorUnavailable

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
    keys, done = TaskRegistry(), []
    for _ in range(2):
        assert run(keys, 'm', 'k', lambda work: done.append(1) or 'result') == 'result'
    assert done == [1]
    # Another method under the same key is other work: an undo has the key of its do.
    assert run(keys, 'undo_m', 'k', lambda work: 'undone') == 'undone'


def test_a_finished_key_gives_its_error_again():
    keys, done = TaskRegistry(), []

    def act(work):
        done.append(1)
        raise errors.HostRejected(reason='full')

    for _ in range(2):
        with pytest.raises(errors.HostRejected, match='full'):
            run(keys, 'm', 'k', act)
    assert done == [1]


@pytest.mark.parametrize(
    ('error', 'remember'), [(errors.KilonovaError('x'), False), (errors.Unanswered(who='x', reason='y'), True)]
)
def test_failures_that_are_no_outcome_are_tried_again(error, remember):
    keys = TaskRegistry()

    def act(work):
        raise error

    with pytest.raises(errors.KilonovaError):
        run(keys, 'm', 'k', act, remember_errors=remember)
    assert run(keys, 'm', 'k', lambda work: 'now', remember_errors=remember) == 'now'


def test_the_registry_is_bounded_in_time_and_number():
    clock = Clock()
    keys = TaskRegistry(clock, keep_seconds=600, keep_count=3)
    for number in range(10):
        run(keys, 'm', f'k{number}', lambda work: None)
        keys.cancel(f'c{number}')
    assert len(keys) == 3
    # What is forgotten is done anew, what is known isn't.
    assert run(keys, 'm', 'k9', lambda work: 'again') is None
    assert run(keys, 'm', 'k1', lambda work: 'again') == 'again'
    with pytest.raises(errors.Cancelled):
        run(keys, 'm', 'c9/1.build/1', lambda work: work.check())
    run(keys, 'm', 'c1/1.build/1', lambda work: work.check())
    clock.now = 600
    run(keys, 'm', 'kept', lambda work: None)
    assert len(keys) == 3
    with pytest.raises(errors.Cancelled):
        run(keys, 'm', 'c8/1.build/1', lambda work: work.check(), remember_errors=False)
    clock.now = 601
    run(keys, 'm', 'new', lambda work: None)
    assert len(keys) == 2
    run(keys, 'm', 'c8/1.build/2', lambda work: work.check())


def test_a_cancelled_operation_is_known_while_others_are_not():
    keys = TaskRegistry()
    for name in ('o1', 'o2'):
        keys.cancel(name)
    with pytest.raises(errors.Cancelled):
        run(keys, 'm', 'o1/1.build/1', lambda work: work.check())
    assert run(keys, 'm', 'o3/1.build/1', lambda work: work.check()) is None
    assert keys.cancel('o3') == 0


class Semaphore:
    """Gives a slot with the last of its ``answers``."""

    def __init__(self, *answers):
        self.answers, self.asked, self.released = list(answers), [], 0

    def acquire(self, **how):
        self.asked.append(how)
        return self.answers.pop(0)

    def release(self):
        self.released += 1


@pytest.mark.parametrize('looks', [0, 1, 3])
def test_who_waits_for_a_slot_says_so_once_and_looks_whether_it_is_cancelled(looks):
    slots, told = TaskSlots(2), []
    slots._slots = Semaphore(*[False] * looks, True)
    with slots.hold(lambda: told.append('check'), lambda: told.append('waits')):
        assert slots._slots.released == 0
    assert told == ['waits', *['check'] * (looks - 1)][:looks]
    assert slots._slots.asked == [{'blocking': False}, *[{'timeout': SLOT_LOOK}] * looks]
    assert slots._slots.released == 1


def test_a_slot_is_free_again_after_a_failure_and_never_taken_by_one_that_is_cancelled():
    slots = TaskSlots(1)
    with pytest.raises(ZeroDivisionError), slots.hold(lambda: None):
        raise ZeroDivisionError
    with slots.hold(lambda: None):
        assert not slots._slots.acquire(blocking=False)
    slots._slots = Semaphore(False, False, True)
    with pytest.raises(errors.Cancelled), slots.hold(cancelled):
        pytest.fail('it has a slot')
    assert slots._slots.released == 0


def test_without_a_limit_nobody_waits():
    with TaskSlots(0).hold(cancelled, cancelled):
        pass


def cancelled():
    raise errors.Cancelled(key='k')


def test_locks_are_held_while_somebody_waits():
    locks = NamedLocks()
    assert not locks.is_held('a')
    with locks.hold('a'):
        assert locks.is_held('a') and not locks.is_held('b') and len(locks) == 1
    assert not locks.is_held('a')
    with pytest.raises(ZeroDivisionError), locks.hold('a'):
        raise ZeroDivisionError
    assert len(locks) == 0


def test_who_waits_when_the_thread_is_ended_hears_silence():
    keys, works = TaskRegistry(), []

    def act(work):
        works.append(work)
        raise SystemExit

    with pytest.raises(SystemExit):
        run(keys, 'm', 'k', act)
    with pytest.raises(errors.Unanswered):
        works[0].outcome()
    assert keys.running() == [] and len(keys) == 0


def test_cancel_reaches_running_work_of_the_operation_only():
    keys, seen = TaskRegistry(), {}

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


@pytest.mark.parametrize(
    ('key', 'prefix', 'same'),
    [
        ('o/1.build/1', 'o', True),
        ('o/1.build/1', 'o/', True),
        ('o/1.build/1', 'o/1.build/1', True),
        ('o/1.build/10', 'o/1.build/1', False),
        ('other/1.build/1', 'o', False),
    ],
)
def test_prefixes_are_whole_parts(key, prefix, same):
    assert matches(key, prefix) is same


def test_locks_exclude_and_leave_nothing_behind():
    """A named lock has one holder at a time, and is forgotten when nobody holds it or waits for it."""
    locks, inside, most = NamedLocks(), [], []

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
    return HostTask(
        ComputeHost('gpu1', None, None, upcalls, None, None), RunningTask('o/1.stop/1'), None, Instance(uuid=UUID)
    )


def test_an_order_asks_behind_the_lock_whether_it_stands():
    """Rule 14: what it waited for may have ended its operation."""
    conductor, told = Conductor(), []
    op = operation(conductor)
    locks = op.host.locks

    def order():
        try:
            with op.exclusive():
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
    assert 'The undo of the step op failed (function broken)' in caplog.text


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
    assert f'The conductor did not answer a request of this host (save for server {UUID}' in caplog.text


def test_a_binding_is_asked_for_until_somebody_cancels():
    """The network service may be silent for long."""
    asked = []

    def bind_ports(ctxt, **kwargs):
        asked.append(kwargs)
        raise errors.Unanswered(who='The network service', reason='timed out')

    def check():
        if len(asked) == 3:
            raise errors.Cancelled(key='k')

    client = Client(0)
    client.bind_ports = bind_ports
    with pytest.raises(errors.Cancelled):
        Upcalls(client, threading.Event(), (0,)).bind_ports(None, 'k', UUID, 'gpu1', {'p': {}}, check)
    assert asked == [{'key': 'k', 'instance_uuid': UUID, 'host': 'gpu1', 'profiles': {'p': {}}}] * 3


def test_an_error_is_an_answer():
    client = Client(0)
    client.save_instance = lambda ctxt, save: (_ for _ in ()).throw(errors.KeyGone(key='k'))
    with pytest.raises(errors.KeyGone):
        Upcalls(client, threading.Event(), (0,)).save(None, Save(instance_uuid=UUID))


@pytest.mark.parametrize(
    ('error', 'cls', 'text'),
    [
        (errors.HostRejected(reason='full'), errors.HostRejected, 'Insufficient compute resources: full.'),
        (GuestFailed(act='start', uuid='u', reason='no'), errors.KilonovaError, 'could not start guest u: no'),
        (GuestFailed(act='start', uuid='u', reason='no', cause=errors.Cause.REQUEST), errors.Invalid, 'guest u: no'),
        (HypervisorUnavailable(host='h', reason='gone'), errors.Unavailable, 'Connection to the hypervisor'),
        (PlacementInvalid(detail='d'), errors.Invalid, 'Placement refuses'),
        (OSError('/secret'), errors.KilonovaError, 'OSError on the compute host'),
    ],
)
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


def test_what_an_event_and_a_fault_have_of_an_error():
    op = operation()
    op.begin('compute_do')
    try:
        raise errors.ImageNotFound(image_id='i' * 5000)
    except errors.KilonovaError as error:
        event, fault, trace = op.event(error), op.fault(error), trace_of(error)
    assert len(event['details']) == DETAILS_LIMIT and event['details'] == fault['message'][: DETAILS_LIMIT - 1] + '…'
    assert (event['event'], event['result'], event['host']) == ('compute_do', 'Error', 'gpu1')
    assert event['start_time'] <= event['finish_time'] and event['traceback'] == fault['details'] == trace
    assert (fault['code'], fault['host']) == (404, 'gpu1') and 'ImageNotFound' in trace
    assert op.fault(OSError())['code'] == 500
    assert trace_of(OSError('x' * 2 * TRACE_LIMIT)) == 'x' * (TRACE_LIMIT - 1) + '\n'
    assert op.event()['traceback'] is None and op.event()['details'] is None
    assert op.undone == 'it was undone on this host'
    op.error = errors.KilonovaError('/srv/nova/disk is full')
    assert op.undone == 'disk is full'


def test_now_and_then_a_move_notes_how_much_has_gone(monkeypatch):
    clock, saved, op = Clock(), [], operation()
    monkeypatch.setattr(move.time, 'monotonic', clock)
    monkeypatch.setattr(op, 'save', lambda **fields: saved.append(fields))
    progress = resize._progress(op, Migration(uuid=UUID, dest_compute='gpu2'))
    for clock.now, done in (
        (1.0, 1),
        (move.EVERY - 0.1, 2),
        (move.EVERY, 3),
        (2 * move.EVERY - 0.1, 4),
        (2 * move.EVERY, 5),
    ):
        progress(done << 20, 9 << 20)
    assert saved == [
        {
            'mark': number,
            'migration': {
                'uuid': UUID,
                'disk_total': 9 << 20,
                'disk_processed': done << 20,
                'disk_remaining': (9 - done) << 20,
            },
        }
        for number, done in ((1, 3), (2, 5))
    ]
    monkeypatch.setattr(op, 'check', cancelled)
    with pytest.raises(errors.Cancelled):
        progress(6 << 20, 9 << 20)
    assert len(saved) == 2


def test_a_host_that_stops_asks_no_more():
    stopping, client = threading.Event(), Client(1)
    stopping.set()
    with pytest.raises(Stopping, match=f'stops before the save for server {UUID} is answered'):
        Upcalls(client, stopping, (0,)).save(None, Save(instance_uuid=UUID))
    assert len(client.sent) == 1


def test_the_power_state_that_was_written_last_is_known():
    upcalls = Upcalls(Client(0), threading.Event(), (0,))
    upcalls.save(None, Save(instance_uuid=UUID, values={'power_state': 4}))
    upcalls.save(None, Save(instance_uuid=UUID, values={'host': 'gpu1'}))
    assert upcalls.power_states == {UUID: 4}
