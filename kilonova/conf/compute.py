"""The [compute] options: how a compute service works on its host."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'compute'

OPTS = [
    cfg.StrOpt(
        'cpu_shared_set',
        help='Host CPUs that virtual CPUs and emulator threads share, as 0-3,8-11,^9. Empty: all CPUs of the '
        'host, or none if cpu_dedicated_set is set. Running servers keep their CPUs, so change it only on '
        'a host without servers.',
    ),
    cfg.StrOpt(
        'cpu_dedicated_set',
        help='Host CPUs that are each given to one virtual CPU (hw:cpu_policy dedicated or mixed), offered as '
        'PCPU. Empty: none. No CPU may be in both this set and cpu_shared_set; leave some CPUs out of both '
        'for the host.',
    ),
    cfg.BoolOpt(
        'packing_host_numa_cells_allocation_strategy',
        default=False,
        help='On: fill the NUMA cells of a host that are in use before the others. Off: use the cell with the '
        'most free capacity. Read by the scheduler and computes.',
    ),
    cfg.IntOpt(
        'consecutive_build_service_disable_threshold',
        default=10,
        help="Whether a compute counts its consecutive failed builds in the node's stats, which the scheduler's "
        'BuildFailureWeigher reads. 0: they are not counted. The service is never disabled automatically.',
    ),
    cfg.IntOpt(
        'resource_provider_association_refresh',
        default=300,
        min=0,
        help='Seconds after which the compute reads all data of its host from Placement again, so that it '
        'notices changes by others. It also applies a change of enabled or disabled that it missed. 0: '
        'never.',
    ),
    cfg.IntOpt(
        'max_disk_devices_to_attach',
        default=-1,
        min=-1,
        help='Maximum number of disks of a server: root disk, ephemeral disks, swap and volumes. A create or an '
        'attach that exceeds it is refused. Read by kilonova-api. -1: no limit except that of the '
        'hypervisor.',
    ),
    cfg.IntOpt(
        'shutdown_retry_interval',
        default=10,
        min=1,
        help='Seconds between two shutdown requests to a guest, within shutdown_timeout.',
    ),
]
