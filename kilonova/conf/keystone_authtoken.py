"""[keystone_authtoken]: the service's own credentials; keystonemiddleware reads the rest of the section in the API.

The image client falls back to them where [glance] names none.
"""
from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'keystone_authtoken'

OPTS: list[cfg.Opt] = [*ks_loading.get_auth_common_conf_options()]
