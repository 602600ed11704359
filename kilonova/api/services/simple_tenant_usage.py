"""What projects used in a period: servers, hours, and what their flavors hold times hours (rest-api.md §2.10)."""
from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import ask_cells, refuse_if_any
from kilonova.db.queries import usages
from kilonova.db.queries.owners import Owner
from kilonova.errors import Invalid, UnknownMarker

_FORMS = ('%Y-%m-%dT%H:%M:%S', '%Y-%m-%dT%H:%M:%S.%f', '%Y-%m-%d %H:%M:%S.%f')


class InvalidStrTime(Invalid):
    msg_fmt = 'Invalid datetime string: Datetime is in invalid format'


class InvalidPeriod(Invalid):
    msg_fmt = 'Invalid start time. The start time cannot occur after the end time.'


@dataclass(frozen=True)
class Period:
    """``start`` and ``stop`` in naive UTC, and the moment at which was asked."""

    start: datetime.datetime
    stop: datetime.datetime
    now: datetime.datetime


@dataclass
class Total:
    """What one project used; ``servers`` are rows with 'hours', 'uptime' (seconds), 'state' and 'local_gb'."""

    tenant_id: str
    hours: float = 0.0
    vcpus: float = 0.0
    memory_mb: float = 0.0
    local_gb: float = 0.0
    servers: list[dict[str, Any]] = field(default_factory=list)


def read_period(start: str | None, stop: str | None, now: datetime.datetime) -> Period:
    """What is left out is now. InvalidStrTime, InvalidPeriod (400)."""
    period = Period(_time(start, now), _time(stop, now), now)
    if period.start > period.stop or (period.start == period.stop and (start or stop)):
        raise InvalidPeriod
    return period


def _time(text: str | None, now: datetime.datetime) -> datetime.datetime:
    if not text:
        return now
    for form in _FORMS:
        try:
            # Naive UTC, as the database holds it.
            return datetime.datetime.strptime(text, form)  # noqa: DTZ007
        except ValueError:
            continue
    raise InvalidStrTime


def servers(backend: Backend, period: Period, *, owner: Owner, limit: int, marker: str | None = None,
            detailed: bool = False) -> list[dict[str, Any]]:
    """At most ``limit`` servers of the period, cell by cell in the order of their ids, behind the server ``marker``;
    those of a cell that doesn't answer are left out.

    One statement a cell, and one more in each up to the marker's. UnknownMarker (400).
    """
    found: list[dict[str, Any]] = []

    def ask(cell: Any) -> None:
        nonlocal marker
        if len(found) >= limit:
            return
        with cell.read() as conn:
            after: int | None = 0
            if marker is not None:
                after = usages.position(conn, marker, owner)
                if after is None:
                    return
                marker = None
            found.extend(usages.active(conn, period.start, period.stop, owner=owner,
                                       limit=limit - len(found), after=after or 0, with_flavor=detailed))
    silent: list[Any] = []
    ask_cells(backend.all_cells(), ask, silent)
    if marker is not None and limit:
        refuse_if_any(silent)
        raise UnknownMarker(marker=marker)
    return found


def totals(rows: Iterable[dict[str, Any]], period: Period) -> list[Total]:
    """By project, in the order in which they come."""
    found: dict[str, Total] = {}
    for row in rows:
        total = found.setdefault(row['project_id'], Total(row['project_id']))
        hours = _seconds(row, period) / 3600
        local_gb = (row['root_gb'] or 0) + (row['ephemeral_gb'] or 0)
        total.hours += hours
        total.vcpus += (row['vcpus'] or 0) * hours
        total.memory_mb += (row['memory_mb'] or 0) * hours
        total.local_gb += local_gb * hours
        ended = row['terminated_at']
        total.servers.append({
            **row, 'hours': hours, 'local_gb': local_gb, 'state': 'terminated' if ended else row['vm_state'],
            'uptime': int(((ended or period.now) - row['launched_at']).total_seconds())})
    return list(found.values())


def _seconds(row: dict[str, Any], period: Period) -> float:
    begin = max(row['launched_at'], period.start)
    end = min(row['terminated_at'] or period.stop, period.stop)
    return max((end - begin).total_seconds(), 0.0)
