"""Quotas of projects and, with the query parameter user_id, of one of their users."""
from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.services import quota
from kilonova.api.views import quota_sets as views
from kilonova.api.wsgi import Call


def show(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}."""
    project_id, user_id = _whose(call)
    limits = quota.limits(call.backend, project_id, user_id)
    return {'quota_set': {**views.quota_set(limits, call.version), 'id': project_id}}


def detail(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}/detail."""
    project_id, user_id = _whose(call)
    limits = quota.limits(call.backend, project_id, user_id)
    used = quota.usage_and_groups(call.backend, project_id, user_id)
    body = views.quota_detail(limits, used.own if user_id else used.shared, call.version)
    return {'quota_set': {**body, 'id': project_id}}


def defaults(call: Call) -> Any:
    """GET /os-quota-sets/{tenant_id}/defaults."""
    limits = quota.limits(call.backend, None)
    return {'quota_set': {**views.quota_set(limits, call.version), 'id': call.path['tenant_id']}}


def update(call: Call) -> Any:
    """PUT /os-quota-sets/{tenant_id}."""
    project_id, user_id = _whose(call)
    body = dict(call.body['quota_set'])
    force = strutils.bool_from_string(body.pop('force', False))
    values = {name: int(value) for name, value in body.items()}
    quota.give(call.backend, project_id, user_id, values, force)
    return {'quota_set': views.quota_set(quota.limits(call.backend, project_id, user_id), call.version)}


def delete(call: Call) -> None:
    """DELETE /os-quota-sets/{tenant_id}."""
    quota.forget(call.backend, *_whose(call))


def _whose(call: Call) -> tuple[str, str | None]:
    return call.path['tenant_id'], call.one('user_id') or None
