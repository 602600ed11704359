"""The history of a server (``os-instance-actions``): which request did what, when, and with which result."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.api.fields import ABSENT, Field, Fields, column, micro
from kilonova.api.rules import ADMIN, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import HISTORY
from kilonova.api.v2.servers.show import host_id
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.db.engine import Database
from kilonova.db.queries import actions, cells, decisions
from kilonova.db.queries.resumes import WAITING
from kilonova.errors import Invalid, NotFound, UnknownMarker, shortened

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, SHOW = f'{PREFIX}os-instance-actions:list', f'{PREFIX}os-instance-actions:show'
EVENTS, DETAILS = f'{PREFIX}os-instance-actions:events', f'{PREFIX}os-instance-actions:events:details'
RULES = (
    rule(LIST, READER, 'List the actions on a server.'),
    rule(SHOW, READER, 'Show an action on a server.'),
    rule(EVENTS, ADMIN, 'See tracebacks and hosts of events. Before microversion 2.51, see any events.'),
    rule(DETAILS, ADMIN, 'See the details of events.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# Before microversion 2.58 the list has no query parameters, and parameters in a request are ignored.
QUERY = QuerySchema.of(
    Prop('limit', t.NUMBER_TEXT, since=58, single=True),
    Prop('marker', t.ANY_TEXT, since=58, single=True),
    Prop('changes-since', t.DATE_TEXT, since=58, single=True),
    Prop('changes-before', t.DATE_TEXT, since=66, single=True),
    strict_since=58,
)


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]

ACTION = Fields(
    Field('action', column('action')),
    Field('instance_uuid', column('instance_uuid')),
    Field('request_id', column('request_id')),
    Field('user_id', column('user_id')),
    Field('project_id', column('project_id')),
    Field('start_time', lambda row, viewer: micro(row['start_time'])),
    Field('message', column('message')),
    Field('updated_at', lambda row, viewer: micro(row['updated_at'] or row['created_at']), since=58),
)


@dataclass(frozen=True)
class EventRights:
    """The values that decide which fields of an event the response has.

    ``project_id`` is the project of the user who requested the action. It may differ from the server's project. The
    field hostId is a hash of ``project_id`` and the host's name. ``inside`` is true if the caller may see the fields
    traceback and host. ``details`` is true if the caller may see the field details.
    """

    project_id: str | None
    inside: bool
    details: bool


EVENT = Fields(
    Field('event', column('event')),
    Field('start_time', lambda row, viewer: micro(row['start_time'])),
    Field('finish_time', lambda row, viewer: micro(row['finish_time'])),
    Field('result', column('result')),
    Field('traceback', lambda row, viewer: row['traceback'] if viewer.inside else ABSENT),
    Field('hostId', lambda row, viewer: host_id(viewer.project_id, row['host']), since=62),
    Field('host', lambda row, viewer: row['host'] if viewer.inside else ABSENT, since=62),
    Field('details', lambda row, viewer: row['details'] if viewer.details else ABSENT, since=84),
)


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of the table ``scheduler_decisions`` to an event of an instance action.

    Such a row records which hosts the scheduler considered, rejected and chose for the server. Callers who may see the
    details of events also get these events, until the rows are purged from the table.
    """
    body = row['body'] or {}
    began = row['created_at'] - dt.timedelta(seconds=body.get('seconds') or 0)
    return {
        'event': 'select_destinations',
        'start_time': began,
        'finish_time': row['created_at'],
        'created_at': row['created_at'],
        'result': 'Success' if row['chosen'] else 'Error',
        'traceback': None,
        'host': None,
        'details': '\n'.join(_lines(body)),
    }


def _lines(body: Mapping[str, Any]) -> list[str]:
    """Return a scheduler decision as lines of text: what was requested, which host was chosen, and why.

    ``body`` is the column ``body`` of the table ``scheduler_decisions``.
    """
    said = [
        'asked for: ' + _pairs({name: value for name, value in (body.get('asked') or {}).items() if value}),
        f'{body.get("considered")} hosts considered; chosen: {body.get("chosen") or "none"}'
        + (f'; alternates: {", ".join(body["alternates"])}' if body.get('alternates') else ''),
    ]
    if body.get('failure'):
        said.append(body['failure'])
    if body.get('hosts'):
        said += [f'{one["host"]}: {"; ".join(one["why"])}' for one in body['hosts']]
    else:
        said += [
            f'{step["filter"]}: {step["before"]} to {step["after"]} hosts'
            + (f', rejected {"; ".join(map(_host, step["fell"]))}' if step['fell'] else '')
            for step in body.get('filters') or ()
        ]
    said += [f'weight {round(one["weight"], 4)}: {_host(one)}' for one in body.get('weighed') or ()]
    if body.get('claims_refused'):
        said.append(f'claims refused: {", ".join(body["claims_refused"])}')
    return said


def _host(one: Mapping[str, Any]) -> str:
    values = {name: value for name, value in one.items() if name not in ('host', 'weight')}
    return f'{one["host"]} ({_pairs(values)})'


def _pairs(values: Mapping[str, Any]) -> str:
    return ', '.join(f'{name} {value}' for name, value in values.items())


