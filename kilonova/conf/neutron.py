"""The [neutron] options: the network service, its account (options of keystoneauth1), and the metadata proxy.

The metadata proxy of the network service forwards guests' requests for metadata to kilonova-api.
"""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'neutron'

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        'service_metadata_proxy',
        default=False,
        help="Whether guests' requests for metadata come through the network service's proxy, which adds the "
        'id of the requesting server (X-Instance-ID, X-Tenant-ID) and signs it. Requests without the '
        'proxy are not supported: if enabled_apis contains metadata, kilonova-api does not start unless '
        'this is set.',
    ),
    cfg.StrOpt(
        'metadata_proxy_shared_secret',
        default='',
        secret=True,
        help='The secret with which the proxy signs requests. It must have the value in the configuration of '
        "the metadata agents, and must not be empty: anybody who knows it can read every server's user "
        'data.',
    ),
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
]

# Neutron answers a request for a port only after the port has its addresses and its binding, so the timeout is long.
cfg.set_defaults(OPTS, service_type='network', valid_interfaces=['internal', 'public'], timeout=60)
