"""What was done to a server, by which request, and how it went."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import instance_actions as policies
from kilonova.api.services import instance_actions as service
from kilonova.api.services import listing
from kilonova.api.views import choices
from kilonova.api.views import instance_actions as views
from kilonova.api.wsgi import Call
from kilonova.db.queries import actions, decisions
from kilonova.errors import Invalid, NotFound, UnknownMarker

PAGED_SINCE, BEFORE_SINCE, OPEN_EVENTS_SINCE, DETAILS_SINCE = 58, 66, 51, 84


def index(call: Call) -> Any:
    """GET /servers/{server_id}/os-instance-actions."""
    server = call.server
    paged = call.version >= PAGED_SINCE
    limit = call.limit() if paged else call.backend.options.max_limit
    since, before = _window(call)
    marker = call.one('marker') if paged else None
    # A server without a cell has no story yet.
    rows: list[dict[str, Any]] | None = []
    if server.cell is not None and limit:
        with server.cell.read() as conn:
            rows = actions.page(conn, server.uuid, limit=limit, marker=marker, since=since, before=before)
    if rows is None or (server.cell is None and marker is not None):
        raise UnknownMarker(marker=marker)
    if rows:
        service.explain(call.backend, server.cell, rows, hidden=not call.may(policies.EVENTS))
    body: dict[str, Any] = {'instanceActions': [views.ACTION.render(row, None, call.version) for row in rows]}
    if paged and rows and len(rows) == limit:
        path = f'servers/{server.uuid}/os-instance-actions'
        body['links'] = call.links.next(path, call.query, rows[-1]['request_id'])
    return body


def _window(call: Call) -> tuple[Any, Any]:
    since = call.one('changes-since') if call.version >= PAGED_SINCE else None
    before = call.one('changes-before') if call.version >= BEFORE_SINCE else None
    if since and before and listing.when(since) > listing.when(before):
        raise Invalid('The value of changes-since must be less than or equal to changes-before.')
    return listing.when(since) if since else None, listing.when(before) if before else None


def show(call: Call) -> Any:
    """GET /servers/{server_id}/os-instance-actions/{request_id}."""
    server = call.server
    request_id = call.path['request_id']
    inside = call.may(policies.EVENTS)
    seen = inside or call.version >= OPEN_EVENTS_SINCE
    row, events = None, []
    if server.cell is not None:
        with server.cell.read() as conn:
            row = actions.get(conn, server.uuid, request_id)
            events = actions.list_events(conn, row['id']) if row is not None and seen else []
    if row is None:
        raise NotFound(f'Action {request_id} not found')
    service.explain(call.backend, server.cell, [row], hidden=not inside)
    body = views.ACTION.render(row, None, call.version)
    if seen:
        look = views.Look(server.row['project_id'], inside, call.may(policies.DETAILS))
        if look.details and call.version >= DETAILS_SINCE:
            with call.backend.api_db.read() as conn:
                told = decisions.of_action(conn, server.uuid, request_id)
            events = sorted([*events, *map(choices.event, told)], key=lambda event: event['created_at'], reverse=True)
        body['events'] = [views.EVENT.render(event, look, call.version) for event in events]
    return {'instanceAction': body}
