"""Bodies of usage reports (rest-api.md §2.10)."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.simple_tenant_usage import Period, Total
from kilonova.api.views.base import Field, Fields, column, micro

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
    Field('started_at', lambda row, look: micro(row['launched_at'])),
    Field('ended_at', lambda row, look: micro(row['terminated_at'])),
)


def usage(total: Total, period: Period, version: int, detailed: bool) -> dict[str, Any]:
    """What a project used; ``detailed``: with its servers."""
    body: dict[str, Any] = {
        'tenant_id': total.tenant_id, 'total_hours': total.hours, 'total_vcpus_usage': total.vcpus,
        'total_memory_mb_usage': total.memory_mb, 'total_local_gb_usage': total.local_gb,
        'start': micro(period.start), 'stop': micro(period.stop)}
    if detailed:
        body['server_usages'] = [_SERVER.render(row, None, version) for row in total.servers]
    return body
