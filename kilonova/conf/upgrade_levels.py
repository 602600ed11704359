"""[upgrade_levels] options: the newest version that a peer of each kind accepts."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'upgrade_levels'

OPTS = [
    cfg.StrOpt('compute', default=None, help='Version cap of messages to computes, such as 6.0. Empty: no cap.'),
    cfg.StrOpt('conductor', default=None,
               help='Version cap of what computes call at conductors (base interface 3.x), at least 3.1. Compute tasks '
                    '(1.x), which the API sends, have no cap.'),
    cfg.StrOpt('scheduler', default=None, help='Version cap of messages to schedulers, such as 4.5.'),
]
