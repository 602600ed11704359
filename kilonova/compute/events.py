"""Events of an instance action as this host tells them: written once, at their end.

    event = Event('compute_stop_instance', host='gpu1')
    …
    save['event'] = event.success()          # or event.failure(error)
"""
from __future__ import annotations

import datetime
import traceback
from typing import Any

from kilonova import errors

DETAILS_LIMIT, TRACE_LIMIT = 4096, 16384


def now() -> str:
    """Naive UTC as text, the form in which times travel in claims and saves."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()


def readable(error: BaseException) -> str:
    """What a user may read: our own texts, without paths of this host; of anything else only the class, its text may
    hold anything."""
    text = errors.without_paths(str(error)) if isinstance(error, errors.KilonovaError) else ''
    return text or f'{type(error).__name__} on the compute host'


def trace_of(error: BaseException) -> str:
    """The whole story, for administrators."""
    return ''.join(traceback.format_exception(error))[-TRACE_LIMIT:]


class Event:
    """Started when it is made. Results: {event, result, host, start_time, finish_time, details, traceback}."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host, self.start_time = name, host, now()

    def success(self) -> dict[str, Any]:
        return self._end('Success', None, None)

    def failure(self, error: BaseException | None) -> dict[str, Any]:
        """``details`` are for users to read, ``traceback`` is for administrators."""
        if error is None:
            return self._end('Error', None, None)
        return self._end('Error', readable(error)[:DETAILS_LIMIT], trace_of(error))

    def _end(self, result: str, details: str | None, trace: str | None) -> dict[str, Any]:
        return {'event': self.name, 'result': result, 'host': self.host, 'start_time': self.start_time,
                'finish_time': now(), 'details': details, 'traceback': trace}
