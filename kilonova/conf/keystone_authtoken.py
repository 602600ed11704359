"""The [keystone_authtoken] options: the account of the service.

The image client uses this account as well if [glance] names no account. In the API, keystonemiddleware reads the other
options of the section.
"""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'keystone_authtoken'

OPTS: list[cfg.Opt] = [*ks_loading.get_auth_common_conf_options()]
