"""Parsers of libvirt's capabilities: the host's hardware, and the hardware that its guests can have.

    caps = parse(connection.capabilities_xml(), test=connection.is_test)
    caps.arch, caps.cells, caps.supported()
    guests = of_guests(connection, caps.arch, 'kvm', {'pc', 'q35'})
    guests.video_models

Properties that libvirt does not report are derived from the versions of libvirt and QEMU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.hardware import tuning
from kilonova.virt.hardware.numa import HostCell
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.domain.guest import X86, DeviceModels

LOG = logging.getLogger(__name__)

# The version that is assumed if none is known: higher than all real ones (major * 1000000 + minor * 1000 + micro).
_NEWEST = 10**9
# The first libvirt versions with a virtio IOMMU, and with a configurable width of guests' physical addresses.
_VIRTIO_IOMMU, _ADDRESS_SPACES = 8003000, 8007000
# The first libvirt version and the first QEMU version with virtio sound.
_VIRTIO_SOUND = 10004000, 8002000
# The first QEMU version without the PC speaker device that libvirt uses.
_NO_SPEAKER = 7001000


@dataclass(frozen=True)
class HostCapabilities:
    """The host's CPU and NUMA cells, and the kinds of guests that it can run.

    ``guests`` are pairs of architecture and domain types, such as ('x86_64', ('kvm', 'qemu')).
    """

    arch: str
    cpu_model: str
    cpu_vendor: str
    cpu_features: tuple[str, ...]
    cells: tuple[HostCell, ...]
    guests: tuple[tuple[str, tuple[str, ...]], ...]
    uuid: str | None = None
    # {architecture: {machine type: maximum number of vCPUs, or None if libvirt reports no maximum}}.
    machines: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    # The width of the host's physical addresses, {'mode': 'emulate', 'bits': 46}, or None if it is not known.
    address_space: dict[str, Any] | None = None

    def supported(self) -> list[list[str]]:
        """Return the value of compute_nodes.supported_instances: [[architecture, kind of hypervisor, 'hvm']]."""
        return [[arch, kind, 'hvm'] for arch, kinds in self.guests for kind in kinds]


def parse(text: str, test: bool = False) -> HostCapabilities:
    """Return the capabilities of the host from libvirt's XML.

    libvirt's test driver describes itself as an i686 host with guests of type 'test'. With ``test`` it is treated as an
    x86_64 host with kvm and qemu.
    """
    root = ElementTree.fromstring(text)
    cpu = root.find('./host/cpu')
    cpu = cpu if cpu is not None else ElementTree.Element('cpu')
    guests = (
        (('x86_64', ('kvm', 'qemu')),)
        if test
        else tuple(
            (
                guest.find('arch').get('name', ''),  # type: ignore[union-attr]
                tuple(domain.get('type', '') for domain in guest.findall('./arch/domain')),
            )
            for guest in root.findall('guest')
            if guest.findtext('os_type') == 'hvm' and guest.find('arch') is not None
        )
    )
    return HostCapabilities(
        arch='x86_64' if test else cpu.findtext('arch') or 'x86_64',
        cpu_model=cpu.findtext('model') or '',
        cpu_vendor=cpu.findtext('vendor') or '',
        cpu_features=tuple(sorted(feature.get('name', '') for feature in cpu.findall('feature'))),
        cells=tuple(_cell(cell) for cell in root.findall('./host/topology/cells/cell')),
        guests=guests,
        uuid=root.findtext('./host/uuid'),
        machines={} if test else _machines(root),
        address_space=_address_space(cpu.find('maxphysaddr')),
    )


def _machines(root: ElementTree.Element) -> dict[str, dict[str, int | None]]:
    """Return the machine types of each architecture with their maximum number of vCPUs.

    If kvm and qemu have different maxima for a machine type, the larger one is used.
    """
    found: dict[str, dict[str, int | None]] = {}
    for arch in root.iterfind('guest/arch'):
        known = found.setdefault(arch.get('name', ''), {})
        for machine in (*arch.iterfind('machine'), *arch.iterfind('domain/machine')):
            name, most = machine.text or '', machine.get('maxCpus', '')
            known[name] = max(known.get(name) or 0, int(most)) if most.isdigit() else known.get(name)
    return found


def _address_space(element: ElementTree.Element | None) -> dict[str, Any] | None:
    if element is None or not element.get('bits'):
        return None
    return {'mode': element.get('mode'), 'bits': int(element.get('bits', ''))}


@dataclass(frozen=True)
class GuestCapabilities:
    """The hardware that guests can have on this host with one or with several machine types.

    It includes disk buses, video models, graphics servers, firmware and other devices. With several machine types, the
    hardware of at least one of them is included. ``has_address_spaces`` is True if libvirt can set the width of a
    guest's physical addresses.
    """

    buses: frozenset[str] = frozenset()
    video_models: frozenset[str] = frozenset()
    graphics: frozenset[str] = frozenset()
    has_uefi: bool = False
    has_secure_boot: bool = False
    models: DeviceModels = field(default_factory=DeviceModels)
    has_address_spaces: bool = False

    def __or__(self, other: GuestCapabilities) -> GuestCapabilities:
        """Return the union of the capabilities of two machine types: what at least one of them supports."""
        return replace(
            self,
            buses=self.buses | other.buses,
            video_models=self.video_models | other.video_models,
            graphics=self.graphics | other.graphics,
            has_uefi=self.has_uefi or other.has_uefi,
            has_secure_boot=self.has_secure_boot or other.has_secure_boot,
        )


def of_guests(connection: Connection, arch: str, virt_type: str, machines: set[str]) -> GuestCapabilities:
    """Return the hardware that guests can have with at least one of the machine types ``machines``.

    If libvirt reports nothing about these machine types, as its test driver does, return the result of ``usual``.
    """
    found: GuestCapabilities | None = None
    for machine in sorted(machines):
        try:
            text = connection.domain_capabilities(arch, machine, virt_type)
        except libvirt.libvirtError as error:
            # This build of QEMU does not have the machine type, so the machine type is skipped.
            LOG.debug('libvirt reports no capabilities for machine type %s: %s', machine, error)
            continue
        one = parse_guest(text)
        found = one if found is None else found | one
    libvirt_version = connection.libvirt_version()
    # libvirt's test driver reports no version of QEMU, so the newest QEMU is assumed.
    qemu_version = _NEWEST if connection.is_test else connection.version()
    return replace(
        found if found is not None else usual(arch),
        models=device_models(arch, libvirt_version, qemu_version),
        has_address_spaces=arch in X86 and libvirt_version >= _ADDRESS_SPACES,
    )


def device_models(arch: str, libvirt_version: int = _NEWEST, qemu_version: int = _NEWEST) -> DeviceModels:
    """Return the device models that QEMU of this version has for guests of an architecture."""
    sound, usb, iommu = {'ac97', 'es1370', 'ich6', 'ich9', 'usb'}, {'ehci', 'nec-xhci', 'pci-ohci', 'qemu-xhci'}, set()
    if arch in X86:
        sound |= {'sb16'} if qemu_version >= _NO_SPEAKER else {'sb16', 'pcspk'}
        usb |= {'ich9-ehci1', 'piix3-uhci', 'piix4-uhci'}
        iommu.add(tuning.INTEL)
    elif arch == 'aarch64':
        iommu.add(tuning.SMMUV3)
    if iommu and libvirt_version >= _VIRTIO_IOMMU:
        iommu.add(tuning.VIRTIO)
    if libvirt_version >= _VIRTIO_SOUND[0] and qemu_version >= _VIRTIO_SOUND[1]:
        sound.add('virtio')
    return DeviceModels(frozenset(sound), frozenset(iommu), frozenset(usb))


def usual(arch: str) -> GuestCapabilities:
    """Return the hardware that is assumed for guests of an architecture if libvirt reports nothing.

    QEMU of every Linux distribution supports this hardware.
    """
    buses = {'scsi', 'usb', 'virtio'} | ({'ide', 'sata'} if arch in X86 else set())
    models = {'none', 'virtio'} | ({'bochs', 'cirrus', 'qxl', 'vga', 'vmvga'} if arch in X86 else set())
    return GuestCapabilities(
        frozenset(buses),
        frozenset(models),
        frozenset({'vnc', 'spice'}),
        has_uefi=arch in ('x86_64', 'aarch64'),
        has_secure_boot=arch == 'x86_64',
        models=device_models(arch),
        has_address_spaces=arch in X86,
    )


def parse_guest(text: str) -> GuestCapabilities:
    """Return the capabilities of one machine type from libvirt's domain capabilities (XML)."""
    root = ElementTree.fromstring(text)

    def values(path: str, name: str) -> frozenset[str]:
        found = root.findall(f"{path}[@supported='yes']/enum[@name='{name}']/value")
        return frozenset(value.text or '' for value in found)

    return GuestCapabilities(
        buses=values('devices/disk', 'bus'),
        video_models=values('devices/video', 'modelType'),
        graphics=values('devices/graphics', 'type'),
        has_uefi='efi' in values('os', 'firmware'),
        has_secure_boot='efi' in values('os', 'firmware') and 'yes' in values('os/loader', 'secure'),
    )


def _cell(cell: ElementTree.Element) -> HostCell:
    cpus = [cpu for cpu in cell.findall('./cpus/cpu') if cpu.get('siblings')]
    groups = {frozenset(_cpu_set(cpu.get('siblings', ''))) for cpu in cpus}
    sockets = {int(cpu.get('socket_id', '0')) for cpu in cpus}
    memory_kib = int(cell.findtext('memory') or 0)
    return HostCell(
        id=int(cell.get('id', '0')),
        cpus=frozenset(int(cpu.get('id', '0')) for cpu in cell.findall('./cpus/cpu')),
        memory_mb=memory_kib // 1024,
        siblings=tuple(sorted((group for group in groups if len(group) > 1), key=sorted)),
        socket=sockets.pop() if len(sockets) == 1 else None,
        pages={int(page.get('size', '0')): int(page.text or 0) for page in cell.findall('pages')},
    )


def _cpu_set(text: str) -> set[int]:
    """Return the set of CPUs of a text such as '0-2,5', which is {0, 1, 2, 5}."""
    found: set[int] = set()
    for part in text.split(','):
        first, _, last = part.partition('-')
        found.update(range(int(first), int(last or first) + 1))
    return found
