"""libvirt's capabilities XML as data.

    caps = parse(connection.capabilities_xml(), test=connection.is_test)
    caps.arch, caps.cells, caps.supported()
    guests = of_guests(connection, caps.arch, 'kvm', {'pc', 'q35'})
    guests.video_models
"""
from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.hardware.numa import HostCell
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.domain.guest import X86

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostCapabilities:
    """The host's CPU and the kinds of guests that it runs: (architecture, domain types)."""

    arch: str
    cpu_model: str
    cpu_vendor: str
    cpu_features: tuple[str, ...]
    cells: tuple[HostCell, ...]
    guests: tuple[tuple[str, tuple[str, ...]], ...]
    uuid: str | None = None

    def supported(self) -> list[list[str]]:
        """compute_nodes.supported_instances: [[architecture, kind of hypervisor, 'hvm']]."""
        return [[arch, kind, 'hvm'] for arch, kinds in self.guests for kind in kinds]


def parse(text: str, test: bool = False) -> HostCapabilities:
    """``test``: libvirt's test driver calls itself an i686 that runs 'test' guests; it plays an x86_64 for us."""
    root = ElementTree.fromstring(text)
    cpu = root.find('./host/cpu')
    cpu = cpu if cpu is not None else ElementTree.Element('cpu')
    guests = (('x86_64', ('kvm', 'qemu')),) if test else tuple(
        (guest.find('arch').get('name', ''),        # type: ignore[union-attr]
         tuple(domain.get('type', '') for domain in guest.findall('./arch/domain')))
        for guest in root.findall('guest') if guest.findtext('os_type') == 'hvm' and guest.find('arch') is not None)
    return HostCapabilities(
        arch='x86_64' if test else cpu.findtext('arch') or 'x86_64',
        cpu_model=cpu.findtext('model') or '', cpu_vendor=cpu.findtext('vendor') or '',
        cpu_features=tuple(sorted(feature.get('name', '') for feature in cpu.findall('feature'))),
        cells=tuple(_cell(cell) for cell in root.findall('./host/topology/cells/cell')),
        guests=guests, uuid=root.findtext('./host/uuid'))


@dataclass(frozen=True)
class GuestCapabilities:
    """What guests of the host's architecture can have on one of its machine types: buses of disks, graphics adapters,
    firmware."""

    buses: frozenset[str] = frozenset()
    video_models: frozenset[str] = frozenset()
    graphics: frozenset[str] = frozenset()
    has_uefi: bool = False
    has_secure_boot: bool = False

    def __or__(self, other: GuestCapabilities) -> GuestCapabilities:
        return GuestCapabilities(self.buses | other.buses, self.video_models | other.video_models,
                                 self.graphics | other.graphics,
                                 self.has_uefi or other.has_uefi, self.has_secure_boot or other.has_secure_boot)


def of_guests(connection: Connection, arch: str, virt_type: str, machines: set[str]) -> GuestCapabilities:
    """All that libvirt says of these machine types; what guests of the architecture have everywhere if it says nothing
    (its test driver does)."""
    found: GuestCapabilities | None = None
    for machine in sorted(machines):
        try:
            text = connection.domain_capabilities(arch, machine, virt_type)
        except libvirt.libvirtError as error:
            # Not each QEMU has each machine type.
            LOG.debug('libvirt says nothing of guests of type %s: %s', machine, error)
            continue
        one = parse_guest(text)
        found = one if found is None else found | one
    return found if found is not None else usual(arch)


def usual(arch: str) -> GuestCapabilities:
    """Guests of an architecture, by QEMU as it is packaged everywhere."""
    buses = {'scsi', 'usb', 'virtio'} | ({'ide', 'sata'} if arch in X86 else set())
    models = {'none', 'virtio'} | ({'bochs', 'cirrus', 'qxl', 'vga', 'vmvga'} if arch in X86 else set())
    return GuestCapabilities(frozenset(buses), frozenset(models), frozenset({'vnc', 'spice'}),
                             has_uefi=arch in ('x86_64', 'aarch64'), has_secure_boot=arch == 'x86_64')


def parse_guest(text: str) -> GuestCapabilities:
    """Domain capabilities of one machine type."""
    root = ElementTree.fromstring(text)

    def values(path: str, name: str) -> frozenset[str]:
        found = root.findall(f"{path}[@supported='yes']/enum[@name='{name}']/value")
        return frozenset(value.text or '' for value in found)
    return GuestCapabilities(
        buses=values('devices/disk', 'bus'), video_models=values('devices/video', 'modelType'),
        graphics=values('devices/graphics', 'type'),
        has_uefi='efi' in values('os', 'firmware'),
        has_secure_boot='efi' in values('os', 'firmware') and 'yes' in values('os/loader', 'secure'))


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
        pages={int(page.get('size', '0')): int(page.text or 0) for page in cell.findall('pages')})


def _cpu_set(text: str) -> set[int]:
    """'0-2,5' → {0, 1, 2, 5}"""
    found: set[int] = set()
    for part in text.split(','):
        first, _, last = part.partition('-')
        found.update(range(int(first), int(last or first) + 1))
    return found
