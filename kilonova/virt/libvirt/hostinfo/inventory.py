"""The resources and the traits of a host, which the compute service reports to Placement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import os_traits

from kilonova.virt import inventory
from kilonova.virt.hardware import numa
from kilonova.virt.hardware.numa import HostCell
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices import hostdevs
from kilonova.virt.libvirt.domain import interface
from kilonova.virt.libvirt.hostinfo.capabilities import GuestCapabilities, HostCapabilities
from kilonova.virt.libvirt.storage.rbd.ceph import PoolSpace

# Image types from which servers can be started, in addition to the image types that all drivers support.
_KERNEL_IMAGES = ('AKI', 'AMI', 'ARI')
# Traits that every host has, because every supported version of QEMU has these features.
_ALWAYS = ('COMPUTE_SOCKET_PCI_NUMA_AFFINITY', 'COMPUTE_NET_VIRTIO_PACKED')
_ADDRESS_SPACES = {'passthrough': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH', 'emulate': 'COMPUTE_ADDRESS_SPACE_EMULATED'}
_KNOWN = frozenset(os_traits.get_traits())


def cells(connection: Connection, capabilities: HostCapabilities) -> tuple[HostCell, ...]:
    """Return the host's NUMA cells.

    If libvirt reports only the numbers of cells, sockets, cores and threads, CPUs and memory are distributed evenly.
    """
    if capabilities.cells:
        return capabilities.cells
    memory_mb, _cpus, _mhz, nodes, sockets, cores, threads = connection.info()[1:8]
    return tuple(numa.spread(nodes, sockets, cores, threads, memory_mb))


def available(
    connection: Connection, capabilities: HostCapabilities, disk: PoolSpace, node_uuid: str, offer: Offer
) -> dict[str, Any]:
    """Return the host's resources, with the keys that ``parts.host.Host.get_available_resource`` describes.

    ``disk`` is the space for servers' disks, ``node_uuid`` the uuid of the compute node, and ``offer`` has the CPUs
    that servers may use.
    """
    info = connection.info()
    memory_mb, nodes, sockets, cores, threads = info[1], *info[4:8]
    topology = numa.topology_of(cells(connection, capabilities), offer)
    return {
        'supported_instances': capabilities.supported(),
        'vcpus': len(offer.shared),
        'memory_mb': memory_mb,
        'local_gb': disk.total >> 30,
        'vcpus_used': 0,
        'memory_mb_used': 0,
        'local_gb_used': disk.used >> 30,
        'hypervisor_type': connection.kind(),
        'hypervisor_version': connection.version(),
        'hypervisor_hostname': connection.name,
        'uuid': node_uuid,
        'cpu_info': json.dumps(
            {
                'arch': capabilities.arch,
                'model': capabilities.cpu_model,
                'vendor': capabilities.cpu_vendor,
                'topology': {'cells': nodes, 'sockets': sockets, 'cores': cores, 'threads': threads},
                'features': list(capabilities.cpu_features),
                **({'maxphysaddr': capabilities.address_space} if capabilities.address_space else {}),
            }
        ),
        'disk_available_least': disk.free >> 30,
        'numa_topology': topology.to_json() if topology is not None else None,
        'stats': {},
        'pci_passthrough_devices': hostdevs.discover(connection.node_devices()),
    }


def _name(model: str) -> str:
    return model.replace('-', '_').upper()


def traits(
    connection: Connection,
    capabilities: HostCapabilities,
    guests: GuestCapabilities,
    address_spaces: Iterable[str] = (),
) -> set[str]:
    """Return the traits of the host, without the traits of its devices.

    ``address_spaces`` are the values of hw:maxphysaddr_mode that the host supports: 'passthrough', 'emulate'.
    """
    arch = capabilities.arch.upper()
    is_pc = arch in ('X86_64', 'I686')
    found = {
        *inventory.COMMON_TRAITS,
        f'COMPUTE_ARCH_{arch}',
        f'HW_ARCH_{arch}',
        *_ALWAYS,
        *(f'COMPUTE_IMAGE_TYPE_{name}' for name in _KERNEL_IMAGES),
        *(f'COMPUTE_STORAGE_BUS_{bus.upper()}' for bus in guests.buses),
        *(f'COMPUTE_GRAPHICS_MODEL_{model.upper()}' for model in guests.video_models),
        *(f'COMPUTE_SOUND_MODEL_{model.upper()}' for model in guests.models.sound),
        *(f'COMPUTE_USB_MODEL_{_name(model)}' for model in guests.models.usb),
        *(f'COMPUTE_VIOMMU_MODEL_{model.upper()}' for model in guests.models.iommu),
        *(_ADDRESS_SPACES[mode] for mode in address_spaces),
        *(f'COMPUTE_NET_VIF_MODEL_{_name(model)}' for model in interface.models(capabilities.arch)),
    }
    if guests.models.iommu:
        found.add('COMPUTE_VIOMMU_MODEL_AUTO')
    if arch == 'X86_64' and any(name == 'i686' for name, _kinds in capabilities.guests):
        found.add('HW_ARCH_I686')
    if is_pc:
        found.add('COMPUTE_FIRMWARE_BIOS')
    if guests.has_uefi:
        found.add('COMPUTE_FIRMWARE_UEFI')
    if guests.has_secure_boot:
        found.add('COMPUTE_SECURITY_UEFI_SECURE_BOOT')
    if any(cell.siblings for cell in cells(connection, capabilities)):
        found.add('HW_CPU_HYPERTHREADING')
    # Unknown traits are left out: Placement would refuse the whole list because of one of them.
    return {name for name in found if name in _KNOWN}
