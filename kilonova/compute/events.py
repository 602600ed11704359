"""Events of an instance action as this host tells them: written once, at their end.

    event = Event('compute_stop_instance', host='gpu1')
    …
    save['event'] = event.success()          # or event.failure(error)
"""
from __future__ import annotations

import datetime
import traceback
from typing import Any

DETAILS_LIMIT = 4096


def now() -> str:
    """Naive UTC as text, the form in which times travel in claims and saves."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()


class Event:
    """Started when it is made. Results: {event, result, host, start_time, finish_time, details, traceback}."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host, self.start_time = name, host, now()

    def success(self) -> dict[str, Any]:
        return self._end('Success', None, None)

    def failure(self, error: BaseException | None) -> dict[str, Any]:
        """``details`` is the error's text (users may read it), ``traceback`` is for administrators."""
        if error is None:
            return self._end('Error', None, None)
        lines = ''.join(traceback.format_exception(error))
        return self._end('Error', (str(error) or type(error).__name__)[:DETAILS_LIMIT], lines[-DETAILS_LIMIT * 4:])

    def _end(self, result: str, details: str | None, trace: str | None) -> dict[str, Any]:
        return {'event': self.name, 'result': result, 'host': self.host, 'start_time': self.start_time,
                'finish_time': now(), 'details': details, 'traceback': trace}
