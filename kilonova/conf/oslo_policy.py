"""[oslo_policy]: where policy.yaml is and how strictly rules are taken (the options are oslo.policy's)."""
from __future__ import annotations

from oslo_policy import opts

((GROUP, OPTS),) = opts.list_opts()
