"""The [privsep_osbrick] options: how os-brick runs commands that need root."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'privsep_osbrick'

OPTS = [
    cfg.StrOpt(
        'helper_command',
        help='Command that starts the privileged helper (privsep) with which a compute that does not run as '
        "root connects volumes that are block devices, and mounts shares. The helper's own arguments are "
        'appended. Empty: sudo privsep-helper. It is not needed if the compute runs as root, or for '
        'volumes in Ceph.',
    ),
]
