"""The log of usage audits."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import instance_usage_audit_log as service
from kilonova.api.views import instance_usage_audit_log as views
from kilonova.api.wsgi import Call
from kilonova.db.queries.instances import utcnow


def index(call: Call) -> Any:
    """GET /os-instance_usage_audit_log."""
    return {'instance_usage_audit_logs': views.log(service.read(call.backend, utcnow()))}


def show(call: Call) -> Any:
    """GET /os-instance_usage_audit_log/{before_timestamp}."""
    before = service.read_time(call.path['before_timestamp'])
    return {'instance_usage_audit_log': views.log(service.read(call.backend, before))}
