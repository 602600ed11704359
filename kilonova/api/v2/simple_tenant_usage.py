"""Usage reports of all projects or of one."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import simple_tenant_usage as service
from kilonova.api.views import simple_tenant_usage as views
from kilonova.api.wsgi import Call
from kilonova.db.queries import owners
from kilonova.db.queries.instances import utcnow

PAGES_SINCE = 40


def index(call: Call) -> Any:
    """GET /os-simple-tenant-usage."""
    detailed = call.one('detailed') == '1'
    usages, links = _report(call, owners.ALL, detailed, 'os-simple-tenant-usage')
    return {'tenant_usages': usages, **({'tenant_usages_links': links} if links else {})}


def show(call: Call) -> Any:
    """GET /os-simple-tenant-usage/{tenant_id}."""
    project_id = call.path['tenant_id']
    usages, links = _report(call, project_id, True, f'os-simple-tenant-usage/{project_id}')
    return {'tenant_usage': usages[0] if usages else {}, **({'tenant_usage_links': links} if links else {})}


def _report(call: Call, owner: owners.Owner, detailed: bool, path: str) -> tuple[list[dict[str, Any]], Any]:
    """Usages by project, and the link to the next page: totals are those of the page's servers."""
    period = service.read_period(call.one('start'), call.one('end'), utcnow())
    # Before there were pages the first one was all that was answered.
    paged = call.version >= PAGES_SINCE
    limit = call.limit() if paged else call.backend.options.max_limit
    rows = service.servers(call.backend, period, owner=owner, limit=limit, detailed=detailed,
                           marker=call.one('marker') if paged else None)
    usages = [views.usage(total, period, call.version, detailed) for total in service.totals(rows, period)]
    full = paged and rows and len(rows) == limit
    return usages, call.links.next(path, call.query, rows[-1]['uuid']) if full else None
