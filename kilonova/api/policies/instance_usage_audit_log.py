"""Rules of the log of usage audits."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

LIST, SHOW = f'{PREFIX}os-instance-usage-audit-log:list', f'{PREFIX}os-instance-usage-audit-log:show'

RULES = (
    rule(LIST, ADMIN, 'See which hosts audited the last period.'),
    rule(SHOW, ADMIN, 'See which hosts audited the last period before a time.'),
)
