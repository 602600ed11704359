"""The [DEFAULT] options of a compute: concurrency, periodic tasks, and what happens when its host boots."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.IntOpt(
        'max_concurrent_builds',
        default=10,
        min=0,
        help='Maximum number of servers that this host builds at the same time; further builds wait. 0: no limit.',
    ),
    cfg.IntOpt(
        'max_concurrent_snapshots',
        default=5,
        min=0,
        help='Maximum number of snapshots (images of servers) that this host makes at the same time; further '
        'ones wait. 0: no limit. Each copies a disk and uploads it to the image service.',
    ),
    cfg.IntOpt(
        'max_concurrent_live_migrations',
        default=1,
        min=0,
        help='Maximum number of live migrations from this host at the same time; further ones wait in a queue. '
        '0: no limit. They share the bandwidth of the network: if several run, each takes longer, and the '
        'migration of a guest that writes much memory may never finish.',
    ),
    cfg.BoolOpt(
        'resume_guests_state_on_host_boot',
        default=False,
        help='Start the guests that were running when the host went down, with the same devices. Otherwise '
        'their servers become SHUTOFF, and the next start of the server uses the same devices.',
    ),
    cfg.IntOpt(
        'sync_power_state_interval',
        default=600,
        min=-1,
        help='Seconds between two comparisons of all power states with the hypervisor. 0: the default period of '
        '60 s; -1: never.',
    ),
    cfg.IntOpt(
        'update_resources_interval',
        default=0,
        min=-1,
        help="Seconds between two updates of the host's resources (inventory in Placement, PCI devices). 0: the "
        'default period of 60 s; -1: only at start.',
    ),
    cfg.IntOpt(
        'arq_binding_timeout',
        default=300,
        min=1,
        help='Maximum seconds for which the build of a server with accelerators waits until Cyborg has bound '
        'all of them; then the build fails. Devices that must be programmed first take long.',
    ),
    cfg.IntOpt(
        'vif_plugging_timeout',
        default=300,
        min=0,
        help='Maximum seconds for which a new guest stays paused until the network service has plugged its '
        'ports (they are ACTIVE). 0: the guest starts immediately, and may have no network in its first '
        'seconds.',
    ),
    cfg.BoolOpt(
        'vif_plugging_is_fatal',
        default=True,
        help='Whether the build fails if the ports of a guest are not plugged in time; the fault of the server '
        'then gives the reason. Otherwise the guest is started all the same.',
    ),
    cfg.IntOpt(
        'shutdown_timeout',
        default=60,
        min=0,
        help='Maximum seconds that a guest gets to shut down before it is powered off. The image property '
        'os_shutdown_timeout overrides it.',
    ),
    cfg.StrOpt(
        'running_deleted_instance_action',
        default='reap',
        choices=['noop', 'log', 'shutdown', 'reap'],
        help='What a host does with a guest that still exists although its server is deleted and no cleanup of '
        'the server is pending on the host. noop: nothing, the host does not check for such guests. log: '
        'it logs a warning. shutdown: it powers off the guest. reap: it removes the guest and its files. '
        'Guests whose server is not in the database are never changed.',
    ),
    cfg.IntOpt(
        'running_deleted_instance_poll_interval',
        default=1800,
        min=-1,
        help='Seconds between two checks for guests of deleted servers; the first check is made when the '
        'compute starts. 0: the default period of 60 s; -1: never.',
    ),
    cfg.IntOpt(
        'running_deleted_instance_timeout',
        default=0,
        min=0,
        help='Minimum seconds since the deletion of a server before running_deleted_instance_action applies to '
        'its guest.',
    ),
    cfg.IntOpt(
        'instance_delete_interval',
        default=300,
        min=-1,
        help='Seconds between two checks for files of deleted servers that have no guest any more; these files '
        'are removed. 0: the default period of 60 s; -1: never.',
    ),
    cfg.IntOpt(
        'maximum_instance_delete_attempts',
        default=5,
        min=1,
        help='How often a host tries to remove the files of one deleted server. After a restart of the compute '
        'it tries again.',
    ),
    cfg.BoolOpt('periodic_enable', default=True, help='Run the periodic tasks. Heartbeats are sent in any case.'),
]
