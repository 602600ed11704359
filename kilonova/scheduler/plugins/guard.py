"""Catch errors of plug-ins: an error excludes hosts from one request, but never stops the scheduler.

    guard = Guard('Filter', one, spec)
    passing = [host for host in hosts if guard.call(one.host_passes, host, spec, default=False)]
    with guard:
        found = one.mask(arrays, spec)        # not set if it raised
    guard.report()                          # one line in the log, for any number of hosts

``Unanswered`` is not caught, because a database that does not answer is not the plug-in's error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from oslo_log import log as logging

from kilonova import errors

LOG = logging.getLogger(__name__)

D = TypeVar('D')
R = TypeVar('R')
Ts = TypeVarTuple('Ts')

# Number of errors of each plug-in since this process started, by class name.
FAILED: Counter[str] = Counter()
# {request: names of plug-ins whose error was logged}, so that a plug-in's error is logged once for each request.
_TOLD: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Guard:
    """Catches and counts the errors that one plug-in raises while it handles one request.

    ``kind`` names the plug-in's type in the log, e.g. "Filter".
    """

    def __init__(self, kind: str, plugin: object, request: object = None) -> None:
        self._kind, self._name, self._request = kind, type(plugin).__name__, request
        self._count = 0
        self._first: Exception | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        """Suppress and count the exception that a plug-in raised in the block. ``Unanswered`` is not suppressed."""
        if not isinstance(error, Exception) or isinstance(error, errors.Unanswered):
            return False
        self._count += 1
        self._first = self._first or error
        return True

    def call(self, function: Callable[[*Ts], R], *args: *Ts, default: D) -> R | D:
        """Return the function's result, or ``default`` if the function raised an error."""
        with self:
            return function(*args)
        return default

    def report(self) -> None:
        """Log how often the plug-in raised an error, with the first traceback, at most once for each request."""
        if self._first is None:
            return
        FAILED[self._name] += self._count
        told = set() if self._request is None else _TOLD.setdefault(self._request, set())
        if self._name not in told:
            told.add(self._name)
            self._tell()
        self._count, self._first = 0, None

    def _tell(self) -> None:
        LOG.error(
            '%(kind)s %(name)s raised %(count)d time(s) for this request (%(total)d since the service started); '
            'hosts without a result are excluded. First error: %(error)r',
            {
                'kind': self._kind,
                'name': self._name,
                'count': self._count,
                'total': FAILED[self._name],
                'error': self._first,
            },
            exc_info=self._first,
        )
