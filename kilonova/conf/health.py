"""The [health] options: a port of each daemon that reports which services it can't reach."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'health'


def _port(daemon: str) -> cfg.PortOpt:
    return cfg.PortOpt(f'{daemon}_port', min=1,
                       help=f'Port on which kilonova-{daemon} answers GET /health: JSON with what it can reach and '
                            'what not, and 200 or 503 for watchers and load balancers. Empty: no such port.')


OPTS = [
    cfg.StrOpt('listen', default='127.0.0.1',
               help='Address of the /health ports. The answers hold no secrets, but nobody is asked for a token: keep '
                    'them on an address that only watchers reach.'),
    *(_port(daemon) for daemon in ('api', 'conductor', 'scheduler', 'compute', 'novncproxy',
                                   'serialproxy', 'spicehtml5proxy')),
    cfg.IntOpt('timeout', default=5, min=1,
               help='Seconds that each thing asked for (database, broker, Placement, hypervisor) gets before it counts '
                    'as one that does not answer.'),
]
