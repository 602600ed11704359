"""The [neutron] options: the network service, its account (options of keystoneauth1), and the metadata proxy.

The proxy forwards requests of guests for their metadata to this service.
"""
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

# Neutron answers a request for a port after the port has its addresses and its binding.
cfg.set_defaults(OPTS, service_type='network', valid_interfaces=['internal', 'public'], timeout=60)
