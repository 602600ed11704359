"""The [placement] options: the address of Placement, and the account for it (options of keystoneauth1)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'placement'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

cfg.set_defaults(
    OPTS,
    service_type='placement',
    valid_interfaces=['internal', 'public'],
    # keystoneauth1 has no time limit by default. With a limit, Placement counts as not answering if it hangs.
    timeout=30,
)
