"""Usage reports of one project or of all projects (``/os-simple-tenant-usage``).

A report contains the servers that existed in a period, and the hours of each server within the period. The usage of a
resource is the amount in the flavor multiplied by the hours: a server with 4 vCPUs that existed for 10 hours has 40
vCPU hours (total_vcpus_usage).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kilonova.api.fields import Field, Fields, column, micro
from kilonova.api.rules import ADMIN, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells, refuse_if_any
from kilonova.api.wsgi import Call, Route
from kilonova.db.engine import Database
from kilonova.db.queries import owners, usages
from kilonova.db.queries.instances import utcnow
from kilonova.db.queries.owners import Owner
from kilonova.errors import Invalid, UnknownMarker

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, SHOW = f'{PREFIX}os-simple-tenant-usage:list', f'{PREFIX}os-simple-tenant-usage:show'
RULES = (
    rule(LIST, ADMIN, 'Show the usage of all projects.'),
    rule(SHOW, READER, 'Show the usage of a project.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_PERIOD = (Prop('start', t.ANY_TEXT), Prop('end', t.ANY_TEXT))
_PAGE = (Prop('limit', t.NUMBER_TEXT, since=40), Prop('marker', t.ANY_TEXT, since=40))

INDEX_QUERY = QuerySchema.of(*_PERIOD, Prop('detailed', t.ANY_TEXT), *_PAGE)
SHOW_QUERY = QuerySchema.of(*_PERIOD, *_PAGE)


# --- functions that the handlers call, and their errors --------------------------------------------------------------
_FORMS = ('%Y-%m-%dT%H:%M:%S', '%Y-%m-%dT%H:%M:%S.%f', '%Y-%m-%d %H:%M:%S.%f')


class InvalidStrTime(Invalid):
    """Error 400: the start or end of the period is not in an accepted time format."""

    msg_fmt = 'Invalid datetime string: Datetime is in invalid format'


class InvalidPeriod(Invalid):
    """Error 400: the start of the period is not before its end, for example because only a future start is given."""

    msg_fmt = 'Invalid start time. The start time cannot occur after the end time.'


@dataclass(frozen=True)
class Period:
    """A reporting period from ``start`` to ``stop``. ``now`` is the time of the request. All times are in naive UTC."""

    start: datetime.datetime
    stop: datetime.datetime
    now: datetime.datetime


@dataclass
class Total:
    """The usage of one project.

    Each element of ``servers`` is the server's row with the additional members 'hours', 'uptime' (in seconds), 'state'
    and 'local_gb'.
    """

    tenant_id: str
    hours: float = 0.0
    vcpus: float = 0.0
    memory_mb: float = 0.0
    local_gb: float = 0.0
    servers: list[dict[str, Any]] = field(default_factory=list)


def _read_period(start: str | None, stop: str | None, now: datetime.datetime) -> Period:
    """Parse the parameters start and end of a request. A missing parameter means the current time ``now``, as in Nova.

    Raises InvalidStrTime (400) if a parameter cannot be parsed, and InvalidPeriod (400) if the start is not before the
    end. If both parameters are missing, the empty period from now to now is accepted.
    """
    period = Period(_time(start, now), _time(stop, now), now)
    if period.start > period.stop or (period.start == period.stop and (start or stop)):
        raise InvalidPeriod
    return period


def _time(text: str | None, now: datetime.datetime) -> datetime.datetime:
    if not text:
        return now
    for form in _FORMS:
        try:
            # The result is in naive UTC, as the database stores it.
            return datetime.datetime.strptime(text, form)  # noqa: DTZ007
        except ValueError:
            continue
    raise InvalidStrTime


def _servers(
    backend: Backend, period: Period, *, owner: Owner, limit: int, marker: str | None = None, detailed: bool = False
) -> list[dict[str, Any]]:
    """Return at most ``limit`` servers that existed in the period, ordered by cell and then by id.

    With ``marker`` (the uuid of a server) the list begins after this server: cells are searched in order for it, and
    those before its cell are skipped. With ``detailed`` each row has the name of the server's flavor. Servers of a cell
    that does not answer are left out. Runs at most two SQL statements per cell.

    Raises:
        UnknownMarker: No cell has the server ``marker`` (400).
        Unanswered: The server ``marker`` may be in a cell that does not answer (503).
    """
    found: list[dict[str, Any]] = []

    def ask(cell: Database) -> None:
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
            found.extend(
                usages.active(
                    conn,
                    period.start,
                    period.stop,
                    owner=owner,
                    limit=limit - len(found),
                    after=after or 0,
                    with_flavor=detailed,
                )
            )

    silent: list[Any] = []
    ask_cells(backend.all_cells(), ask, silent)
    if marker is not None and limit:
        refuse_if_any(silent)
        raise UnknownMarker(marker=marker)
    return found


def _totals(rows: Iterable[dict[str, Any]], period: Period) -> list[Total]:
    """Return the usage of each project in the period. ``rows`` are the rows of the servers.

    The projects are in the order in which they first appear in ``rows``.
    """
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
        total.servers.append(
            {
                **row,
                'hours': hours,
                'local_gb': local_gb,
                'state': 'terminated' if ended else row['vm_state'],
                'uptime': int(((ended or period.now) - row['launched_at']).total_seconds()),
            }
        )
    return list(found.values())


def _seconds(row: dict[str, Any], period: Period) -> float:
    begin = max(row['launched_at'], period.start)
    end = min(row['terminated_at'] or period.stop, period.stop)
    found: float = max((end - begin).total_seconds(), 0.0)
    return found


# --- response fields -------------------------------------------------------------------------------------------------
_SERVER = Fields(
    Field('instance_id', column('uuid')),
    Field('name', column('display_name')),
    Field('tenant_id', column('project_id')),
    Field('flavor', column('flavor')),
    Field('vcpus', column('vcpus')),
    Field('memory_mb', column('memory_mb')),
    Field('local_gb', column('local_gb')),
    Field('hours', column('hours')),
    Field('uptime', column('uptime')),
    Field('state', column('state')),
    Field('started_at', lambda row, viewer: micro(row['launched_at'])),
    Field('ended_at', lambda row, viewer: micro(row['terminated_at'])),
)


def _body(total: Total, period: Period, version: int, detailed: bool) -> dict[str, Any]:
    """Return the response body for one project's usage. With ``detailed`` it also contains the project's servers."""
    body: dict[str, Any] = {
        'tenant_id': total.tenant_id,
        'total_hours': total.hours,
        'total_vcpus_usage': total.vcpus,
        'total_memory_mb_usage': total.memory_mb,
        'total_local_gb_usage': total.local_gb,
        'start': micro(period.start),
        'stop': micro(period.stop),
    }
    if detailed:
        body['server_usages'] = [_SERVER.render(row, None, version) for row in total.servers]
    return body


# --- handlers of requests --------------------------------------------------------------------------------------------
PAGES_SINCE = 40


def index(call: Call) -> Any:
    """List the usage of all projects (``GET /os-simple-tenant-usage``)."""
    detailed = call.one('detailed') == '1'
    usages, links = _report(call, owners.ALL, detailed, 'os-simple-tenant-usage')
    return {'tenant_usages': usages, **({'tenant_usages_links': links} if links else {})}


def show(call: Call) -> Any:
    """Return the usage of one project (``GET /os-simple-tenant-usage/{tenant_id}``)."""
    project_id = call.path['tenant_id']
    usages, links = _report(call, project_id, True, f'os-simple-tenant-usage/{project_id}')
    return {'tenant_usage': usages[0] if usages else {}, **({'tenant_usage_links': links} if links else {})}


def _report(call: Call, owner: owners.Owner, detailed: bool, path: str) -> tuple[list[dict[str, Any]], Any]:
    """Return the response bodies of the projects, and the link to the next page (None on the last page).

    ``path`` is the path of the report, for the link. With ``detailed`` the bodies contain the servers of the project.
    The totals of a project include only the servers on this page.
    """
    period = _read_period(call.one('start'), call.one('end'), utcnow())
    # Before 2.40 this request has no paging, so the response is cut after max_limit servers.
    paged = call.version >= PAGES_SINCE
    limit = call.limit() if paged else call.backend.options.max_limit
    rows = _servers(
        call.backend, period, owner=owner, limit=limit, detailed=detailed, marker=call.one('marker') if paged else None
    )
    usages = [_body(total, period, call.version, detailed) for total in _totals(rows, period)]
    full = paged and rows and len(rows) == limit
    return usages, call.links.next(path, call.query, rows[-1]['uuid']) if full else None


# --- routes of the handlers ------------------------------------------------------------------------------------------
_PATH = '/os-simple-tenant-usage'
ROUTES = (
    Route('GET', _PATH, index, LIST, query=INDEX_QUERY),
    Route('GET', f'{_PATH}/{{tenant_id}}', show, SHOW, query=SHOW_QUERY, owner='tenant_id'),
)
