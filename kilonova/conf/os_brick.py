"""The [os_brick] options: the library that connects volumes to a host."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'os_brick'

OPTS = [
    cfg.StrOpt(
        'lock_path',
        default='$state_path/os_brick',
        help='Directory of the locks that keep two processes of a host from connecting volumes at the same '
        'time. Set the same value as in the other services of the host that use os-brick (cinder-volume, '
        'glance-api with a store in Cinder).',
    ),
]
