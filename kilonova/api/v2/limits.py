"""Limits: what a project may have and what it uses, at a glance."""
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
    used = quota.usage_and_groups(call.backend, project_id).shared
    absolute = views.absolute(quota.limits(call.backend, project_id), used, call.version)
    return {'limits': {'rate': [], 'absolute': absolute}}
