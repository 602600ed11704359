"""Typed elements of a domain's XML: dataclasses that know how they are written, and nothing else.

    node('source', file='/x/disk')                       # <source file="/x/disk"/>
    node('vcpu', '8', cpuset=None)                       # <vcpu>8</vcpu>
    node('os', node('type', 'hvm', arch='x86_64'))       # nested

Attributes that are None are left out, so are children that are None.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol
from xml.etree import ElementTree

Element = ElementTree.Element


def node(tag: str, *children: Element | str | None, **attributes: str | int | None) -> Element:
    """An element; a str child is its text. ``type_`` and the like lose the underscore."""
    element = Element(tag, {name.rstrip('_'): str(value) for name, value in attributes.items() if value is not None})
    for child in children:
        if isinstance(child, str):
            element.text = child
        elif child is not None:
            element.append(child)
    return element


def _on(switched: bool) -> str | None:
    return 'on' if switched else None


def to_text(element: Element) -> str:
    """Indented XML."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding='unicode')


# -- devices ----------------------------------------------------------------------------------------------------------

class Device(Protocol):
    """Anything below <devices>."""

    def element(self) -> Element:
        """Its XML."""


@dataclass
class FileDisk:
    """A disk, or a CD, that is a file of the host. ``limits``: elements of <iotune>; ``boots``: the guest starts from
    it, and <os> names nothing to start from; ``packed``: virtio's packed rings."""

    path: str
    format: str
    target: str
    bus: str
    device: str = 'disk'
    cache: str | None = None
    io: str | None = None
    discard: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    boots: bool = False
    packed: bool = False

    def element(self) -> Element:
        return node('disk',
                    node('driver', name='qemu', type=self.format, cache=self.cache, io=self.io, discard=self.discard,
                         packed=_on(self.packed)),
                    node('source', file=self.path),
                    node('target', dev=self.target, bus=self.bus),
                    node('iotune', *(node(name, str(value)) for name, value in self.limits.items()))
                    if self.limits else None,
                    node('readonly') if self.device == 'cdrom' else None,
                    node('boot', order='1') if self.boots else None,
                    type='file', device=self.device)


@dataclass
class PoolDisk(FileDisk):
    """The same that is no file but what ``source`` and ``auth`` say."""

    source: Element | None = None
    auth: Element | None = None

    def element(self) -> Element:
        made = super().element()
        made.set('type', 'network')
        place = made.find('source')
        assert place is not None
        at = list(made).index(place)
        made[at:at + 1] = [each for each in (self.auth, self.source) if each is not None]
        return made


@dataclass
class VolumeDisk:
    """A disk that is a volume, known by its ``id``: ``type`` file, block or network, with <source> and <auth> as that
    needs them. ``shareable``: other guests have it, too; ``boots``: as ``FileDisk`` has it."""

    id: str
    type: str
    source: Element
    auth: Element | None
    format: str
    target: str
    bus: str
    device: str = 'disk'
    cache: str | None = None
    io: str | None = None
    discard: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    readonly: bool = False
    shareable: bool = False
    boots: bool = False
    packed: bool = False

    def element(self) -> Element:
        return node('disk',
                    node('driver', name='qemu', type=self.format, cache=self.cache, io=self.io, discard=self.discard,
                         packed=_on(self.packed)),
                    self.auth,
                    self.source,
                    node('target', dev=self.target, bus=self.bus),
                    node('iotune', *(node(name, str(value)) for name, value in self.limits.items()))
                    if self.limits else None,
                    node('readonly') if self.readonly else None,
                    node('shareable') if self.shareable else None,
                    node('boot', order='1') if self.boots else None,
                    node('serial', self.id),
                    node('alias', name=f'ua-{self.id}'),
                    type=self.type, device=self.device)


