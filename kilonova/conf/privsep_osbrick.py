"""The [privsep_osbrick] options: how os-brick runs commands that need root."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'privsep_osbrick'

OPTS = [
    cfg.StrOpt('helper_command',
               help='Command that starts the helper of root with which a compute of another user connects volumes that '
                    "are block devices, and mounts shares; the helper's own arguments are put behind it. Empty: sudo "
                    'privsep-helper. A compute that root runs needs none; volumes in Ceph need none either.'),
]
