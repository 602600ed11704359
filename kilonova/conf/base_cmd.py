"""The [DEFAULT] options of the processes of all daemons, such as their shutdown."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt(
        'manager_shutdown_timeout',
        default=160,
        min=0,
        help='Seconds that a daemon waits for running work after SIGTERM before it exits. Work that is not '
        'finished then is continued by the daemon that takes over its operations. Set the stop timeout of '
        'the service manager to more than this.',
    ),
]
