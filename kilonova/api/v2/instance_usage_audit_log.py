"""The log of usage audits (``/os-instance_usage_audit_log``): which hosts have audited the last complete period."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Database
from kilonova.db.queries import usages
from kilonova.db.queries.instances import utcnow
from kilonova.errors import Invalid
from kilonova.objects.audit_period import last_period

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, SHOW = f'{PREFIX}os-instance-usage-audit-log:list', f'{PREFIX}os-instance-usage-audit-log:show'
RULES = (
    rule(LIST, ADMIN, 'See which hosts have audited the usage of the last complete audit period.'),
    rule(SHOW, ADMIN, 'See which hosts have audited the usage of the last audit period that ended before a time.'),
)


# --- functions that the handlers call, and their errors --------------------------------------------------------------
TASK = 'instance_usage_audit'
DONE, RUNNING = 'DONE', 'RUNNING'


class InvalidTimestamp(Invalid):
    """Error 400: the time in the path is malformed, or no audit period ended before it."""

    msg_fmt = 'Invalid timestamp for date %(text)s'


@dataclass(frozen=True)
class Log:
    """The usage audits of one audit period.

    ``runs``: rows with host, state, task_items, errors and message. ``hosts``: the names of all compute hosts,
    including disabled ones.
    """

    begin: datetime.datetime
    end: datetime.datetime
    runs: list[dict[str, Any]]
    hosts: frozenset[str]


def _read_time(text: str) -> datetime.datetime:
    """Parse a time such as '2026-11-21 10:00:00', with or without a fraction of a second.

    Raises InvalidTimestamp (400) if the text is malformed.
    """
    try:
        # The result is in naive UTC, as the database stores it.
        return datetime.datetime.strptime(  # noqa: DTZ007
            text, '%Y-%m-%d %H:%M:%S.%f' if '.' in text else '%Y-%m-%d %H:%M:%S'
        )
    except ValueError:
        raise InvalidTimestamp(text=text) from None


def _read(backend: Backend, before: datetime.datetime) -> Log:
    """Return the log of the last audit period that ended before a time (naive UTC).

    Cells that do not answer are left out. Runs two SQL statements per cell. Raises InvalidTimestamp (400) if no audit
    period ended before the time.
    """
    try:
        begin, end = last_period(backend.options.usage_audit_period, before)
    except (ValueError, OverflowError):
        # The time is refused if the period before it would begin before the year 1, which datetime can't represent.
        raise InvalidTimestamp(text=before) from None
    runs: list[dict[str, Any]] = []
    hosts: set[str] = set()

    def ask(cell: Database) -> None:
        with cell.read() as conn:
            runs.extend(usages.audits(conn, TASK, begin, end))
            hosts.update(usages.hosts(conn, 'nova-compute'))

    ask_cells(backend.compute_cells(), ask, [])
    return Log(begin, end, runs, frozenset(hosts))


# --- response fields -------------------------------------------------------------------------------------------------
def _body(found: Log) -> dict[str, Any]:
    """Return the response body of a log.

    The body has the numbers of hosts whose audit is done, is running or has not begun, and the result of each audit.
    """
    done, running = (sorted(run['host'] for run in found.runs if run['state'] == state) for state in (DONE, RUNNING))
    missing = sorted(found.hosts - {run['host'] for run in found.runs})
    errors = sum(run['errors'] for run in found.runs)
    who = 'ALL' if len(done) == len(found.hosts) else f'{len(done)} of {len(found.hosts)}'
    return {
        'period_beginning': str(found.begin),
        'period_ending': str(found.end),
        'num_hosts': len(found.hosts),
        'num_hosts_done': len(done),
        'num_hosts_running': len(running),
        'num_hosts_not_run': len(missing),
        'hosts_not_run': missing,
        'total_instances': sum(run['task_items'] for run in found.runs),
        'total_errors': errors,
        'overall_status': f'{who} hosts done. {errors} errors.',
        'log': {
            run['host']: {
                'state': run['state'],
                'instances': run['task_items'],
                'errors': run['errors'],
                'message': run['message'],
            }
            for run in found.runs
        },
    }


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """Return the log of the last complete audit period (``GET /os-instance_usage_audit_log``)."""
    return {'instance_usage_audit_logs': _body(_read(call.backend, utcnow()))}


def show(call: Call) -> Any:
    """Return the log of the last audit period that ended before the time in the path.

    Serves ``GET /os-instance_usage_audit_log/{before_timestamp}``. The length of audit periods is
    [DEFAULT]instance_usage_audit_period, for example a month.
    """
    before = _read_time(call.path['before_timestamp'])
    return {'instance_usage_audit_log': _body(_read(call.backend, before))}


# --- routes of the handlers ------------------------------------------------------------------------------------------
_PATH = '/os-instance_usage_audit_log'
ROUTES = (
    Route('GET', _PATH, index, LIST),
    Route('GET', f'{_PATH}/{{before_timestamp}}', show, SHOW),
)
