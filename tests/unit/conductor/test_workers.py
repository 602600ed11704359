"""Workers and the slots of hosts, without databases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.workers import OperationSlots, WorkerThreads


def until(what: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, 'it did not become true'
        time.sleep(0.005)


@pytest.fixture
def workers() -> Iterator[WorkerThreads]:
    made = WorkerThreads(4)
    yield made
    made.stop()


class Gate:
    """Jobs that stand until they are let through."""

    def __init__(self) -> None:
        self.standing: list[str] = []
        self._open = threading.Event()

    def job(self, name: str) -> Callable[[], None]:
        def stand() -> None:
            self.standing.append(name)
            self._open.wait(20)

        return stand

    def open(self) -> None:
        self._open.set()


def test_a_quarter_is_kept_for_what_is_urgent(workers: WorkerThreads) -> None:
    gate = Gate()
    for number in range(5):
        workers.add(gate.job(str(number)), urgent=False)
    workers.start()
    try:
        until(lambda: len(gate.standing) == 3)
        workers.add(gate.job('urgent'), urgent=True)
        until(lambda: 'urgent' in gate.standing)
        assert len(gate.standing) == 4 and workers.busy()
        assert len(workers.threads) == 4 and all(thread.is_alive() for thread in workers.threads)
    finally:
        gate.open()
    until(lambda: not workers.busy())
    assert sorted(gate.standing) == ['0', '1', '2', '3', '4', 'urgent']


def test_of_few_one_is_kept() -> None:
    workers, gate = WorkerThreads(2), Gate()
    workers.add(gate.job('a'), urgent=False)
    workers.add(gate.job('b'), urgent=False)
    workers.start()
    try:
        until(lambda: gate.standing)
        workers.add(gate.job('urgent'), urgent=True)
        until(lambda: len(gate.standing) == 2)
        assert gate.standing == ['a', 'urgent']
    finally:
        workers.stop()
        gate.open()


def test_urgent_jobs_go_first() -> None:
    """In their order; so do the others."""
    workers, done, gate = WorkerThreads(1), [], threading.Event()
    workers.start()
    workers.add(lambda: gate.wait(20) and None, urgent=True)
    until(lambda: workers._running == 1)
    for name in ('u1', 'u2'):
        workers.add(lambda name=name: done.append(name), urgent=True)  # type: ignore[misc]
    gate.set()
    until(lambda: not workers.busy())
    workers.stop()
    assert done == ['u1', 'u2']


def test_a_job_may_return_the_next(workers: WorkerThreads) -> None:
    """The same thread does it, before anything else."""
    done: list[Any] = []

    def first() -> Any:
        done.append(threading.current_thread())
        return second

    def second() -> None:
        done.append(threading.current_thread())

    workers.start()
    workers.add(first, urgent=True)
    until(lambda: len(done) == 2)
    assert done[0] is done[1]


def test_a_job_that_raises_ends_no_worker(workers: WorkerThreads) -> None:
    workers.start()
    done: list[int] = []
    for _ in range(9):
        workers.add(lambda: 1 // 0, urgent=True)  # type: ignore[arg-type,return-value]
    workers.add(lambda: done.append(1), urgent=False)
    until(lambda: done and not workers.busy())
    assert all(thread.is_alive() for thread in workers.threads)


def test_what_stops_begins_nothing(workers: WorkerThreads) -> None:
    gate = Gate()
    workers.start()
    workers.add(gate.job('a'), urgent=False)
    until(lambda: gate.standing)
    workers.stop()
    workers.add(gate.job('b'), urgent=False)
    began = time.monotonic()
    workers.wait(0.2)
    assert time.monotonic() - began >= 0.2 and workers.busy()
    gate.open()
    workers.wait(20)
    until(lambda: not any(thread.is_alive() for thread in workers.threads))
    assert gate.standing == ['a'] and workers._running == 0


def test_what_waits_for_its_time(workers: WorkerThreads) -> None:
    """Each at its own; what comes earlier goes first, though it was added later. It costs no worker."""
    workers.start()
    called: list[tuple[str, float]] = []
    began = time.monotonic()

    def call(name: str, seconds: float) -> None:
        workers.call_later(seconds, lambda: called.append((name, time.monotonic() - began)))

    call('far', 3600)
    call('late', 0.4)
    call('early', 0.1)
    assert workers.due() == 3 and not workers.busy()
    until(lambda: len(called) == 2)
    assert [name for name, _ in called] == ['early', 'late']
    assert called[0][1] >= 0.1 and called[1][1] >= 0.4 and workers.due() == 1


def test_of_the_same_time_the_first_goes_first(workers: WorkerThreads) -> None:
    called: list[int] = []
    for number in range(3):
        workers.call_later(0, lambda number=number: called.append(number))  # type: ignore[misc]
    workers.start()
    until(lambda: len(called) == 3)
    assert called == [0, 1, 2]


def test_nothing_waits_in_what_stopped(workers: WorkerThreads) -> None:
    workers.stop()
    workers.call_later(0, lambda: None)
    assert workers.due() == 0


# --- slots -----------------------------------------------------------------------------------------------------------
def work(uuid: str, urgent: bool = False, owner: str = 'me') -> Any:
    return SimpleNamespace(uuid=uuid, is_urgent=urgent, owner=owner, held_host=None, slot_urgent=None)


class Resumed(list[Any]):
    """Names of what got a slot."""

    def __call__(self, one: Any) -> None:
        assert one.held_host is not None
        self.append(one.uuid)


@pytest.fixture
def resumed() -> Resumed:
    return Resumed()


@pytest.fixture
def slots(resumed: Resumed) -> OperationSlots[Any]:
    return OperationSlots(2, threading.Condition(), resumed)


def fill(slots: OperationSlots[Any], count: int, **values: Any) -> list[Any]:
    made = [work(f'{"u" if values.get("urgent") else "w"}{number}', **values) for number in range(count)]
    for one in made:
        if slots.take('gpu1', one):
            one.held_host = 'gpu1'
    return made


def test_so_many_of_each_kind(slots: OperationSlots[Any], resumed: Resumed) -> None:
    normal, urgent = fill(slots, 4), fill(slots, 3, urgent=True)
    assert sorted(slots.parked()) == ['u2', 'w2', 'w3']
    assert [one.slot_urgent for one in normal] == [False, False, None, None]
    assert [one.slot_urgent for one in urgent] == [True, True, None]
    slots.release('gpu1', urgent[0])
    assert resumed == ['u2'] and urgent[2].slot_urgent is True
    slots.release('gpu1', normal[1])
    slots.release('gpu1', normal[0])
    assert resumed == ['u2', 'w2', 'w3'] and normal[3].slot_urgent is False


def test_a_slot_is_given_back_as_it_was_taken(slots: OperationSlots[Any], resumed: Resumed) -> None:
    """Work may become urgent in between."""
    normal = fill(slots, 3)
    normal[0].is_urgent = True
    slots.release('gpu1', normal[0])
    assert resumed == ['w2']


def test_a_host_that_nobody_asks_is_forgotten(slots: OperationSlots[Any]) -> None:
    (one,) = fill(slots, 1)
    slots.release('gpu1', one)
    assert slots._hosts == {}


def test_other_hosts_have_slots_of_their_own(slots: OperationSlots[Any]) -> None:
    fill(slots, 3)
    assert slots.take('gpu2', work('x'))


def test_a_silent_host_is_asked_by_one(slots: OperationSlots[Any], resumed: Resumed) -> None:
    slots.silent('gpu1')
    one, *_ = fill(slots, 3)
    assert sorted(slots.parked()) == ['w1', 'w2']
    slots.release('gpu1', one)
    assert resumed == ['w1']
    slots.answers('gpu1')
    assert resumed == ['w1', 'w2'] and slots.parked() == []


def test_an_answer_of_a_host_that_was_not_silent_changes_nothing(slots: OperationSlots[Any], resumed: Resumed) -> None:
    slots.answers('gpu9')
    fill(slots, 3)
    slots.answers('gpu1')
    assert resumed == [] and slots.parked() == ['w2'] and 'gpu9' not in slots._hosts


def test_a_host_that_was_silent_and_answers_is_forgotten(slots: OperationSlots[Any]) -> None:
    slots.silent('gpu1')
    slots.answers('gpu1')
    assert slots._hosts == {}


def test_what_is_taken_out_waits_no_more(slots: OperationSlots[Any], resumed: Resumed) -> None:
    normal = fill(slots, 5)
    assert slots.unpark(['w3', 'w0', 'unknown']) == [normal[3]]
    assert slots.parked() == ['w2', 'w4']
    slots.release('gpu1', normal[0])
    slots.release('gpu1', normal[1])
    assert resumed == ['w2', 'w4']


def test_what_waits_as_another_owner_is_taken_out(slots: OperationSlots[Any]) -> None:
    fill(slots, 2)
    others = [work('a', owner='old'), work('b', urgent=True, owner='old'), work('c')]
    fill(slots, 2, urgent=True)
    for one in others:
        assert not slots.take('gpu1', one)
    assert sorted(one.uuid for one in slots.unpark_all('old')) == ['a', 'b']
    assert slots.parked() == ['c']
