"""Who may do what: the field's rule names and defaults, of the routes that are built.

    policy = Policy(conf)
    policy.authorise(ctxt, 'os_compute_api:servers:show', {'project_id': row['project_id'], 'user_id': row['user_id']})

``[oslo_policy]policy_file`` (policy.yaml) overrides any rule; it is read again when it changes.
"""
from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg
from oslo_policy import policy as oslo_policy

from kilonova.api import routes
from kilonova.api.rules import BASE
from kilonova.context import RequestContext
from kilonova.errors import PolicyNotAuthorized

LOG = logging.getLogger(__name__)

# Seconds.
BETWEEN_LOOKS = 1.0


def list_rules() -> list[oslo_policy.RuleDefault]:
    """Every rule with its default and the requests it is asked for, for the enforcer and the generated reference."""
    return [*BASE, *map(_documented, routes.RULES)]


def _documented(rule: oslo_policy.RuleDefault) -> oslo_policy.DocumentedRuleDefault:
    return oslo_policy.DocumentedRuleDefault(
        rule.name, rule.check_str, rule.description or '',
        [{'method': method, 'path': path} for method, path in routes.operations(rule.name)],
        scope_types=rule.scope_types)


def _of_file(path: str) -> tuple[Any, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return path, None
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def loaded(conf: cfg.ConfigOpts) -> oslo_policy.Enforcer:
    """Our rules and those of the files, whatever they are."""
    made = oslo_policy.Enforcer(conf)
    made.register_defaults(list_rules())
    made.load_rules()
    return made


class Policy:
    """One per process; ``enforcer`` is oslo.policy's, with the rules of the last files that could be used."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._next_look = 0.0
        self._read = self._stamp()
        # A file that can't be used must stop the start, not each request.
        self.enforcer = self._load()

    def _load(self) -> oslo_policy.Enforcer:
        made = loaded(self._conf)
        # A reference to nothing refuses and is logged; one to itself has no end.
        made.skip_undefined_check = True
        made.check_rules(raise_on_violation=True)
        # It would read a changed file in the middle of a request, and drop its rules before it knows the new ones.
        made.use_conf = False
        return made

    def _stamp(self) -> tuple[Any, ...]:
        """What tells that the policy file, or a file in a directory of more of them, is another one."""
        names = [self._conf.oslo_policy.policy_file, *self._conf.oslo_policy.policy_dirs]
        paths = [path for name in names if (path := self._conf.find_file(name))]
        paths.extend(entry.path for path in list(paths) if os.path.isdir(path) for entry in os.scandir(path))
        return tuple(_of_file(path) for path in paths)

    def _read_again(self) -> None:
        """Look once a second, and take changed files over; those that can't be used are told once, and the rules
        stay as they were."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + BETWEEN_LOOKS
        now = self._stamp()
        if now == self._read:
            return
        self._read = now
        try:
            self.enforcer = self._load()
            LOG.info('The policy files were read again')
        except Exception as error:  # noqa: BLE001 - whatever stands in a file must not end requests
            LOG.error('The policy files can not be used, the rules stay as they were: %s: %s',
                      type(error).__name__, error)

    def allows(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """``target`` defaults to the caller's own project and user."""
        self._read_again()
        if target is None:
            target = {'project_id': ctxt.project_id, 'user_id': ctxt.user_id}
        # What has no project matches nobody's: the library would compare the words 'None'.
        target = {name: value for name, value in target.items() if value is not None}
        credentials = {**ctxt.to_policy_values(), 'is_admin': ctxt.is_admin}
        try:
            return bool(self.enforcer.authorize(rule, target, credentials))
        except oslo_policy.InvalidScope:
            return False

    def authorise(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raises PolicyNotAuthorized (403)."""
        if not self.allows(ctxt, rule, target):
            raise PolicyNotAuthorized(action=rule)
