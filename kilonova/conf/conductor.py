"""The [conductor] options: how many operations run at the same time, and how soon abandoned ones are found."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'conductor'

OPTS = [
    cfg.IntOpt(
        'workers',
        min=0,
        help='Number of kilonova-conductor processes on this host. A parent process restarts those that die. '
        'Empty or 0: one process per CPU. Each process has its own slots, connections and memory.',
    ),
    cfg.IntOpt(
        'flow_slots',
        default=32,
        min=2,
        help='Maximum number of operations that one conductor process runs at the same time. A quarter of them '
        'is reserved for deletes and for undoing failed operations. Further operations wait as rows in the '
        'database.',
    ),
    cfg.IntOpt(
        'flow_slots_per_host',
        default=10,
        min=1,
        help='Maximum number of operations per conductor process that are in a long call to the same compute host.',
    ),
    cfg.IntOpt(
        'sweep_interval',
        default=10,
        min=1,
        max=15,
        help='Seconds between two checks for operations that no conductor works on.',
    ),
    cfg.IntOpt(
        'lease_time',
        default=30,
        min=3,
        help='Seconds without a renewal of its lease after which other conductors may take over the operations '
        'of this conductor. The lease is renewed six times in this period.',
    ),
    cfg.IntOpt(
        'host_boot_resume_timeout',
        default=3600,
        min=0,
        help='Seconds for which conductors retry to start a server that was running when its host went down, if '
        'the host could not start it at once ([DEFAULT]resume_guests_state_on_host_boot). A device, the '
        'storage or a service that it needs may become available later than the host. The time counts from '
        'the last start of nova-compute on the host. After it the server is SHUTOFF, and its instance '
        'action gives the reason. 0: the start is retried once.',
    ),
]
