"""[neutron] options: where the network service is and who asks it (the options are keystoneauth1's), and how
requests of guests for their metadata come to us."""
from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'neutron'

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt('service_metadata_proxy', default=False,
                help="Whether guests' requests for metadata come through the network service's proxy, which says which "
                     'server asks (X-Instance-ID, X-Tenant-ID) and signs it. There is no other way here: where '
                     'enabled_apis has metadata, kilonova-api does not start without it.'),
    cfg.StrOpt('metadata_proxy_shared_secret', default='', secret=True,
               help="The secret that the proxy signs with, as in the metadata agents' files. It is not to be empty: "
                    "whoever knows it can read every server's user data."),
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

# A port is answered when it has its addresses and its binding.
cfg.set_defaults(OPTS, service_type='network', valid_interfaces=['internal', 'public'], timeout=60)
