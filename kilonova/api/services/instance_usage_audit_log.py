"""Which hosts audited the usage of the last whole period (rest-api.md §2.11)."""
from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import ask_cells
from kilonova.db.queries import usages
from kilonova.errors import Invalid
from kilonova.objects.audit_period import last_period

TASK = 'instance_usage_audit'
DONE, RUNNING = 'DONE', 'RUNNING'


class InvalidTimestamp(Invalid):
    msg_fmt = 'Invalid timestamp for date %(text)s'


@dataclass(frozen=True)
class Log:
    """``runs``: rows (host, state, task_items, errors, message); ``hosts``: names of all computes, also disabled."""

    begin: datetime.datetime
    end: datetime.datetime
    runs: list[dict[str, Any]]
    hosts: frozenset[str]


def read_time(text: str) -> datetime.datetime:
    """'2026-11-21 10:00:00', with a fraction or without. InvalidTimestamp (400)."""
    try:
        # Naive UTC, as the database holds it.
        return datetime.datetime.strptime(  # noqa: DTZ007
            text, '%Y-%m-%d %H:%M:%S.%f' if '.' in text else '%Y-%m-%d %H:%M:%S')
    except ValueError:
        raise InvalidTimestamp(text=text) from None


def read(backend: Backend, before: datetime.datetime) -> Log:
    """The log of the last period that ended before a moment (naive UTC), of the cells that answer: two statements
    each."""
    try:
        begin, end = last_period(backend.options.usage_audit_period, before)
    except (ValueError, OverflowError):
        # In the year 1 there is none.
        raise InvalidTimestamp(text=before) from None
    runs: list[dict[str, Any]] = []
    hosts: set[str] = set()

    def ask(cell: Any) -> None:
        with cell.read() as conn:
            runs.extend(usages.audits(conn, TASK, begin, end))
            hosts.update(usages.hosts(conn, 'nova-compute'))
    ask_cells(backend.compute_cells(), ask, [])
    return Log(begin, end, runs, frozenset(hosts))
