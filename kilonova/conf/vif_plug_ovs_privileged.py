"""The [vif_plug_ovs_privileged] options: how os-vif runs commands that need root."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'vif_plug_ovs_privileged'

OPTS = [
    cfg.StrOpt(
        'helper_command',
        help='Command that starts the privileged helper (privsep) with which a compute that does not run as '
        "root creates bridges and devices for ports that os-vif connects. The helper's own arguments are "
        'appended. Empty: sudo privsep-helper. It is not needed if the compute runs as root, or for other '
        'ports.',
    ),
]
