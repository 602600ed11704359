"""Run calls that may hang in threads of their own, so that the caller waits no longer than a set time.

    bounded = Bounded(most=8)
    reply = bounded.run(lambda: client.call(ctxt, 'ping'), 75.0)    # its result or its error; Overdue after 75 s

A call that is overdue can't be stopped. It continues, and its result is lost. While ``most`` calls are overdue, further
calls are refused at once with Overdue, so that threads do not accumulate when something hangs.
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
    """A group of calls that may hang for the same reason, such as one broker. Threads may share it.

    While ``most`` calls of the group are overdue, further calls are refused.
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

    Unlike with an executor, the end of the process does not wait for the thread.
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
    """The results of ``ask_each``.

    ``given`` is a dict from name to a completed future, with what the call returned or raised. ``late`` are the names
    whose calls did not end in time. ``unasked`` are the names that were not called because the total time was over.
    """

    given: dict[str, Future[Any]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)


def ask_each(
    names: Iterable[str], ask: Callable[[str], Any], *, at_once: int, seconds: float, until: float
) -> CallResults:
    """Call ``ask(name)`` for each name in threads, and return what each call returned or raised.

    At most ``at_once`` calls are awaited at the same time, each for at most ``seconds``. All waiting ends when
    time.monotonic() reaches ``until``. Calls that did not end in time continue, and their results are lost.
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