# --- functions that the handlers call, and their errors --------------------------------------------------------------
FAILED = 'Error'
# The maximum number of characters of an action's message, which is the size of its database column.
LONGEST = 255
_ADDRESS = re.compile(r'(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]+)(?![\w:])')


def _explain(backend: Backend, cell: Database, rows: Sequence[dict[str, Any]], hidden: bool) -> None:
    """Append the reason of the failure to the message of each action that failed, or whose operation will be retried.

    ``rows`` are rows of instance actions. The reasons are the details of the actions' events. If ``hidden`` is true,
    the names and addresses of hosts in the reasons are replaced by a placeholder. Runs one SQL statement if there is
    such an action, and two more if ``hidden`` is true and reasons are found.
    """
    failed = [row for row in rows if row['message'] in (FAILED, WAITING)]
    if not failed:
        return
    with cell.read() as conn:
        found = actions.reasons(conn, [row['id'] for row in failed])
        names = actions.host_names(conn) if found and hidden else []
    if found and hidden:
        with backend.api_db.read() as conn:
            names += [row['host'] for row in cells.get_hosts(conn)]
    for row in failed:
        if row['id'] in found:
            reason = ' '.join(found[row['id']].split())
            told = without_hosts(reason, names) if hidden else reason
            row['message'] = shortened(f'{row["message"]}: {told}', LONGEST)


def without_hosts(text: str, names: Iterable[str]) -> str:
    """Replace the names of hosts, and everything that looks like an IP address, by a placeholder.

    >>> without_hosts('gpu1 (192.0.2.10) does not answer, gpu10 does', ['gpu1'])
    '<host> (<host>) does not answer, gpu10 does'
    """
    # A regular expression that matches one of the host names.
    # The expression tries longer names first, because a name may begin with a shorter name (gpu1-a and gpu1).
    known = '|'.join(map(re.escape, sorted(set(names), key=len, reverse=True)))
    text = _ADDRESS.sub('<host>', text)
    return re.sub(rf'(?<![\w-])(?:{known})(?![\w-])', '<host>', text) if known else text


# --- handlers of requests --------------------------------------------------------------------------------------------
PAGED_SINCE, BEFORE_SINCE, OPEN_EVENTS_SINCE, DETAILS_SINCE = 58, 66, 51, 84


def index(call: Call) -> Any:
    """List the actions on a server (``GET /servers/{server_id}/os-instance-actions``)."""
    server = call.server
    paged = call.version >= PAGED_SINCE
    limit = call.limit() if paged else call.backend.options.max_limit
    since, before = _window(call)
    marker = call.one('marker') if paged else None
    # A server that is not in a cell yet has no actions.
    rows: list[dict[str, Any]] | None = []
    if server.cell is not None and limit:
        with server.cell.read() as conn:
            rows = actions.page(conn, server.uuid, limit=limit, marker=marker, since=since, before=before)
    if rows is None or (server.cell is None and marker is not None):
        raise UnknownMarker(marker=marker)
    if rows:
        _explain(call.backend, server.cell, rows, hidden=not call.may(EVENTS))
    body: dict[str, Any] = {'instanceActions': [ACTION.render(row, None, call.version) for row in rows]}
    if paged and rows and len(rows) == limit:
        path = f'servers/{server.uuid}/os-instance-actions'
        body['links'] = call.links.next(path, call.query, rows[-1]['request_id'])
    return body


def _window(call: Call) -> tuple[Any, Any]:
    since = call.one('changes-since') if call.version >= PAGED_SINCE else None
    before = call.one('changes-before') if call.version >= BEFORE_SINCE else None
    if since and before and t.when(since) > t.when(before):
        raise Invalid('The value of changes-since must be less than or equal to changes-before.')
    return t.when(since) if since else None, t.when(before) if before else None


def show(call: Call) -> Any:
    """Return one action with its events (``GET /servers/{server_id}/os-instance-actions/{request_id}``)."""
    server = call.server
    request_id = call.path['request_id']
    inside = call.may(EVENTS)
    seen = inside or call.version >= OPEN_EVENTS_SINCE
    row, events = None, []
    if server.cell is not None:
        with server.cell.read() as conn:
            row = actions.get(conn, server.uuid, request_id)
            events = actions.list_events(conn, row['id']) if row is not None and seen else []
    if row is None:
        raise NotFound(f'Action {request_id} not found')
    _explain(call.backend, server.cell, [row], hidden=not inside)
    body = ACTION.render(row, None, call.version)
    if seen:
        viewer = EventRights(row['project_id'], inside, call.may(DETAILS))
        if viewer.details and call.version >= DETAILS_SINCE:
            with call.backend.api_db.read() as conn:
                told = decisions.of_action(conn, server.uuid, request_id)
            events = sorted([*events, *map(_decision, told)], key=lambda event: event['created_at'], reverse=True)
        body['events'] = [EVENT.render(event, viewer, call.version) for event in events]
    return {'instanceAction': body}


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL = f'{SERVER}/os-instance-actions'
ROUTES = (
    Route('GET', _ALL, index, LIST, query=QUERY, server=HISTORY, asks=(EVENTS,)),
    Route('GET', f'{_ALL}/{{request_id}}', show, SHOW, server=HISTORY, asks=(EVENTS, DETAILS)),
)
