"""Classes with all values from which a guest's domain XML is made: a GuestSpec and its parts.

A GuestSpec has all values of the configuration, the server and the image. It is complete before the first element of
the domain is written. The classes that write the domain (configurators) read only the GuestSpec.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from oslo_utils import strutils

from kilonova import objects
from kilonova.objects.image_meta import ImageMetaProps
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.hardware import constraints
from kilonova.virt.hardware import tuning as board
from kilonova.virt.libvirt.devices.hostdevs import HostDevice
from kilonova.virt.libvirt.devices.pci import PciFunction
from kilonova.virt.parts.disks import ImageMeta

X86 = ('x86_64', 'i686')
# The default machine type of each architecture, used if neither the image nor [libvirt]hw_machine_type set one.
MACHINES = {'x86_64': 'pc', 'i686': 'pc', 'aarch64': 'virt', 'armv7l': 'virt', 's390x': 's390-ccw-virtio'}
# ``GuestSpec.properties`` reads only the image properties whose names begin with one of these texts.
_TYPED = ('hw_cpu_', 'hw_locked_memory', *board.PROPERTIES)


@dataclass(frozen=True)
class PoolSource:
    """The settings by which QEMU reaches a Ceph pool: monitors as pairs of address and port, user, and libvirt secret.

    ``user`` and ``secret`` are None if the cluster requires no authentication.
    """

    monitors: tuple[tuple[str, str], ...]
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class GuestDisk:
    """A file or a Ceph image that the guest sees as a disk ('disk'), a CD ('cdrom') or a floppy disk ('floppy').

    Attributes:
        path: Path of the file, or POOL/UUID_NAME of an image in Ceph.
        bus: The bus that the user requested.
        tag: The tag that the user gave.
        boots: True if the guest boots from this disk, even if it is not the first disk.
        pool: The Ceph pool of the image. None for a file.
    """

    path: str
    format: str
    device: str = 'disk'
    bus: str | None = None
    tag: str | None = None
    boots: bool = False
    pool: PoolSource | None = None

    @property
    def name(self) -> str:
        """The server's name for the disk: 'disk', 'disk.swap' and so on."""
        name = os.path.basename(self.path)
        return name if self.pool is None else name.partition('_')[2]


@dataclass(frozen=True)
class GuestVolume:
    """A volume that is connected to this host, with its path. ``path`` is None if QEMU itself connects to it."""

    volume: AttachedVolume
    path: str | None = None


@dataclass(frozen=True)
class Spice:
    """Settings of SPICE servers.

    ``listen`` is an address. ``options`` is a dict from libvirt's element names to the values of [spice]…_compression
    and [spice]streaming_mode.
    """

    listen: str
    agent: bool = True
    secure: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Consoles:
    """Addresses of the host at which the guests' consoles listen. If an address is None, guests lack this console.

    ``pointer`` is the type of the guests' pointer device: usbtablet, ps2mouse or None.
    """

    vnc: str | None = None
    spice: Spice | None = None
    serial: str | None = None
    pointer: str | None = None

    @property
    def has_screen(self) -> bool:
        """True if guests have a screen, by VNC or SPICE."""
        return self.vnc is not None or self.spice is not None


@dataclass(frozen=True)
class DeviceModels:
    """The models of sound cards, IOMMUs and USB controllers that the host supports.

    libvirt does not report these models, so they are derived from the versions of libvirt and QEMU. An empty set means
    that the models are not known.
    """

    sound: frozenset[str] = frozenset()
    iommu: frozenset[str] = frozenset()
    usb: frozenset[str] = frozenset()


@dataclass(frozen=True)
class GuestSettings:
    """The [libvirt] options and host properties from which the domain XML of guests is made.

    Each option is read once, when the driver starts.
    """

    virt_type: str = 'kvm'
    domain_type: str = 'kvm'
    arch: str = 'x86_64'
    cpu_mode: str | None = None
    # Only for cpu_mode custom: a dict from CPU model to its features. The first models are preferred.
    cpu_models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cpu_flags: tuple[tuple[str, str], ...] = ()
    machines: dict[str, str] = field(default_factory=dict)
    pcie_ports: int = 0
    memory_stats_period: int = 10
    rng_source: str | None = '/dev/urandom'
    serial_number: str | None = None
    disk_cache: str | None = None
    disk_discard: str | None = None
    # A dict from type of a volume's disk ('file', 'block' or 'network') to the cache mode.
    volume_caches: Mapping[str, str] = field(default_factory=dict)
    # Ceph user and libvirt secret for volumes whose connection does not name them.
    rbd_user: str | None = None
    rbd_secret_uuid: str | None = None
    version: str = ''
    # The host CPUs on which guests without dedicated CPUs run. Empty means any CPU of the host.
    shared_cpus: frozenset[int] = frozenset()
    # A dict from the number of each NUMA cell of the host to the cell's shared CPUs.
    cells: Mapping[int, frozenset[int]] = field(default_factory=dict)
    # The host's smallest page size in KiB.
    small_page: int = 4
    # The video models that this host supports. Empty if they are not known; then every model of QEMU is accepted.
    video_models: frozenset[str] = frozenset()
    models: DeviceModels = field(default_factory=DeviceModels)
    # The values of hw:maxphysaddr_mode (width of guests' physical addresses) that this host supports.
    address_spaces: frozenset[str] = frozenset()
    # The SCHED_FIFO priority of realtime vCPUs.
    realtime_priority: int = 1
    has_uefi: bool = True
    has_secure_boot: bool = True
    # A dict from machine type to its maximum number of vCPUs, or to None if the maximum is not known.
    # The dict of machine types is empty if the host's machine types are not known.
    machine_types: Mapping[str, int | None] = field(default_factory=dict)
    # Version of the host's control groups: 1, 2, or None if it is not known.
    control_groups: int | None = None
    consoles: Consoles = field(default_factory=Consoles)

    @property
    def guest_cpu_mode(self) -> str:
        """The value of [libvirt]cpu_mode, or the default of the architecture."""
        return self.cpu_mode or ('host-passthrough' if self.arch == 'aarch64' else 'host-model')

    @property
    def is_qemu(self) -> bool:
        """True if QEMU runs the guests, False if libvirt's test driver only simulates them."""
        return self.virt_type in ('kvm', 'qemu')


