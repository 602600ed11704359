"""The [DEFAULT] options of the processes of all daemons, such as their shutdown."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt('manager_shutdown_timeout', default=160, min=0,
               help='Seconds that a daemon gives work under way after SIGTERM; then it ends anyway. What it leaves '
                    'undone is found and finished by whoever takes its operations over. Keep the stop timeout of the '
                    'service manager above it.'),
]
