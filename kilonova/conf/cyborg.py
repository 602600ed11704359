"""[cyborg]: where the accelerator service is and who asks it (the options are keystoneauth1's)."""
from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'cyborg'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

# A binding is answered when each device has been chosen, and each mediated one made on its host.
cfg.set_defaults(OPTS, service_type='accelerator', valid_interfaces=['internal', 'public'], timeout=60)
