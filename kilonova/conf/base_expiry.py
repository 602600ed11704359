"""The [DEFAULT] options for states that a server may have only for a limited time. Conductors read these options."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt(
        'resize_confirm_window',
        default=0,
        min=0,
        help='Seconds after which conductors confirm a resize or cold migration that was neither confirmed nor '
        'reverted. Confirming frees the old disks, devices and allocation. 0: never; the server stays in '
        'VERIFY_RESIZE. Set the same value for all conductors.',
    ),
    cfg.IntOpt(
        'instance_build_timeout',
        default=0,
        min=0,
        help='Maximum seconds that a server may be in BUILD. The time counts from the request until a host is '
        'chosen, and starts again when a host is chosen. After it conductors cancel the build: the '
        'resources of the server are freed, and the server goes to ERROR. 0: no limit. Set it to more than '
        'the transfer of the largest image to a host takes. Set the same value for all conductors.',
    ),
    cfg.IntOpt(
        'shelved_offload_time',
        default=0,
        min=-1,
        help='Seconds after which a shelved server is removed from its host. Until then it keeps its disks, '
        'devices and allocation there. 0: immediately after its image is created; -1: only on request. Set '
        'the same value for all conductors, which read it.',
    ),
    cfg.IntOpt(
        'rescue_timeout',
        default=0,
        min=0,
        help='Seconds after which conductors end the rescue of a server, so that it boots from its own disk '
        'again. 0: never. Set the same value for all conductors.',
    ),
    cfg.IntOpt(
        'heal_instance_info_cache_interval',
        default=-1,
        min=-1,
        help='Seconds between two refreshes of info caches. In each one a conductor reads the ports of one '
        "server from the network service and writes the server's info cache again; it takes one server "
        'after the other. Set it in clouds where events of the network service get lost. 0: the default '
        'period of 60 s; -1: never.',
    ),
    cfg.IntOpt(
        'shelved_poll_interval',
        default=3600,
        min=-1,
        help='Seconds between two checks of the conductors for shelved servers whose shelved_offload_time is '
        'over. 0: the default period of 60 s; -1: never.',
    ),
]
