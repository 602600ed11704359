"""The [consoleauth] options: the tokens by which users open consoles."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'consoleauth'

OPTS = [
    cfg.IntOpt(
        'token_ttl',
        default=600,
        min=0,
        max=30 * 86400,
        help='Seconds for which the address of a console is valid. It can be opened once. Read by the API.',
    ),
    cfg.BoolOpt(
        'enforce_session_timeout',
        default=False,
        help='Make the proxies close a console when its token would have expired. Off: an open console stays open.',
    ),
]
