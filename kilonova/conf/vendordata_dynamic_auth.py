"""The [vendordata_dynamic_auth] options: the account for vendordata services (options of keystoneauth1)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'vendordata_dynamic_auth'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
]
