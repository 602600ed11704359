"""[placement]: where Placement is and who asks it (the options are keystoneauth1's)."""
from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'placement'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

cfg.set_defaults(OPTS, service_type='placement', valid_interfaces=['internal', 'public'],
                 # keystoneauth1 waits for ever; a Placement that hangs must count as one that doesn't answer.
                 timeout=30)
