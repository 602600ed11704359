"""The basic policy rules that other rules refer to, and the helper that defines the rules of a resource.

    rule(LOCK, MEMBER, 'Lock a server.')

``routes.operations`` tells which requests are checked against a rule.
"""

from __future__ import annotations

from oslo_policy import policy

PREFIX = 'os_compute_api:'
ADMIN = 'rule:context_is_admin'
MANAGER = 'rule:project_manager_or_admin'
MEMBER = 'rule:project_member_or_admin'
READER = 'rule:project_reader_or_admin'
SERVICE = 'rule:service_or_admin'
ANY = '@'

BASE = tuple(
    policy.RuleDefault(*each)
    for each in (
        ('context_is_admin', 'role:admin', 'Decides which callers are administrators.'),
        ('admin_api', 'is_admin:True', 'Default of administrative calls in older policy files.'),
        (
            'admin_or_owner',
            'is_admin:True or project_id:%(project_id)s',
            'Owner of a resource, for older policy files.',
        ),
        ('project_manager_api', 'role:manager and project_id:%(project_id)s', 'Manager of the project.'),
        ('project_member_api', 'role:member and project_id:%(project_id)s', 'Member of the project.'),
        ('project_reader_api', 'role:reader and project_id:%(project_id)s', 'Reader of the project.'),
        ('project_manager_or_admin', 'rule:project_manager_api or rule:context_is_admin', 'Manager or administrator.'),
        ('project_member_or_admin', 'rule:project_member_api or rule:context_is_admin', 'Member or administrator.'),
        ('project_reader_or_admin', 'rule:project_reader_api or rule:context_is_admin', 'Reader or administrator.'),
        ('service_api', 'role:service', 'Another service.'),
        ('service_or_admin', 'rule:service_api or rule:context_is_admin', 'Another service or an administrator.'),
    )
)


def rule(name: str, default: str, description: str) -> policy.RuleDefault:
    """Return a policy rule for tokens of project scope. ``default`` is its default check string, such as ADMIN."""
    return policy.RuleDefault(name, default, description, scope_types=['project'])
