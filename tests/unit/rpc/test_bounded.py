"""Acts that may hang."""

from __future__ import annotations

import threading

import pytest

from kilonova.rpc.bounded import Bounded, Overdue


def test_outcomes_come_back() -> None:
    bounded = Bounded(1)
    assert bounded.run(lambda: 'done', 5) == 'done'
    with pytest.raises(ZeroDivisionError):
        bounded.run(lambda: 1 / 0, 5)
    # A time-out of the act's own is its outcome.
    with pytest.raises(TimeoutError, match='of its own'):
        bounded.run(lambda: (_ for _ in ()).throw(TimeoutError('of its own')), 5)


def test_what_hangs_is_left_and_counted() -> None:
    bounded, end = Bounded(2), threading.Event()
    for _ in range(2):
        with pytest.raises(Overdue, match=r'no result after 0\.01 s'):
            bounded.run(end.wait, 0.01)
    with pytest.raises(Overdue, match='2 earlier calls have not ended'):
        bounded.run(lambda: 'not even begun', 5)
    left = [thread for thread in threading.enumerate() if thread.name == 'bounded']
    assert all(thread.daemon for thread in left), 'a process ends without them'
    end.set()
    for thread in left:
        thread.join()
    assert bounded.run(lambda: 'done', 5) == 'done'