@dataclass
class Interface:
    """A network card on a bridge of the host (None: on none, an agent there sees to the device): ``device`` there, and
    of Open vSwitch's bridges the port that it is. ``offloads``: host and guest may leave checksums and the cutting of
    large packets to each other."""

    mac: str
    bridge: str | None
    device: str
    model: str
    ovs_port: str | None = None
    mtu: int | None = None
    queues: int | None = None
    packed: bool = False
    offloads: bool = True

    def element(self) -> Element:
        return node('interface',
                    node('mac', address=self.mac),
                    node('source', bridge=self.bridge) if self.bridge is not None else None,
                    node('virtualport', node('parameters', interfaceid=self.ovs_port), type='openvswitch')
                    if self.ovs_port else None,
                    node('target', dev=self.device),
                    node('model', type=self.model),
                    self._driver(),
                    node('mtu', size=self.mtu) if self.mtu else None,
                    type='bridge' if self.bridge is not None else 'ethernet')

    def _driver(self) -> Element | None:
        off = dict.fromkeys(('csum', 'tso4', 'tso6', 'ecn', 'ufo'), 'off')
        parts = [] if self.offloads else [node('host', gso='off', **off), node('guest', **off)]
        made = node('driver', *parts, queues=self.queues, packed=_on(self.packed))
        return made if parts or made.attrib else None


@dataclass
class SocketInterface:
    """A virtio card whose other end is a switch in user space, which speaks with QEMU by a socket (``path``) and reads
    and writes the guest's memory. ``mode``: QEMU's part, 'server' makes the socket, 'client' finds it. libvirt would
    look for a device of the host to give it an MTU."""

    mac: str
    path: str
    mode: str
    queues: int | None = None
    packed: bool = False

    def element(self) -> Element:
        driver = node('driver', queues=self.queues, packed=_on(self.packed))
        return node('interface', node('mac', address=self.mac),
                    node('source', type='unix', path=self.path, mode=self.mode), node('model', type='virtio'),
                    driver if driver.attrib else None, type='vhostuser')


@dataclass
class FunctionInterface:
    """A network card that is a function of a PCI device of the host, given to the guest whole. The host sets its MAC
    address, and puts it into a VLAN, or its switch into that of a port profile."""

    mac: str
    address: str
    vlan: int | None = None
    managed: bool = True
    profile: str | None = None

    def element(self) -> Element:
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node('interface', node('mac', address=self.mac),
                    node('source', node('address', type='pci', domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}',
                                        function=f'0x{function}')),
                    _profile(self.profile), _vlan(self.vlan), type='hostdev', managed='yes' if self.managed else 'no')


@dataclass
class MacvtapInterface:
    """A network card that is a macvtap device on ``device``, an interface of the host, which in ``mode`` passthrough it
    has for itself. libvirt names it."""

    mac: str
    device: str
    mode: str
    model: str
    vlan: int | None = None
    profile: str | None = None

    def element(self) -> Element:
        return node('interface', node('mac', address=self.mac), node('source', dev=self.device, mode=self.mode),
                    _profile(self.profile), _vlan(self.vlan), node('model', type=self.model), type='direct')


def _profile(profile: str | None) -> Element | None:
    return node('virtualport', node('parameters', profileid=profile), type='802.1Qbh') if profile is not None else None


@dataclass
class VdpaInterface:
    """A virtio card whose rings a function of the host serves: QEMU drives it by ``path``, of vhost-vdpa. libvirt lets
    QEMU lock as much memory as that needs, as it does for devices that are given whole."""

    mac: str
    path: str

    def element(self) -> Element:
        return node('interface', node('mac', address=self.mac), node('source', dev=self.path),
                    node('model', type='virtio'), type='vdpa')


def _vlan(vlan: int | None) -> Element | None:
    return node('vlan', node('tag', id=vlan)) if vlan is not None else None


