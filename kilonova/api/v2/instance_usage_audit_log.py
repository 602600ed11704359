"""The log of usage audits: which hosts audited the usage of the last whole period."""
from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import ask_cells
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Database
from kilonova.db.queries import usages
from kilonova.db.queries.instances import utcnow
from kilonova.errors import Invalid
from kilonova.objects.audit_period import last_period

# --- rules -----------------------------------------------------------------------------------------------------------
LIST, SHOW = f'{PREFIX}os-instance-usage-audit-log:list', f'{PREFIX}os-instance-usage-audit-log:show'
RULES = (
    rule(LIST, ADMIN, 'See which hosts audited the last period.'),
    rule(SHOW, ADMIN, 'See which hosts audited the last period before a time.'),
)


# --- use cases -------------------------------------------------------------------------------------------------------
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


def _read_time(text: str) -> datetime.datetime:
    """'2026-11-21 10:00:00', with a fraction or without. InvalidTimestamp (400)."""
    try:
        # Naive UTC, as the database holds it.
        return datetime.datetime.strptime(  # noqa: DTZ007
            text, '%Y-%m-%d %H:%M:%S.%f' if '.' in text else '%Y-%m-%d %H:%M:%S')
    except ValueError:
        raise InvalidTimestamp(text=text) from None


def _read(backend: Backend, before: datetime.datetime) -> Log:
    """The log of the last period that ended before a moment (naive UTC), of the cells that answer: two statements
    each."""
    try:
        begin, end = last_period(backend.options.usage_audit_period, before)
    except (ValueError, OverflowError):
        # In the year 1 there is none.
        raise InvalidTimestamp(text=before) from None
    runs: list[dict[str, Any]] = []
    hosts: set[str] = set()

    def ask(cell: Database) -> None:
        with cell.read() as conn:
            runs.extend(usages.audits(conn, TASK, begin, end))
            hosts.update(usages.hosts(conn, 'nova-compute'))
    ask_cells(backend.compute_cells(), ask, [])
    return Log(begin, end, runs, frozenset(hosts))


# --- what is shown ---------------------------------------------------------------------------------------------------
def _body(found: Log) -> dict[str, Any]:
    """Hosts that are done, that run and that did not begin, and what each said."""
    done, running = (sorted(run['host'] for run in found.runs if run['state'] == state) for state in (DONE, RUNNING))
    missing = sorted(found.hosts - {run['host'] for run in found.runs})
    errors = sum(run['errors'] for run in found.runs)
    who = 'ALL' if len(done) == len(found.hosts) else f'{len(done)} of {len(found.hosts)}'
    return {
        'period_beginning': str(found.begin), 'period_ending': str(found.end), 'num_hosts': len(found.hosts),
        'num_hosts_done': len(done), 'num_hosts_running': len(running), 'num_hosts_not_run': len(missing),
        'hosts_not_run': missing, 'total_instances': sum(run['task_items'] for run in found.runs),
        'total_errors': errors, 'overall_status': f'{who} hosts done. {errors} errors.',
        'log': {run['host']: {'state': run['state'], 'instances': run['task_items'], 'errors': run['errors'],
                              'message': run['message']} for run in found.runs}}


# --- handlers --------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """GET /os-instance_usage_audit_log."""
    return {'instance_usage_audit_logs': _body(_read(call.backend, utcnow()))}


def show(call: Call) -> Any:
    """GET /os-instance_usage_audit_log/{before_timestamp}."""
    before = _read_time(call.path['before_timestamp'])
    return {'instance_usage_audit_log': _body(_read(call.backend, before))}


# --- routes ----------------------------------------------------------------------------------------------------------
_PATH = '/os-instance_usage_audit_log'
ROUTES = (
    Route('GET', _PATH, index, LIST),
    Route('GET', f'{_PATH}/{{before_timestamp}}', show, SHOW),
)
