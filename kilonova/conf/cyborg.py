"""The [cyborg] options: the address of the accelerator service, and the account for it (options of keystoneauth1)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'cyborg'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

# Cyborg answers a bind request only after it has chosen or created each device, so the timeout is long.
cfg.set_defaults(OPTS, service_type='accelerator', valid_interfaces=['internal', 'public'], timeout=60)