@dataclass
class Controller:
    """A bus controller, by kind and model. ``start``: the first port that it serves for the controller of that index
    whose companion it is."""

    type: str
    model: str | None = None
    index: int | None = None
    packed: bool = False
    start: int | None = None

    def element(self) -> Element:
        return node('controller', node('master', startport=self.start) if self.start is not None else None,
                    node('driver', packed='on') if self.packed else None, type=self.type, index=self.index,
                    model=self.model)


@dataclass
class PciHostDevice:
    """A PCI function of the host, given to the guest: nothing but its address."""

    address: str
    managed: bool = True

    def element(self) -> Element:
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node('hostdev',
                    node('source', node('address', domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}',
                                        function=f'0x{function}')),
                    mode='subsystem', type='pci', managed='yes' if self.managed else 'no')


@dataclass
class MediatedHostDevice:
    """A mediated device of the host, given to the guest as a PCI device of its own: nothing but its uuid."""

    uuid: str

    def element(self) -> Element:
        return node('hostdev', node('source', node('address', uuid=self.uuid)), mode='subsystem', type='mdev',
                    managed='no', model='vfio-pci')


@dataclass
class Serial:
    """A serial port; its output goes to the file ``log`` of the host besides, if there is one."""

    log: str | None
    port: int = 0
    # Where its other end listens: an address and a TCP port of the host.
    tcp: tuple[str, int] | None = None

    def element(self) -> Element:
        source = node('source', mode='bind', host=self.tcp[0], service=self.tcp[1]) if self.tcp else None
        return node('serial', source, node('log', file=self.log, append='off') if self.log else None,
                    node('target', port=self.port), type='tcp' if self.tcp else 'pty')


@dataclass
class Graphics:
    """A server of the guest's screen: ``kind`` vnc or spice, at an address of the host and a port that libvirt
    chooses. ``settings``: SPICE's, element name → value."""

    kind: str
    listen: str
    secure: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    # The attribute that holds the value of each setting.
    ATTRIBUTES: ClassVar[dict[str, str]] = {'streaming': 'mode'}

    def element(self) -> Element:
        children = [node(name, **{self.ATTRIBUTES.get(name, 'compression'): value}) for name, value in self.settings]
        return node('graphics', node('listen', type='address', address=self.listen), *children, type=self.kind,
                    autoport='yes', defaultMode='secure' if self.secure else None)


@dataclass
class Input:
    """A tablet or keyboard on a bus."""

    kind: str
    bus: str

    def element(self) -> Element:
        return node('input', type=self.kind, bus=self.bus)


@dataclass
class SpiceChannel:
    """The port by which SPICE's agent is reached."""

    def element(self) -> Element:
        return node('channel', node('target', type='virtio', name='com.redhat.spice.0'), type='spicevmc')


@dataclass
class AgentChannel:
    """The port by which QEMU's guest agent is reached; libvirt makes the socket."""

    def element(self) -> Element:
        return node('channel', node('target', type='virtio', name='org.qemu.guest_agent.0'), type='unix')


@dataclass
class Video:
    """A graphics adapter; ``vram`` in KiB."""

    model: str
    vram: int | None = None

    def element(self) -> Element:
        return node('video', node('model', type=self.model, vram=self.vram))


@dataclass
class Sound:
    """A sound card."""

    model: str

    def element(self) -> Element:
        return node('sound', model=self.model)


@dataclass
class Iommu:
    """What stands between the guest's devices and its memory. ``driver``: attributes of <driver>."""

    model: str
    driver: dict[str, str] = field(default_factory=dict)

    def element(self) -> Element:
        return node('iommu', node('driver', **self.driver) if self.driver else None, model=self.model)


@dataclass
class Watchdog:
    """A watchdog, and what is done with a guest that no longer feeds it."""

    model: str
    action: str

    def element(self) -> Element:
        return node('watchdog', model=self.model, action=self.action)


@dataclass
class Rng:
    """A source of random numbers; ``rate`` is (bytes, period in milliseconds)."""

    source: str
    rate: tuple[int, int | None] | None = None

    def element(self) -> Element:
        limit = node('rate', period=self.rate[1], bytes=self.rate[0]) if self.rate else None
        return node('rng', limit, node('backend', self.source, model='random'), model='virtio')


