"""Rules of the log of usage audits."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

LIST, SHOW = f'{PREFIX}os-instance-usage-audit-log:list', f'{PREFIX}os-instance-usage-audit-log:show'

_RULES = (
    rule(LIST, ADMIN, 'See which hosts audited the last period.', 'GET /os-instance_usage_audit_log'),
    rule(SHOW, ADMIN, 'See which hosts audited the last period before a time.',
         'GET /os-instance_usage_audit_log/{before_timestamp}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
