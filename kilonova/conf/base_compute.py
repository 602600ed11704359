"""The [DEFAULT] options of a compute: concurrency, periodic tasks, and what happens when its host boots."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt('max_concurrent_builds', default=10, min=0,
               help='Servers that are built at once on this host; more wait. 0: as many as are asked for.'),
    cfg.IntOpt('max_concurrent_snapshots', default=5, min=0,
               help='Images of servers that are made at once on this host; more wait. 0: as many as are asked for. '
                    'Each copies a disk and sends it to the image service.'),
    cfg.IntOpt('max_concurrent_live_migrations', default=1, min=0,
               help='Live migrations from this host at once; more wait, queued. 0: as many as are asked for. They '
                    'share the network: several take longer each, and guests that write much may never get away.'),
    cfg.BoolOpt('resume_guests_state_on_host_boot', default=False,
                help='Start guests again that were running when the host went down, with the same devices. Otherwise '
                     'their servers become SHUTOFF, and the next start brings the same devices back.'),
    cfg.IntOpt('sync_power_state_interval', default=600, min=-1,
               help='Seconds between two comparisons of all power states with the hypervisor. 0: the default period of '
                    '60 s; -1: never.'),
    cfg.IntOpt('update_resources_interval', default=0, min=-1,
               help='Seconds between two looks at what the host has (inventory in Placement, PCI devices). 0: the '
                    'default period of 60 s; -1: only at start.'),
    cfg.IntOpt('arq_binding_timeout', default=300, min=1,
               help='Seconds for which the build of a server with accelerators waits until Cyborg has bound all of '
                    'them. Devices that are programmed first take long; then the build fails.'),
    cfg.IntOpt('vif_plugging_timeout', default=300, min=0,
               help='Seconds for which a new guest waits, paused, until the network service has plugged its ports '
                    '(they are ACTIVE). 0: it does not wait; then the first seconds of the guest may be without '
                    'network.'),
    cfg.BoolOpt('vif_plugging_is_fatal', default=True,
                help='Whether a guest whose ports are not plugged in time is given up, with the reason in its fault. '
                     'Otherwise it runs without.'),
    cfg.IntOpt('shutdown_timeout', default=60, min=0,
               help='Seconds that a guest gets to shut down before its power is cut. The image property '
                    'os_shutdown_timeout overrides it.'),
    cfg.StrOpt('running_deleted_instance_action', default='reap', choices=['noop', 'log', 'shutdown', 'reap'],
               help='What a host does with a guest that is still there though its server is deleted, and nothing of it '
                    'waits to be given back: noop: nothing, it does not look; log: it warns; shutdown: it powers the '
                    'guest off; reap: it removes the guest and its files. Guests that the database does not know are '
                    'left alone.'),
    cfg.IntOpt('running_deleted_instance_poll_interval', default=1800, min=-1,
               help='Seconds between two looks for guests of deleted servers; the first comes when the host starts. '
                    '0: the default period of 60 s; -1: never.'),
    cfg.IntOpt('running_deleted_instance_timeout', default=0, min=0,
               help='Seconds for which the server of such a guest must have been deleted.'),
    cfg.IntOpt('instance_delete_interval', default=300, min=-1,
               help='Seconds between two looks for files of deleted servers that have no guest any more; they are '
                    'removed. 0: the default period of 60 s; -1: never.'),
    cfg.IntOpt('maximum_instance_delete_attempts', default=5, min=1,
               help='How often a host tries to remove the files of one deleted server, until it is started again.'),
    cfg.BoolOpt('periodic_enable', default=True,
                help='Run the periodic tasks. The heartbeat is none of them.'),
]
