"""Quota classes. Only 'default' has an effect; others are kept and shown."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import quota
from kilonova.api.views import quota_class_sets as views
from kilonova.api.wsgi import Call


def show(call: Call) -> Any:
    """GET /os-quota-class-sets/{quota_class}."""
    return {'quota_class_set': {**_body(call), 'id': call.path['quota_class']}}


def update(call: Call) -> Any:
    """PUT /os-quota-class-sets/{quota_class}."""
    values = {name: int(value) for name, value in call.body['quota_class_set'].items()}
    quota.give_class(call.backend, call.path['quota_class'], values)
    return {'quota_class_set': _body(call)}


def _body(call: Call) -> dict[str, Any]:
    return views.quota_class_set(quota.class_limits(call.backend, call.path['quota_class']), call.version)
