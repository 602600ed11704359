"""The [oslo_limit] options: the service's limits in Keystone, and the account that reads them (oslo.limit)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg
from oslo_limit import opts

GROUP = 'oslo_limit'

OPTS: list[cfg.Opt] = [
    *(
        opt
        for _, section in opts.list_opts()
        for opt in section
        if opt.dest.startswith('endpoint_') and opt.dest != 'endpoint_override'
    ),
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

cfg.set_defaults(OPTS, timeout=30)
