"""Inventories, allocation ratios and common traits of a compute's root provider in Placement.

    root(conf, 64, 262144, 1024, existing={})['VCPU']['total'] == 64

All drivers use this module.
"""

from __future__ import annotations

import math

from oslo_config import cfg

from kilonova.virt.parts.host import Inventories

# Image formats that all drivers support. The drivers inspect an image's content and then convert the image.
IMAGE_FORMATS = ('iso', 'qcow2', 'raw', 'vdi', 'vhd', 'vhdx', 'vmdk')

COMMON_TRAITS = frozenset(
    {
        'COMPUTE_NODE',
        'OWNER_NOVA',
        'COMPUTE_REMOTE_MANAGED_PORTS',
        'COMPUTE_VOLUME_ATTACH_WITH_TAG',
        'COMPUTE_VOLUME_EXTEND',
        'COMPUTE_VOLUME_MULTI_ATTACH',
    }
    | {f'COMPUTE_IMAGE_TYPE_{name.upper()}' for name in IMAGE_FORMATS}
)

# Each pair has the name of an allocation ratio in the compute node's record, and the resource class of this ratio.
RATIOS = (('cpu_allocation_ratio', 'VCPU'), ('ram_allocation_ratio', 'MEMORY_MB'), ('disk_allocation_ratio', 'DISK_GB'))


def ratios(conf: cfg.ConfigOpts, inventory: Inventories) -> dict[str, float]:
    """Return the allocation ratios for a host's compute node record, such as {'cpu_allocation_ratio': 4.0}.

    ``inventory`` is the host's inventory for Placement. If it has the resource, its ratio is returned. Otherwise the
    result is the option *_allocation_ratio or, if this is unset, initial_*_allocation_ratio. The inventory lacks VCPU
    if all CPUs are dedicated, and DISK_GB if there is no local disk.
    """
    return {
        name: inventory[resource_class]['allocation_ratio']
        if resource_class in inventory
        else conf[name] or conf[f'initial_{name}']
        for name, resource_class in RATIOS
    }


def root(
    conf: cfg.ConfigOpts, vcpus: int, memory_mb: int, local_gb: int, existing: Inventories | None = None, pcpus: int = 0
) -> Inventories:
    """Return the inventories of VCPU, PCPU, MEMORY_MB and DISK_GB of a host for a PUT to Placement.

    Resources that the host lacks are left out. ``vcpus`` is the number of shared CPUs, and ``pcpus`` the number of CPUs
    that are each given to only one vCPU. ``existing`` is the current inventory in Placement: its ratios are kept if
    [DEFAULT]*_allocation_ratio is unset.
    """
    disk_reserved = math.ceil(conf.reserved_host_disk_mb / 1024)
    rows = (
        ('VCPU', vcpus, conf.reserved_host_cpus, conf.cpu_allocation_ratio, conf.initial_cpu_allocation_ratio),
        (
            'MEMORY_MB',
            memory_mb,
            conf.reserved_host_memory_mb,
            conf.ram_allocation_ratio,
            conf.initial_ram_allocation_ratio,
        ),
        ('DISK_GB', local_gb, disk_reserved, conf.disk_allocation_ratio, conf.initial_disk_allocation_ratio),
        # The allocation ratio of PCPU is always 1, because each dedicated CPU is given to only one vCPU.
        ('PCPU', pcpus, 0, 1.0, 1.0),
    )
    found = {}
    for name, total, reserved, configured, initial in rows:
        if total <= 0:
            continue
        now = (existing or {}).get(name, {}).get('allocation_ratio')
        found[name] = {
            'total': total,
            'reserved': min(reserved, total),
            'min_unit': 1,
            'max_unit': total,
            'step_size': 1,
            'allocation_ratio': configured or now or initial,
        }
    return found
