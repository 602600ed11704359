"""The [vif_plug_ovs_privileged] options: how os-vif runs commands that need root."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'vif_plug_ovs_privileged'

OPTS = [
    cfg.StrOpt('helper_command',
               help='Command that starts the helper of root with which a compute of another user makes bridges and '
                    "devices for ports that os-vif connects; the helper's own arguments are put behind it. Empty: sudo "
                    'privsep-helper. A compute that root runs needs none; other ports need none either.'),
]
