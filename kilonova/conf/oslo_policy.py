"""The [oslo_policy] options: the path of policy.yaml, and how strictly rules are enforced (options of oslo.policy)."""

from __future__ import annotations

from oslo_policy import opts

((GROUP, OPTS),) = opts.list_opts()
