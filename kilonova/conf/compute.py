"""The [compute] options: details of the work of one host."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'compute'

OPTS = [
    cfg.StrOpt('cpu_shared_set',
               help='Host CPUs that virtual CPUs and emulator threads share, as 0-3,8-11,^9. Empty: all of the host, '
                    'or none once cpu_dedicated_set is set. Servers that run keep their CPUs: change it on an empty '
                    'host.'),
    cfg.StrOpt('cpu_dedicated_set',
               help='Host CPUs that are given to one virtual CPU each (hw:cpu_policy dedicated or mixed), offered as '
                    'PCPU. Empty: none. No CPU may be in cpu_shared_set too; leave some in neither for the host.'),
    cfg.BoolOpt('packing_host_numa_cells_allocation_strategy', default=False,
                help='Fill NUMA cells of a host that are in use before others; off: take the one with most room. Read '
                     'by scheduler and computes.'),
    cfg.IntOpt('consecutive_build_service_disable_threshold', default=10,
               help="Whether failed builds in a row are counted in the node's stats, where the BuildFailureWeigher of "
                    'the scheduler finds them. 0: not counted. The service is never disabled by itself.'),
    cfg.IntOpt('resource_provider_association_refresh', default=300, min=0,
               help='Seconds after which everything that Placement holds of this host is read again, so that changes '
                    'by others are seen; so is a change of enabled and disabled that this host missed. 0: never.'),
    cfg.IntOpt('max_disk_devices_to_attach', default=-1, min=-1,
               help='Disks that one server may have: its root disk, ephemeral ones, swap, and volumes. A create and an '
                    'attach that would make more are refused. Read by kilonova-api. -1: no limit but those of the '
                    'hypervisor.'),
    cfg.IntOpt('shutdown_retry_interval', default=10, min=1,
               help='Seconds between two requests to a guest to shut down, within shutdown_timeout.'),
]
