"""Run function calls that may hang in threads of their own, so that the calling thread waits for a limited time.

    bounded = Bounded(most=8)
    reply = bounded.run(lambda: client.call(ctxt, 'ping'), 75.0)    # raises Overdue if the call takes more than 75 s

A call that takes longer than its time limit (an overdue call) can't be stopped. The call continues, and its result is
lost. While ``most`` calls are overdue, further calls are refused at once with Overdue, so that the number of hanging
threads is limited.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from kilonova import concurrency


class Overdue(Exception):
    """A call did not end in time, or was not started because too many earlier calls have not ended."""


class Bounded:
    """A group of function calls that may hang for the same reason, such as calls through one broker.

    While ``most`` calls of the group are overdue, further calls are refused. Several threads may use one object.
    """

    def __init__(self, most: int) -> None:
        self._most, self._overdue = most, 0
        self._lock = threading.Lock()

    def run(self, act: Callable[[], Any], seconds: float) -> Any:
        """Call ``act`` in a thread and return its result, or raise its error.

        Raises Overdue if ``act`` does not end within ``seconds``, or if too many earlier calls are still overdue.
        """
        with self._lock:
            if self._overdue >= self._most:
                raise Overdue(f'{self._overdue} earlier calls have not ended')
        doing = begin(act)
        if wait([doing], seconds).not_done:
            with self._lock:
                self._overdue += 1
            doing.add_done_callback(self._ended)
            raise Overdue(f'no result after {seconds:g} s')
        return doing.result()

    def _ended(self, _doing: Future[Any]) -> None:
        with self._lock:
            self._overdue -= 1


def begin(act: Callable[[], Any]) -> Future[Any]:
    """Start ``act`` in a thread and return the future of its result.

    When the process ends, it does not wait for this thread. It would wait for the threads of an executor, so no
    executor is used.
    """
    doing: Future[Any] = Future()

    def fulfil() -> None:
        try:
            doing.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            doing.set_exception(error)

    concurrency.spawn(fulfil, name='bounded')
    return doing


@dataclass
class CallResults:
    """The results of the calls of ``ask_each``. Each call has the name that was its argument.

    ``given`` is a dict from name to a completed future with the result or the error of the call. ``late`` are the names
    whose calls did not end in time. ``unasked`` are the names that were not called because the total time was over.
    """

    given: dict[str, Future[Any]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)


def ask_each(
    names: Iterable[str], ask: Callable[[str], Any], *, at_once: int, seconds: float, until: float
) -> CallResults:
    """Call ``ask(name)`` for each name in a thread of its own, and return the results and errors of all calls.

    At most ``at_once`` calls are awaited at the same time, each for at most ``seconds``. The function returns when all
    calls have ended, or when time.monotonic() reaches ``until``. Calls that did not end in time continue, and their
    results are lost.
    """
    answers = CallResults()
    left, doing = deque(names), dict[Future[Any], tuple[str, float]]()
    while left or doing:
        now = time.monotonic()
        if now >= until:
            answers.late += [name for name, _ in doing.values()]
            answers.unasked += left
            break
        while left and len(doing) < at_once:
            name = left.popleft()
            doing[begin(functools.partial(ask, name))] = (name, min(now + seconds, until))
        wait(doing, max(0.0, min(end for _, end in doing.values()) - now), return_when=FIRST_COMPLETED)
        for one, (name, end) in list(doing.items()):
            if one.done():
                answers.given[name] = one
            elif time.monotonic() >= end:
                answers.late.append(name)
            else:
                continue
            del doing[one]
    return answers
