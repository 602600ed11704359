"""The [upgrade_levels] options: the newest RPC version that receivers of each kind accept."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'upgrade_levels'

_AUTO = ('auto, or nothing: what the oldest of these services in the database understands, looked up with the first '
         'message and again after SIGHUP. Versions that no neighbouring release has refuse the start.')

OPTS = [
    cfg.StrOpt('compute', default=None,
               help=f'Version cap of messages to computes. {_AUTO}'),
    cfg.StrOpt('conductor', default=None,
               help='Version cap of messages to conductors: 1.x for compute tasks that the API sends, 3.x for what '
                    f'computes call. {_AUTO} A compute has no database to look in: upgrade '
                    'conductors before computes.'),
    cfg.StrOpt('scheduler', default=None, help=f'Version cap of messages to schedulers. {_AUTO}'),
]
