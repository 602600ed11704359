"""Plug-ins may raise: that costs them hosts of one request, never the scheduler.

    guard = Guard('Filter', one, spec)
    passing = [host for host in hosts if guard.call(one.host_passes, host, spec, default=False)]
    with guard:
        found = one.mask(look, spec)        # not set where it raised
    guard.report()                          # one line in the log, however many hosts it was

A database that doesn't answer is no fault of a plug-in's: ``Unanswered`` goes through.
"""
from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from kilonova import errors

LOG = logging.getLogger(__name__)

D = TypeVar('D')
R = TypeVar('R')
Ts = TypeVarTuple('Ts')

# How often each plug-in has raised since this process started, by class name.
FAILED: Counter[str] = Counter()
# {request: plug-ins that the log has told of}; one request weighs several times.
_TOLD: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Guard:
    """Calls of one plug-in for one request. ``kind``: what it is, for the log."""

    def __init__(self, kind: str, plugin: object, request: object = None) -> None:
        self._kind, self._name, self._request = kind, type(plugin).__name__, request
        self._count = 0
        self._first: Exception | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None,
                 _traceback: TracebackType | None) -> bool:
        """Whatever a plug-in raised ends the block."""
        if not isinstance(error, Exception) or isinstance(error, errors.Unanswered):
            return False
        self._count += 1
        self._first = self._first or error
        return True

    def call(self, function: Callable[[*Ts], R], *args: *Ts, default: D) -> R | D:
        """What the function returns; ``default`` where it raised."""
        with self:
            return function(*args)
        return default

    def report(self) -> None:
        """Say once a request what was raised, with the first error's traceback."""
        if self._first is None:
            return
        FAILED[self._name] += self._count
        told = set() if self._request is None else _TOLD.setdefault(self._request, set())
        if self._name not in told:
            told.add(self._name)
            self._tell()
        self._count, self._first = 0, None

    def _tell(self) -> None:
        LOG.error('%(kind)s %(name)s raised %(count)d time(s) for this request (%(total)d since the start); the hosts '
                  'are left out. The first: %(error)r', {
                      'kind': self._kind, 'name': self._name, 'count': self._count, 'total': FAILED[self._name],
                      'error': self._first}, exc_info=self._first)
