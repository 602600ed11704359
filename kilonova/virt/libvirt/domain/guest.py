"""Everything that a domain is made from, gathered before the first element is written.

Configurators read it and change only the domain: what they may ask of conf, instance and image is here.
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
# The default machine by architecture where neither image nor [libvirt]hw_machine_type say one.
MACHINES = {'x86_64': 'pc', 'i686': 'pc', 'aarch64': 'virt', 'armv7l': 'virt', 's390x': 's390-ccw-virtio'}
# Beginnings of the image properties that are read with their types.
_TYPED = ('hw_cpu_', 'hw_locked_memory', *board.PROPERTIES)


@dataclass(frozen=True)
class PoolSource:
    """How QEMU gets to a pool of Ceph: monitors as (address, port), and who it is there, None: anybody."""

    monitors: tuple[tuple[str, str], ...]
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class GuestDisk:
    """A file that the guest sees as a disk ('disk'), CD ('cdrom') or floppy disk ('floppy'). ``bus``, ``tag``: as its
    user asked for; ``boots``: the guest starts from it, whichever is the first. ``pool``: it is no file but an image of
    Ceph, ``path`` then is POOL/UUID_NAME."""

    path: str
    format: str
    device: str = 'disk'
    bus: str | None = None
    tag: str | None = None
    boots: bool = False
    pool: PoolSource | None = None

    @property
    def name(self) -> str:
        """What it is to its server: 'disk', 'disk.swap' …"""
        name = os.path.basename(self.path)
        return name if self.pool is None else name.partition('_')[2]


@dataclass(frozen=True)
class GuestVolume:
    """A volume that is connected to this host; ``path``: there, None where QEMU itself finds it."""

    volume: AttachedVolume
    path: str | None = None


@dataclass(frozen=True)
class Spice:
    """SPICE servers: ``listen`` an address, ``options`` the text of [spice]…_compression and streaming_mode by
    libvirt's element names."""

    listen: str
    agent: bool = True
    secure: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Consoles:
    """Addresses of the host at which the consoles of guests listen, None: guests have no such console. ``pointer``:
    usbtablet, ps2mouse or None."""

    vnc: str | None = None
    spice: Spice | None = None
    serial: str | None = None
    pointer: str | None = None

    @property
    def has_screen(self) -> bool:
        return self.vnc is not None or self.spice is not None


@dataclass(frozen=True)
class DeviceModels:
    """Models of sound cards, IOMMUs and USB controllers. libvirt doesn't say which there are: they
    follow from versions. None: not known."""

    sound: frozenset[str] = frozenset()
    iommu: frozenset[str] = frozenset()
    usb: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Settings:
    """[libvirt] as the configurators need it; each option is read once, when the driver starts."""

    virt_type: str = 'kvm'
    domain_type: str = 'kvm'
    arch: str = 'x86_64'
    cpu_mode: str | None = None
    # Of cpu_mode custom: {model: its features}, the preferred first.
    cpu_models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cpu_flags: tuple[tuple[str, str], ...] = ()
    machines: dict[str, str] = field(default_factory=dict)
    pcie_ports: int = 0
    memory_stats_period: int = 10
    rng_source: str | None = '/dev/urandom'
    serial_number: str | None = None
    disk_cache: str | None = None
    disk_discard: str | None = None
    # Cache modes of volumes that are a 'file', 'block' device or 'network' disk, where they are said; who guests are to
    # Ceph where a connection doesn't say.
    volume_caches: Mapping[str, str] = field(default_factory=dict)
    rbd_user: str | None = None
    rbd_secret_uuid: str | None = None
    version: str = ''
    # CPUs that guests without dedicated ones are kept on; empty: the host's choice.
    shared_cpus: frozenset[int] = frozenset()
    # {NUMA cell of the host: its shared CPUs}, and the smallest page in KiB.
    cells: Mapping[int, frozenset[int]] = field(default_factory=dict)
    small_page: int = 4
    # What libvirt says that guests of this host can have; no models: it doesn't say.
    video_models: frozenset[str] = frozenset()
    models: DeviceModels = field(default_factory=DeviceModels)
    # How the width of guests' addresses can be chosen.
    address_spaces: frozenset[str] = frozenset()
    # Of vCPUs that have one, as SCHED_FIFO counts.
    realtime_priority: int = 1
    has_uefi: bool = True
    has_secure_boot: bool = True
    # {machine type: most vCPUs, None if libvirt doesn't say}; empty: not known.
    machine_types: Mapping[str, int | None] = field(default_factory=dict)
    # Version of the host's control groups, 1 or 2; None: not known.
    control_groups: int | None = None
    consoles: Consoles = field(default_factory=Consoles)

    @property
    def guest_cpu_mode(self) -> str:
        """[libvirt]cpu_mode, or what is usual for the architecture."""
        return self.cpu_mode or ('host-passthrough' if self.arch == 'aarch64' else 'host-model')

    @property
    def is_qemu(self) -> bool:
        """Whether guests are QEMU's (libvirt's test driver plays one)."""
        return self.virt_type in ('kvm', 'qemu')


