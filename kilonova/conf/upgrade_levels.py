"""The [upgrade_levels] options: the newest RPC version of messages to each kind of daemon."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'upgrade_levels'

_AUTO = (
    'auto or empty: the version of the oldest of these services in the database, looked up with the first message '
    'and again after SIGHUP. The daemon does not start with a version that neither this nor a neighbouring '
    'release has.'
)

OPTS = [
    cfg.StrOpt('compute', default=None, help=f'Version cap of messages to computes. {_AUTO}'),
    cfg.StrOpt(
        'conductor',
        default=None,
        help='Version cap of messages to conductors: 1.x for compute tasks that the API sends, 3.x for calls by '
        f'computes. {_AUTO} Computes have no database to look it up: upgrade conductors before '
        'computes.',
    ),
    cfg.StrOpt('scheduler', default=None, help=f'Version cap of messages to schedulers. {_AUTO}'),
]
