"""What the host has: the answer to get_available_resource, and its traits."""
from __future__ import annotations

import json
import shutil
from typing import Any

from kilonova.virt import inventory
from kilonova.virt.hardware import numa
from kilonova.virt.libvirt.capabilities import HostCapabilities
from kilonova.virt.libvirt.devices import pci
from kilonova.virt.libvirt.host import Host

_BUSES = ('IDE', 'SATA', 'SCSI', 'USB', 'VIRTIO')


def available(host: Host, capabilities: HostCapabilities, instances_path: str, node_uuid: str) -> dict[str, Any]:
    """The host as it stands; keys as ``driver.ComputeDriver.get_available_resource`` says."""
    info = host.info()
    memory_mb, cpus, nodes, sockets, cores, threads = info[1], info[2], *info[4:8]
    disk = shutil.disk_usage(instances_path)
    cells = capabilities.cells or numa.spread(nodes, sockets, cores, threads, memory_mb)
    return {
        'supported_instances': capabilities.supported(),
        'vcpus': cpus, 'memory_mb': memory_mb, 'local_gb': disk.total >> 30,
        'vcpus_used': 0, 'memory_mb_used': 0, 'local_gb_used': disk.used >> 30,
        'hypervisor_type': host.kind(), 'hypervisor_version': host.version(),
        'hypervisor_hostname': host.name, 'uuid': node_uuid,
        'cpu_info': json.dumps({
            'arch': capabilities.arch, 'model': capabilities.cpu_model, 'vendor': capabilities.cpu_vendor,
            'topology': {'cells': nodes, 'sockets': sockets, 'cores': cores, 'threads': threads},
            'features': list(capabilities.cpu_features)}),
        'disk_available_least': disk.free >> 30,
        'numa_topology': numa.to_json(cells), 'stats': {},
        'pci_passthrough_devices': pci.discover(host.node_devices())}


def traits(capabilities: HostCapabilities) -> set[str]:
    """What servers can ask of this host besides devices."""
    return {*inventory.COMMON_TRAITS, f'COMPUTE_ARCH_{capabilities.arch.upper()}',
            *(f'COMPUTE_STORAGE_BUS_{bus}' for bus in _BUSES)}
