"""Limits and quotas, as far as they are read."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import limits as policies
from kilonova.api.services import quota
from kilonova.api.views import limits as views
from kilonova.api.wsgi import Call


def show(call: Call) -> Any:
    """GET /limits."""
    project_id = call.one('tenant_id') or call.ctxt.project_id
    if project_id != call.ctxt.project_id:
        call.authorise(policies.OTHER_PROJECT, {'project_id': project_id, 'user_id': call.ctxt.user_id})
    absolute = views.absolute(quota.limits(call.backend, project_id), quota.usage(call.backend, project_id),
                              call.version)
    return {'limits': {'rate': [], 'absolute': absolute}}


def quota_set(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}."""
    project_id = call.path['tenant_id']
    return {'quota_set': views.quota_set(quota.limits(call.backend, project_id), call.version, project_id)}


def quota_detail(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}/detail."""
    project_id = call.path['tenant_id']
    limits, usage = quota.limits(call.backend, project_id), quota.usage(call.backend, project_id)
    return {'quota_set': views.quota_detail(limits, usage, call.version, project_id)}


def quota_defaults(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}/defaults."""
    return {'quota_set': views.quota_set(quota.limits(call.backend, None), call.version, call.path['tenant_id'])}