@dataclass(frozen=True)
class GuestSpec:
    """One guest: the server, its flavor and image, what it is given on this host."""

    instance: objects.Instance
    name: str
    settings: Settings
    image_meta: ImageMeta = field(default_factory=dict)
    disks: tuple[GuestDisk, ...] = ()
    volumes: tuple[GuestVolume, ...] = ()
    hostdevs: tuple[HostDevice, ...] = ()
    # What the server holds for its ports, by address, and what the host has of those that guests don't have as such.
    functions: Mapping[str, PciFunction] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    console_log: str | None = None
    # TCP ports of the host for the serial ports, where those are to be written to.
    serial_tcp: tuple[int, ...] = ()
    # Files of the host to start from; the second without the first means nothing.
    kernel: str | None = None
    ramdisk: str | None = None
    # What the kernel is given in place of what the image says; '': nothing but the usual.
    command_line: str | None = None

    @property
    def flavor(self) -> objects.Flavor:
        return self.instance.flavor

    @property
    def extra_specs(self) -> dict[str, str]:
        return self.flavor.extra_specs or {}

    def image_property(self, name: str, default: str | None = None) -> str | None:
        """An image property as text."""
        value = (self.image_meta.get('properties') or {}).get(name)
        return default if value in (None, '') else str(value)

    def asks(self, extra_spec: str, image_property: str) -> bool:
        """Whether flavor or image switch something on."""
        for value in (self.extra_specs.get(extra_spec), self.image_property(image_property)):
            if strutils.bool_from_string(value):
                return True
        return False

    @property
    def has_tablet(self) -> bool:
        """Whether the pointer tells where it is, not how it moved: clients show one pointer then, not two."""
        consoles = self.settings.consoles
        if not self.settings.is_qemu or not consoles.has_screen or (
                consoles.vnc is None and consoles.spice is not None and consoles.spice.agent):
            return False
        return self.image_property('hw_pointer_model', consoles.pointer) == 'usbtablet'

    @property
    def input_bus(self) -> str:
        """usb or virtio."""
        return self.image_property('hw_input_bus') or 'usb'

    @property
    def topology(self) -> objects.InstanceNUMATopology | None:
        """The guest's place on the host's NUMA cells."""
        return getattr(self.instance, 'numa_topology', None)

    @functools.cached_property
    def properties(self) -> ImageMetaProps:
        """What the image says of CPUs, memory and the board, with types."""
        return ImageMetaProps.from_dict({name: value for name, value in (
            self.image_meta.get('properties') or {}).items() if name.startswith(_TYPED)})

    @property
    def required_traits(self) -> set[str]:
        """Traits that flavor and image require, in whatever group."""
        said = {**(self.image_meta.get('properties') or {}), **self.extra_specs}
        return {name.partition(':')[2] for name, value in said.items()
                if name.startswith('trait') and ':' in name and value == 'required'}

    @functools.cached_property
    def realtime(self) -> frozenset[int]:
        """The vCPUs that have realtime priority."""
        return constraints.realtime(self.extra_specs, self.flavor.vcpus, self.properties)

    @functools.cached_property
    def tuning(self) -> board.Tuning:
        """What flavor and image say of the board."""
        return board.of(self.extra_specs, self.properties)

    @property
    def machine(self) -> str | None:
        """The machine type: the image's, the host's, the architecture's."""
        arch = self.settings.arch
        return self.image_property('hw_machine_type') or self.settings.machines.get(arch) or MACHINES.get(arch)

    @property
    def iommu(self) -> str | None:
        """intel, smmuv3, virtio or None; auto is the board's own."""
        asked = self.tuning.iommu
        if asked != board.AUTO:
            return asked
        return board.INTEL if self.settings.arch in X86 else board.SMMUV3

    @property
    def is_pcie(self) -> bool:
        """Whether its bus is PCI Express."""
        machine = self.machine or ''
        return 'q35' in machine or machine.startswith('virt')

    @property
    def is_windows(self) -> bool:
        return self.image_property('os_type') == 'windows' or getattr(self.instance, 'os_type', None) == 'windows'
