"""The [glance] options: the address of the image service, and the account for it (options of keystoneauth1)."""

from __future__ import annotations

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'glance'

OPTS: list[cfg.Opt] = [
    *ks_loading.get_auth_common_conf_options(),
    *ks_loading.get_session_conf_options(),
    *ks_loading.get_adapter_conf_options(include_deprecated=False),
    cfg.IntOpt(
        'num_retries',
        default=3,
        min=0,
        deprecated_opts=was('glance_num_retries'),
        help='How often a failed download of an image is retried. Each retry starts from the beginning. A wrong '
        'checksum counts as a failure.',
    ),
]

# Glance answers an upload only after its store has written the whole image, so the timeout is long.
cfg.set_defaults(OPTS, service_type='image', valid_interfaces=['internal', 'public'], timeout=60)
