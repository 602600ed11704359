"""The [conductor] options: how many flows run at the same time, and how soon abandoned flows are found."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'conductor'

OPTS = [
    cfg.IntOpt('workers', min=0,
               help='Processes of kilonova-conductor on this host, with a parent that restarts those that die. Empty '
                    'or 0: one a CPU. Each has its own slots, connections and memory.'),
    cfg.IntOpt('flow_slots', default=32, min=2,
               help='Operations that one conductor process works on at once. A quarter of them is kept for deletes '
                    'and undos. The rest waits as rows.'),
    cfg.IntOpt('flow_slots_per_host', default=10, min=1,
               help='Operations in a long call to one compute host at once, per conductor process.'),
    cfg.IntOpt('sweep_interval', default=10, min=1, max=15,
               help='Seconds between two looks for operations that nobody works on.'),
    cfg.IntOpt('lease_time', default=30, min=3,
               help='Seconds without renewal after which another conductor may take over the operations of this '
                    'one. Renewed six times in that span.'),
    cfg.IntOpt('host_boot_resume_timeout', default=3600, min=0,
               help='Seconds for which a server that ran when its host went down, and that the host could not start '
                    'again at once ([DEFAULT]resume_guests_state_on_host_boot), is tried again: a device, its '
                    'storage or a service that it needs may come back later than the host. They count from the last '
                    'start of its nova-compute. Then the server is SHUTOFF, and its action says why. 0: it is tried '
                    'once more.'),
]
