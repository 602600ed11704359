"""Policy checks: Nova's rule names and defaults for all implemented routes, and the operator's overrides.

    policy = Policy(conf)
    policy.authorise(ctxt, 'os_compute_api:servers:show', {'project_id': row['project_id'], 'user_id': row['user_id']})

The file ``[oslo_policy]policy_file`` (policy.yaml) can override any rule. It is read again when it changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from oslo_policy import policy as oslo_policy

from kilonova.api import routes
from kilonova.api.rules import BASE
from kilonova.context import RequestContext
from kilonova.errors import PolicyNotAuthorized

LOG = logging.getLogger(__name__)

# Seconds between two checks whether the policy files have changed.
BETWEEN_LOOKS = 1.0


def list_rules() -> list[oslo_policy.RuleDefault]:
    """Return every policy rule with its default and the API requests that are checked against it.

    The policy enforcer and the generated reference pages use the list.
    """
    return [*BASE, *map(_documented, routes.RULES)]


def _documented(rule: oslo_policy.RuleDefault) -> oslo_policy.DocumentedRuleDefault:
    return oslo_policy.DocumentedRuleDefault(
        rule.name,
        rule.check_str,
        rule.description or '',
        [{'method': method, 'path': path} for method, path in routes.operations(rule.name)],
        scope_types=rule.scope_types,
    )


def _of_file(path: str) -> tuple[Any, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return path, None
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def loaded(conf: cfg.ConfigOpts) -> oslo_policy.Enforcer:
    """Return an enforcer with the default rules and the rules of the policy files, without validating them."""
    made = oslo_policy.Enforcer(conf)
    made.register_defaults(list_rules())
    made.load_rules()
    return made


class Policy:
    """The policy rules of one process, and the checks against them.

    ``enforcer`` is oslo.policy's enforcer with the rules of the last valid policy files.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._next_look = 0.0
        self._read = self._stamp()
        # An invalid policy file prevents the start of the process, instead of failing each request.
        self.enforcer = self._load()

    def _load(self) -> oslo_policy.Enforcer:
        made = loaded(self._conf)
        # A rule that refers to an undefined rule (rule:<name>) is accepted at the start, and oslo.policy logs it.
        # An undefined rule allows no caller. A rule that refers to itself makes ``check_rules`` raise an error.
        made.skip_undefined_check = True
        made.check_rules(raise_on_violation=True)
        # Turn off the enforcer's own reload of files, because it drops the old rules before it reads the new ones.
        made.use_conf = False
        return made

    def _stamp(self) -> tuple[Any, ...]:
        """Return names, times and sizes of all policy files. The result differs after a file has changed."""
        names = [self._conf.oslo_policy.policy_file, *self._conf.oslo_policy.policy_dirs]
        paths = [path for name in names if (path := self._conf.find_file(name))]
        paths.extend(entry.path for path in list(paths) if os.path.isdir(path) for entry in os.scandir(path))
        return tuple(_of_file(path) for path in paths)

    def _read_again(self) -> None:
        """Read the policy files again if they have changed. Compares the files at most once a second.

        If the new files are not valid, log that once and keep the old rules.
        """
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
            LOG.error(
                'The policy files cannot be used; keeping the previous rules: %s: %s', type(error).__name__, error
            )

    def allows(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """Return whether the caller passes a rule.

        ``target`` is the project and user of the resource. By default it is the caller's own project and user.
        """
        self._read_again()
        if target is None:
            target = {'project_id': ctxt.project_id, 'user_id': ctxt.user_id}
        # Leave out values that are None, because oslo.policy would convert None to the text 'None'.
        # With the text 'None', project_id:%(project_id)s would allow a caller whose project id is None.
        target = {name: value for name, value in target.items() if value is not None}
        credentials = {**ctxt.to_policy_values(), 'is_admin': ctxt.is_admin}
        try:
            return bool(self.enforcer.authorize(rule, target, credentials))
        except oslo_policy.InvalidScope:
            return False

    def authorise(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raise PolicyNotAuthorized (403) if the caller does not pass a rule for ``target`` (see ``allows``)."""
        if not self.allows(ctxt, rule, target):
            raise PolicyNotAuthorized(action=rule)