@dataclass
class MemoryBalloon:
    """The balloon; ``period``: seconds between its statistics, None: no balloon."""

    period: int | None

    def element(self) -> Element:
        if self.period is None:
            return node('memballoon', model='none')
        return node('memballoon', node('stats', period=self.period), model='virtio', autodeflate='on',
                    freePageReporting='on')


# -- CPUs and memory --------------------------------------------------------------------------------------------------

@dataclass
class MemoryBacking:
    """``pages``: {guest cell: size of its pages in KiB}; ``locked``: memory that the host must not swap out;
    ``unshared``: nor merge with what is equal in other guests; ``mapped``: other processes may map it, which small
    pages must be a file for."""

    pages: dict[int, int] = field(default_factory=dict)
    locked: bool = False
    unshared: bool = False
    mapped: bool = False

    def element(self) -> Element:
        pages = [node('page', size=size, unit='KiB', nodeset=str(cell)) for cell, size in sorted(self.pages.items())]
        return node('memoryBacking', node('hugepages', *pages) if pages else None,
                    node('nosharepages') if self.unshared else None,
                    node('locked') if self.locked else None,
                    node('source', type='memfd') if self.mapped and not pages else None,
                    node('access', mode='shared') if self.mapped else None)


@dataclass
class NumaTune:
    """``nodes``: {guest cell: host cell that its memory must come from}."""

    nodes: dict[int, int]

    def element(self) -> Element:
        hosts = ','.join(str(host) for host in sorted(set(self.nodes.values())))
        return node('numatune', node('memory', mode='strict', nodeset=hosts), *(
            node('memnode', cellid=cell, mode='strict', nodeset=host) for cell, host in sorted(self.nodes.items())))


@dataclass
class CpuTune:
    """``pins``: {vCPU: host CPUs that it may run on}; ``emulator``: those of the emulator's threads. Sets as text.
    ``limits``: shares, period and quota; ``realtime``: vCPUs that run before all else, by priority ``priority``."""

    pins: dict[int, str] = field(default_factory=dict)
    emulator: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    realtime: str | None = None
    priority: int = 1

    def element(self) -> Element:
        return node('cputune', *(node(name, str(value)) for name, value in self.limits.items()),
                    *(node('vcpupin', vcpu=vcpu, cpuset=cpus) for vcpu, cpus in sorted(self.pins.items())),
                    node('emulatorpin', cpuset=self.emulator) if self.emulator else None,
                    node('vcpusched', vcpus=self.realtime, scheduler='fifo', priority=self.priority)
                    if self.realtime else None)


@dataclass
class GuestCell:
    """A NUMA cell as the guest sees it. ``cpus`` as text; ``shared``: memory that other processes may map."""

    id: int
    cpus: str
    memory_kib: int
    shared: bool = False

    def element(self) -> Element:
        return node('cell', id=self.id, cpus=self.cpus, memory=self.memory_kib, unit='KiB',
                    memAccess='shared' if self.shared else None)


# -- the domain -------------------------------------------------------------------------------------------------------

@dataclass
class Timer:
    """A clock source of the guest."""

    name: str
    tickpolicy: str | None = None
    present: str | None = None

    def element(self) -> Element:
        return node('timer', name=self.name, tickpolicy=self.tickpolicy, present=self.present)


@dataclass
class Clock:
    """The guest's clock."""

    offset: str = 'utc'
    timers: list[Timer] = field(default_factory=list)

    def element(self) -> Element:
        return node('clock', *(timer.element() for timer in self.timers), offset=self.offset)


