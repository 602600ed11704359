"""The [adoption] options, for a cloud that was taken over from a Nova."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'adoption'

OPTS = [
    cfg.ListOpt(
        'nova_config',
        default=[],
        help='Configuration files of the Nova that was taken over, as given to kilonova-manage adopt begin. The '
        "controllers then read Nova's databases: they do not start while a conductor or a scheduler of Nova "
        'reports there, and the conductors log an error each minute if one reports later. Remove the option when '
        'Nova is gone for good. Read by the API, the conductor and the scheduler.',
    ),
]
