"""Time, random numbers and uuids of the simulated cloud: all of them come from the seed.

    clock.install()             # before anything else is imported
    clock.source = timeline     # from now on time stands still unless the timeline moves it

``install`` replaces what the standard library offers. Time is the timeline's plus the offset of the process that asks
(a machine's clock may be wrong).
"""

from __future__ import annotations

import datetime
import os
import random
import time
import uuid
from typing import Any, Protocol

# The first second of every run, since the epoch.
EPOCH = 1_767_225_600.0
_Real = datetime.datetime


class Source(Protocol):
    """What tells the time: see ``timeline.Timeline``."""

    now: float

    def offset(self) -> float:
        """Seconds that the clock of the running process is ahead."""

    def random(self) -> random.Random:
        """The random numbers of what runs now."""


class _Start:
    """Before the first timeline is there: imports."""

    now = 0.0
    _random = random.Random(0)

    def offset(self) -> float:
        return 0.0

    def random(self) -> random.Random:
        return self._random


source: Source = _Start()


def monotonic() -> float:
    """Seconds since the start of the run."""
    return source.now


def wall() -> float:
    """Seconds since the epoch by the clock of the running process's machine."""
    return EPOCH + source.now + source.offset()


class _Meta(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Real) if cls is Datetime else type.__instancecheck__(cls, value)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _Real) if cls is Datetime else type.__subclasscheck__(cls, other)


class Datetime(_Real, metaclass=_Meta):
    """datetime.datetime whose now() is virtual."""

    # C code looks at the size of the class.
    __slots__ = ()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return (
            _Real.fromtimestamp(wall(), tz)
            if tz is not None
            else _Real.fromtimestamp(wall(), datetime.UTC).replace(tzinfo=None)
        )

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now()


def _urandom(count: int) -> bytes:
    return source.random().randbytes(count)


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=source.random().getrandbits(128), version=4)


def _uniform(low: float, high: float) -> float:
    return source.random().uniform(low, high)


def install() -> None:
    """Replace clocks and sources of random numbers. Once, before third-party modules are imported."""
    time.monotonic = time.perf_counter = monotonic
    time.time = wall
    time.time_ns = lambda: int(wall() * 1e9)
    datetime.datetime = Datetime  # type: ignore[misc]
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]
    random.uniform = _uniform
    for name in ('random', 'randint', 'randrange', 'choice', 'shuffle', 'sample', 'getrandbits'):
        setattr(random, name, _of_source(name))
    uuid.uuid4 = _uuid4
    import queue
    import threading

    threading._time = monotonic  # type: ignore[attr-defined]
    queue.time = monotonic  # type: ignore[attr-defined]


def _of_source(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(source.random(), name)(*args, **kwargs)

    return call
