"""The periods of usage audits ([DEFAULT]instance_usage_audit_period).

Example:
    last_period('month', utcnow())      # the last complete month
    present_period('month', utcnow())   # from the end of the last complete month until now
"""

from __future__ import annotations

import calendar
import datetime


def last_period(unit: str, before: datetime.datetime) -> tuple[datetime.datetime, datetime.datetime]:
    """Return begin and end of the last complete period that ended before a time.

    ``unit`` is hour, day, month or year, optionally with an offset such as 'month@15'. Raises ValueError or
    OverflowError if there is no such period.
    """
    name, _, text = unit.partition('@')
    offset = int(text or 0)
    midnight = before.replace(hour=0, minute=0, second=0, microsecond=0)
    if name in ('hour', 'day'):
        step = datetime.timedelta(hours=1) if name == 'hour' else datetime.timedelta(days=1)
        end = (
            before.replace(minute=offset, second=0, microsecond=0) if name == 'hour' else midnight.replace(hour=offset)
        )
        if end >= before:
            end -= step
        return end - step, end
    months = 1 if name == 'month' else 12
    end = midnight.replace(day=max(offset, 1)) if name == 'month' else midnight.replace(month=max(offset, 1), day=1)
    if end >= before:
        end = _earlier(end, months)
    return _earlier(end, months), end


def present_period(unit: str, moment: datetime.datetime) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the begin of the audit period that is in progress at ``moment``, and ``moment`` as its end so far.

    ``unit`` is the length of a period, such as 'month' (see ``last_period``).
    """
    return last_period(unit, moment)[1], moment


def _earlier(day: datetime.datetime, months: int) -> datetime.datetime:
    index = day.year * 12 + day.month - 1 - months
    year, month = divmod(index, 12)
    return day.replace(year=year, month=month + 1, day=min(day.day, calendar.monthrange(year, month + 1)[1]))