@dataclass
class Cpu:
    """The CPU that the guest sees. ``features``: (name, policy); ``cells``: its NUMA cells; ``addresses``: (mode, bits)
    of its physical addresses."""

    mode: str | None = None
    model: str | None = None
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    features: list[tuple[str, str]] = field(default_factory=list)
    cells: list[GuestCell] = field(default_factory=list)
    addresses: tuple[str, int | None] | None = None

    def element(self) -> Element:
        return node('cpu',
                    node('model', self.model) if self.model else None,
                    node('maxphysaddr', mode=self.addresses[0], bits=self.addresses[1]) if self.addresses else None,
                    node('topology', sockets=self.sockets, cores=self.cores, threads=self.threads),
                    *(node('feature', name=name, policy=policy) for name, policy in self.features),
                    node('numa', *(cell.element() for cell in self.cells)) if self.cells else None,
                    mode=self.mode, match='exact' if self.mode in ('host-model', 'custom') else None)


@dataclass
class Kernel:
    """What a guest starts instead of its disk's boot loader: files of the host."""

    path: str
    ramdisk: str | None
    command_line: str


@dataclass
class Os:
    """How the guest starts. ``firmware``: 'efi', which libvirt finds on the host; ``secure_boot`` counts with it."""

    arch: str
    machine: str | None = None
    boot: list[str] = field(default_factory=list)
    bootmenu: bool = False
    smbios: bool = False
    firmware: str | None = None
    secure_boot: bool = False
    kernel: Kernel | None = None

    def element(self) -> Element:
        kernel = self.kernel
        return node('os', node('type', 'hvm', arch=self.arch, machine=self.machine),
                    *(self._firmware() if self.firmware else ()),
                    *((node('kernel', kernel.path), node('initrd', kernel.ramdisk) if kernel.ramdisk else None,
                       node('cmdline', kernel.command_line)) if kernel else ()),
                    *(node('boot', dev=device) for device in self.boot),
                    node('bootmenu', enable='yes') if self.bootmenu else None,
                    node('smbios', mode='sysinfo') if self.smbios else None,
                    firmware=self.firmware)

    def _firmware(self) -> tuple[Element, ...]:
        if not self.secure_boot:
            # Said, as libvirt would take a firmware with secure boot where it finds that first.
            return (node('firmware', node('feature', enabled='no', name='secure-boot')),)
        return (node('firmware', node('feature', enabled='yes', name='secure-boot'),
                     node('feature', enabled='yes', name='enrolled-keys')), node('loader', secure='yes'))


@dataclass
class Domain:
    """A guest's definition. Everything that nobody asked for stays out of the XML."""

    type: str
    uuid: str
    name: str
    memory_kib: int = 0
    memory_backing: MemoryBacking | None = None
    numatune: NumaTune | None = None
    vcpus: int = 1
    cpuset: str | None = None
    cputune: CpuTune | None = None
    metadata: Element | None = None
    sysinfo: dict[str, str] = field(default_factory=dict)
    os: Os | None = None
    features: list[Element] = field(default_factory=list)
    clock: Clock | None = None
    cpu: Cpu | None = None
    devices: list[Device] = field(default_factory=list)

    def element(self) -> Element:
        return node(
            'domain',
            node('uuid', self.uuid), node('name', self.name), node('memory', str(self.memory_kib)),
            self.memory_backing.element() if self.memory_backing else None,
            self.numatune.element() if self.numatune else None,
            node('vcpu', str(self.vcpus), cpuset=self.cpuset),
            node('metadata', self.metadata) if self.metadata is not None else None,
            node('sysinfo', node('system', *(node('entry', value, name=name)
                                             for name, value in self.sysinfo.items())),
                 type='smbios') if self.sysinfo else None,
            self.os.element() if self.os else None,
            node('features', *self.features) if self.features else None,
            self.cputune.element() if self.cputune else None,
            self.clock.element() if self.clock else None,
            self.cpu.element() if self.cpu else None,
            node('devices', *(device.element() for device in self.devices)),
            type=self.type)

    def to_xml(self) -> str:
        return to_text(self.element())
