"""The moves of servers, all of them or a project's."""
from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.policies import migrations as policies
from kilonova.api.services import listing
from kilonova.api.services import migrations as service
from kilonova.api.views import migrations as views
from kilonova.api.wsgi import Call
from kilonova.errors import Invalid

PAGED_SINCE, BEFORE_SINCE, OWNERS_SINCE = 59, 66, 80
_PLAIN = ('host', 'instance_uuid', 'source_compute', 'status', 'migration_type')


def index(call: Call) -> Any:
    """GET /os-migrations."""
    filters: dict[str, Any] = {name: call.one(name) for name in _PLAIN if call.one(name) is not None}
    filters.update(_hidden(call), **_changed(call))
    everything = call.may(policies.ALL_PROJECTS)
    filters.update(_owner(call, everything))
    paged = call.version >= PAGED_SINCE
    limit = call.limit() if paged else None
    rows = [] if limit == 0 else service.list_migrations(call.backend, filters, limit=limit,
                                                         marker=call.one('marker') if paged else None,
                                                         seen_by=None if everything else call.ctxt.project_id)
    look = views.Look(hosts=call.may(policies.HOST), links=call.links)
    body: dict[str, Any] = {'migrations': [views.FIELDS.render(row, look, call.version) for row in rows]}
    if paged and rows and len(rows) == limit:
        body['migrations_links'] = call.links.next('os-migrations', call.query, rows[-1]['uuid'])
    return body


def _hidden(call: Call) -> dict[str, bool]:
    text = call.one('hidden')
    try:
        return {} if text is None else {'hidden': strutils.bool_from_string(text, strict=True)}
    except ValueError as error:
        raise Invalid(str(error)) from None


def _changed(call: Call) -> dict[str, Any]:
    since = call.one('changes-since') if call.version >= PAGED_SINCE else None
    before = call.one('changes-before') if call.version >= BEFORE_SINCE else None
    if since and before and listing.when(since) > listing.when(before):
        raise Invalid('The value of changes-since must be less than or equal to changes-before.')
    found = {'changes_since': since, 'changes_before': before}
    return {name: listing.when(value) for name, value in found.items() if value}


def _owner(call: Call, everything: bool) -> dict[str, str]:
    """Whose moves: those of all projects, which are asked for where no project is named, need a right of their own."""
    wanted = {name: call.one(name) for name in ('project_id', 'user_id')} if call.version >= OWNERS_SINCE else {}
    owner = {name: value for name, value in wanted.items() if value is not None}
    if owner.get('project_id') != call.ctxt.project_id and not everything:
        call.authorise(policies.ALL_PROJECTS)
    return owner
