"""Acts that may hang, each in a thread of its own, so that nobody waits for them longer than a set time.

    bounded = Bounded(most=8)
    reply = bounded.run(lambda: client.call(ctxt, 'ping'), 75.0)    # what it returns or raises; Overdue after 75 s

An act that is overdue can't be ended: it goes on, and its outcome is lost. While ``most`` of them are overdue further
acts are refused at once, which is Overdue too: behind something that hangs threads must not pile up.
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
    """The act didn't end in time, or wasn't begun as earlier ones haven't ended."""


class Bounded:
    """What may hang for the same reason, such as one broker. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most, self._overdue = most, 0
        self._lock = threading.Lock()

    def run(self, act: Callable[[], Any], seconds: float) -> Any:
        """What ``act`` returns or raises."""
        with self._lock:
            if self._overdue >= self._most:
                raise Overdue(f'{self._overdue} earlier ones have not ended')
        doing = begin(act)
        if wait([doing], seconds).not_done:
            with self._lock:
                self._overdue += 1
            doing.add_done_callback(self._ended)
            raise Overdue(f'not done after {seconds:g} s')
        return doing.result()

    def _ended(self, _doing: Future[Any]) -> None:
        with self._lock:
            self._overdue -= 1


def begin(act: Callable[[], Any]) -> Future[Any]:
    """Do it in a thread that the end of the process doesn't wait for, unlike an executor's."""
    doing: Future[Any] = Future()

    def fulfil() -> None:
        try:
            doing.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            doing.set_exception(error)
    concurrency.spawn(fulfil, name='bounded')
    return doing


@dataclass
class Answers:
    """Outcomes of ``ask_each``. ``given``: by name what a call returned or raised, as a future that is done; ``late``:
    names whose call was given up; ``unasked``: names that weren't called as time was up."""

    given: dict[str, Future[Any]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)


def ask_each(names: Iterable[str], ask: Callable[[str], Any], *, at_once: int, seconds: float, until: float) -> Answers:
    """Call ``ask(name)`` for each name in threads; return what each call returned or raised.

    Not more than ``at_once`` calls are awaited at the same time, each for ``seconds``. All waiting ends when
    time.monotonic() reaches ``until``. Calls that were given up go on, and their outcomes are lost.
    """
    answers = Answers()
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
