"""The [cinder] options: the address of the volume service, and the account for it (options of keystoneauth1)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

GROUP = 'cinder'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
    cfg.BoolOpt(
        'cross_az_attach',
        default=True,
        help='Whether servers may use volumes of another availability zone than their own. Only True is '
        'supported: daemons do not start with False, because Kilonova does not compare the zones of '
        'servers and volumes.',
    ),
]

# Cinder waits up to 60 seconds for its storage and then replies with an error. The timeout leaves time for this reply.
cfg.set_defaults(OPTS, service_type='block-storage', valid_interfaces=['internal', 'public'], timeout=75)


def check_zones(conf: cfg.ConfigOpts) -> None:
    """Raise ConfigFileValueError if ``[cinder]cross_az_attach`` is False.

    With False, an operator expects that servers and volumes must be in the same zone, but Kilonova does not check this.
    """
    if not conf.cinder.cross_az_attach:
        raise cfg.ConfigFileValueError(
            '[cinder]cross_az_attach is False: only True is supported, because Kilonova '
            'does not compare the availability zones of servers and volumes'
        )
