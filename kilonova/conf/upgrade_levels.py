"""[upgrade_levels] options: the newest version that a peer of each kind accepts."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'upgrade_levels'

_AUTO = ('auto, or nothing: what the oldest of these services in the database understands, looked up with the first '
         'message and again after SIGHUP.')

OPTS = [
    cfg.StrOpt('compute', default=None,
               help=f'Version cap of messages to computes: a version such as 6.6, or the name of a release. {_AUTO}'),
    cfg.StrOpt('conductor', default=None,
               help='Version cap of messages to conductors: 1.x (at least 1.27) for compute tasks that the API sends, '
                    f'3.x (at least 3.1) for what computes call. {_AUTO} A compute has no database to look in: upgrade '
                    'conductors before computes.'),
    cfg.StrOpt('scheduler', default=None, help=f'Version cap of messages to schedulers, such as 4.5. {_AUTO}'),
]
