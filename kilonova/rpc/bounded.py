"""Acts that may hang, each in a thread of its own, so that nobody waits for them longer than a set time.

    bounded = Bounded(most=8)
    reply = bounded.run(lambda: client.call(ctxt, 'ping'), 75.0)    # what it returns or raises; Overdue after 75 s

An act that is overdue can't be ended: it goes on, and its outcome is lost. While ``most`` of them are overdue further
acts are refused at once, which is Overdue too: behind something that hangs threads must not pile up.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
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
