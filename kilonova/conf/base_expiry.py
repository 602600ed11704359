"""The [DEFAULT] options of periods after which server states expire. Conductors read them."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt('resize_confirm_window', default=0, min=0,
               help='Seconds after which conductors confirm a resize or cold migration that nobody confirmed or '
                    'reverted: the old disks, devices and allocation are free then. 0: never; the server waits in '
                    'VERIFY_RESIZE. Give all conductors the same value.'),
    cfg.IntOpt('instance_build_timeout', default=0, min=0,
               help='Seconds that a server may be in BUILD, counted from the request until a host is chosen, and from '
                    'then on anew. Afterwards conductors cancel its build: what it had is given back, and the server '
                    'is ERROR. 0: never. Choose it longer than the largest image takes to a host. Give all conductors '
                    'the same value.'),
    cfg.IntOpt('shelved_offload_time', default=0, min=-1,
               help='Seconds after which a shelved server leaves its host, where it keeps disks, devices and its place '
                    'until then. 0: at once, as soon as its image is made; -1: never by itself. Conductors read it; '
                    'give all of them the same value.'),
    cfg.IntOpt('rescue_timeout', default=0, min=0,
               help='Seconds after which conductors end the rescue of a server: it starts from its own disk again. 0: '
                    'never. Give all conductors the same value.'),
    cfg.IntOpt('heal_instance_info_cache_interval', default=-1, min=-1,
               help='Seconds between two servers whose ports a conductor reads from the network service, in turn, to '
                    'write their info caches anew: for clouds where events of the network service get lost. 0: the '
                    'default period of 60 s; -1: never.'),
    cfg.IntOpt('shelved_poll_interval', default=3600, min=-1,
               help='Seconds between two looks of the conductors for shelved servers whose time is over. 0: the '
                    'default period of 60 s; -1: never.'),
]
