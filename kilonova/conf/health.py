"""The [health] options: the port on which each daemon reports which services it can't reach."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'health'


def _port(daemon: str) -> cfg.PortOpt:
    return cfg.PortOpt(
        f'{daemon}_port',
        min=1,
        help=f'Port on which kilonova-{daemon} answers GET /health, for monitoring and load balancers: '
        'JSON with the services that it can and cannot reach, and status 200 or 503. Empty: no '
        'such port.',
    )


OPTS = [
    cfg.StrOpt(
        'listen',
        default='127.0.0.1',
        help='Address of the /health ports. The answers contain no secrets, but no token is required: choose an '
        'address that only monitoring can reach.',
    ),
    *(
        _port(daemon)
        for daemon in ('api', 'conductor', 'scheduler', 'compute', 'novncproxy', 'serialproxy', 'spicehtml5proxy')
    ),
    cfg.IntOpt(
        'timeout',
        default=5,
        min=1,
        help='Seconds after which a service that is checked (database, broker, Placement, hypervisor) counts as '
        'not answering.',
    ),
]
