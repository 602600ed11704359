"""Who may do what: the field's rule names and defaults (rest-api.md §8), of the routes that are built.

    policy = Policy(conf)
    policy.authorise(ctxt, 'os_compute_api:servers:show', {'project_id': row['project_id'], 'user_id': row['user_id']})

``[oslo_policy]policy_file`` (policy.yaml) overrides any rule; it is read again when it changes.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oslo_config import cfg
from oslo_policy import policy as oslo_policy

from kilonova.api.policies import (
    aggregates,
    availability_zones,
    base,
    create_image,
    deferred_delete,
    extensions,
    flavors,
    hypervisors,
    instance_actions,
    instance_usage_audit_log,
    keypairs,
    limits,
    lock_server,
    migrations,
    os_hosts,
    quota_class_sets,
    quota_sets,
    server_actions,
    server_external_events,
    server_groups,
    server_metadata,
    server_parts,
    server_tags,
    servers,
    services,
    simple_tenant_usage,
)
from kilonova.errors import PolicyNotAuthorized

_MODULES = (base, servers, server_actions, instance_actions, flavors, services, hypervisors, migrations, aggregates,
            availability_zones, limits, quota_sets, os_hosts, extensions, create_image, deferred_delete,
            server_metadata, server_tags, server_parts, lock_server, server_external_events,
            server_groups, keypairs, quota_class_sets, simple_tenant_usage, instance_usage_audit_log)


def list_rules() -> Iterable[oslo_policy.RuleDefault]:
    """Every rule with its default, for the enforcer and the generated reference."""
    return [rule for module in _MODULES for rule in module.list_rules()]


class Policy:
    """One per process; ``enforcer`` is oslo.policy's."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.enforcer = oslo_policy.Enforcer(conf)
        self.enforcer.register_defaults(list(list_rules()))
        # A file that can't be read must stop the start, not each request.
        self.enforcer.load_rules()

    def allows(self, ctxt: Any, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """``target`` defaults to the caller's own project and user."""
        if target is None:
            target = {'project_id': ctxt.project_id, 'user_id': ctxt.user_id}
        # What has no project matches nobody's: the library would compare the words 'None'.
        target = {name: value for name, value in target.items() if value is not None}
        credentials = {**ctxt.to_policy_values(), 'is_admin': ctxt.is_admin}
        try:
            return bool(self.enforcer.authorize(rule, target, credentials))
        except oslo_policy.InvalidScope:
            return False

    def authorise(self, ctxt: Any, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raises PolicyNotAuthorized (403)."""
        if not self.allows(ctxt, rule, target):
            raise PolicyNotAuthorized(action=rule)