@dataclass(frozen=True)
class GuestSpec:
    """One guest: the server, its flavor and image, and the disks, volumes and devices that it has on this host."""

    instance: objects.Instance
    name: str
    settings: GuestSettings
    image_meta: ImageMeta = field(default_factory=dict)
    disks: tuple[GuestDisk, ...] = ()
    volumes: tuple[GuestVolume, ...] = ()
    hostdevs: tuple[HostDevice, ...] = ()
    # The PCI functions allocated to the server for its ports, as a dict from PCI address to function.
    functions: Mapping[str, PciFunction] = field(default_factory=dict)
    # For macvtap and vDPA ports: a dict from PCI address to the host's interface or device file that the guest uses.
    ends: Mapping[str, str] = field(default_factory=dict)
    console_log: str | None = None
    # TCP ports of the host for the guest's serial ports. Empty if clients cannot connect to the serial ports.
    serial_tcp: tuple[int, ...] = ()
    # Paths of the kernel and the ramdisk on the host. A ramdisk without a kernel is ignored.
    kernel: str | None = None
    ramdisk: str | None = None
    # Only in a rescue: the rescue image's kernel command line, or ''. If None, the server's own image sets the line.
    command_line: str | None = None

    @property
    def flavor(self) -> objects.Flavor:
        """The server's flavor."""
        return self.instance.flavor

    @property
    def extra_specs(self) -> dict[str, str]:
        """The flavor's extra specs."""
        return self.flavor.extra_specs or {}

    def image_property(self, name: str, default: str | None = None) -> str | None:
        """Return an image property as text, or ``default`` if it is not set."""
        value = (self.image_meta.get('properties') or {}).get(name)
        return default if value in (None, '') else str(value)

    def asks(self, extra_spec: str, image_property: str) -> bool:
        """Return True if the flavor's extra spec or the image property is true."""
        for value in (self.extra_specs.get(extra_spec), self.image_property(image_property)):
            if strutils.bool_from_string(value):
                return True
        return False

    @property
    def has_tablet(self) -> bool:
        """True if the guest's pointer device is a tablet, which reports absolute positions.

        A guest without a screen has no tablet. A guest with only a SPICE screen and SPICE's agent has none either,
        because the agent sets the position of the pointer.
        """
        consoles = self.settings.consoles
        if (
            not self.settings.is_qemu
            or not consoles.has_screen
            or (consoles.vnc is None and consoles.spice is not None and consoles.spice.agent)
        ):
            return False
        return self.image_property('hw_pointer_model', consoles.pointer) == 'usbtablet'

    @property
    def input_bus(self) -> str:
        """The bus of input devices, usb or virtio."""
        return self.image_property('hw_input_bus') or 'usb'

    @property
    def topology(self) -> objects.InstanceNUMATopology | None:
        """The guest's NUMA cells with their assignment to the host's cells, or None."""
        return getattr(self.instance, 'numa_topology', None)

    @functools.cached_property
    def properties(self) -> ImageMetaProps:
        """The image's properties for CPUs, memory and board, converted to their types."""
        return ImageMetaProps.from_dict(
            {
                name: value
                for name, value in (self.image_meta.get('properties') or {}).items()
                if name.startswith(_TYPED)
            }
        )

    @property
    def required_traits(self) -> set[str]:
        """The traits that flavor and image require, in any request group."""
        said = {**(self.image_meta.get('properties') or {}), **self.extra_specs}
        return {
            name.partition(':')[2]
            for name, value in said.items()
            if name.startswith('trait') and ':' in name and value == 'required'
        }

    @functools.cached_property
    def realtime(self) -> frozenset[int]:
        """The vCPUs that have realtime priority."""
        return constraints.realtime(self.extra_specs, self.flavor.vcpus, self.properties)

    @functools.cached_property
    def tuning(self) -> board.Tuning:
        """The settings of flavor and image for the guest's machine and its devices."""
        return board.of(self.extra_specs, self.properties)

    @property
    def machine(self) -> str | None:
        """The machine type: the image's, else the host's configured one, else the architecture's default."""
        arch = self.settings.arch
        return self.image_property('hw_machine_type') or self.settings.machines.get(arch) or MACHINES.get(arch)

    @property
    def iommu(self) -> str | None:
        """The model of the guest's IOMMU: intel, smmuv3, virtio, or None if the guest has no IOMMU.

        If flavor or image request ``auto``, this is the usual model of the guest's machine type.
        """
        asked = self.tuning.iommu
        if asked != board.AUTO:
            return asked
        return board.INTEL if self.settings.arch in X86 else board.SMMUV3

    @property
    def is_pcie(self) -> bool:
        """True if the guest's bus is PCI Express."""
        machine = self.machine or ''
        return 'q35' in machine or machine.startswith('virt')

    @property
    def is_windows(self) -> bool:
        """True if the image or the server says that the guest's system is Windows."""
        return self.image_property('os_type') == 'windows' or getattr(self.instance, 'os_type', None) == 'windows'
