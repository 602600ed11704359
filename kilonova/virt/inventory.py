"""A compute's root provider in Placement: what it has, how far it is overcommitted, what it can do.

    root(conf, 64, 262144, 1024, existing={})['VCPU']['total'] == 64
"""
from __future__ import annotations

import math

from oslo_config import cfg

from kilonova.virt.parts.host import Inventories

# Every driver here can boot these (their content is inspected, then converted).
IMAGE_FORMATS = ('iso', 'qcow2', 'raw', 'vdi', 'vhd', 'vhdx', 'vmdk')

COMMON_TRAITS = frozenset({'COMPUTE_NODE', 'OWNER_NOVA', 'COMPUTE_REMOTE_MANAGED_PORTS',
                           'COMPUTE_VOLUME_ATTACH_WITH_TAG', 'COMPUTE_VOLUME_EXTEND', 'COMPUTE_VOLUME_MULTI_ATTACH'}
                          | {f'COMPUTE_IMAGE_TYPE_{name.upper()}' for name in IMAGE_FORMATS})

# Allocation ratios of a node's record, and the resource class that each is for.
RATIOS = (('cpu_allocation_ratio', 'VCPU'), ('ram_allocation_ratio', 'MEMORY_MB'),
          ('disk_allocation_ratio', 'DISK_GB'))


def ratios(conf: cfg.ConfigOpts, inventory: Inventories) -> dict[str, float]:
    """Return every allocation ratio of a host by its name in RATIOS.

    A resource that the inventory has keeps its ratio from there. For one that the host lacks (VCPU where all CPUs are
    dedicated, DISK_GB without a local disk) it is the configured ratio, or else the initial one.
    """
    return {name: inventory[resource_class]['allocation_ratio'] if resource_class in inventory
            else conf[name] or conf[f'initial_{name}'] for name, resource_class in RATIOS}


def root(conf: cfg.ConfigOpts, vcpus: int, memory_mb: int, local_gb: int,
         existing: Inventories | None = None, pcpus: int = 0) -> Inventories:
    """VCPU, PCPU, MEMORY_MB and DISK_GB of one host, ready for a PUT; a resource that the host lacks is left out.

    ``vcpus`` are shared CPUs, ``pcpus`` those that are given to one vCPU each. ``existing`` is Placement's present
    inventory: its ratios stay where [DEFAULT]*_allocation_ratio is unset.
    """
    disk_reserved = math.ceil(conf.reserved_host_disk_mb / 1024)
    rows = (('VCPU', vcpus, conf.reserved_host_cpus, conf.cpu_allocation_ratio, conf.initial_cpu_allocation_ratio),
            ('MEMORY_MB', memory_mb, conf.reserved_host_memory_mb, conf.ram_allocation_ratio,
             conf.initial_ram_allocation_ratio),
            ('DISK_GB', local_gb, disk_reserved, conf.disk_allocation_ratio, conf.initial_disk_allocation_ratio),
            # Given once each; what Placement says of them doesn't count.
            ('PCPU', pcpus, 0, 1.0, 1.0))
    found = {}
    for name, total, reserved, configured, initial in rows:
        if total <= 0:
            continue
        now = (existing or {}).get(name, {}).get('allocation_ratio')
        found[name] = {'total': total, 'reserved': min(reserved, total), 'min_unit': 1, 'max_unit': total,
                       'step_size': 1, 'allocation_ratio': configured or now or initial}
    return found
