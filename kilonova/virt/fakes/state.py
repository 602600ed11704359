"""State of a fake hypervisor (guests, disks, devices, volumes), and the errors that tests want its calls to raise."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from oslo_config import cfg

from kilonova import errors, objects
from kilonova.objects.vif import BEHIND, Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.pci.device import MDEV
from kilonova.pci.ports import requests_of_ports
from kilonova.states import PowerState
from kilonova.virt import driver
from kilonova.virt.hardware import tuning
from kilonova.virt.parts.disks import ImageSource
from kilonova.virt.parts.guests import ConsoleAddress, GuestFailed, NotOnThisHost, Plugged
from kilonova.virt.parts.host import Listener, MdevUnavailable
from kilonova.virt.parts.moves import Moves
from kilonova.virt.parts.volumes import VolumeCounters, VolumeUnsupported, why_locked


@dataclass
class FakeDomain:
    """The domain of one guest, as a hypervisor would store it."""

    uuid: str
    name: str
    state: int
    vcpus: int
    memory_mb: int
    hostdevs: list[str] = field(default_factory=list)
    # Ids of the guest's ports.
    vifs: list[str] = field(default_factory=list)
    # A dict from port id to PCI address, for the ports that are PCI functions.
    slots: dict[str, str] = field(default_factory=dict)
    # A dict from volume id to the size in GiB that the guest sees, in the order of the guest's volumes.
    volumes: dict[str, int] = field(default_factory=dict)
    # A dict from volume id to the counters of reads and writes since the guest was started. Tests set the counters.
    used: dict[str, VolumeCounters] = field(default_factory=dict)
    # A dict from volume id to the id of the volume to which it is being copied.
    copies: dict[str, str] = field(default_factory=dict)
    # A dict from volume id to the id of the volume that has replaced it.
    moved: dict[str, str] = field(default_factory=dict)
    # A dict from volume id to the volume's backing chain: a list of file names. The guest writes to the first file.
    files: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeDisk:
    """A server's directory: the sizes of its disks, and the content of its root disk."""

    root_gb: int
    ephemeral_gb: int
    content: str = ''
    move: str | None = None


class FakeMachine:
    """One machine with several fake hosts. ``disks`` is {host: {directory name: FakeDisk}}."""

    def __init__(self, machine_id: str = 'fake-machine') -> None:
        self.machine_id = machine_id
        # {host: {server uuid: domain}} of live-migrated guests for which the host has not called ``receive`` yet.
        self.arrived: dict[str, dict[str, FakeDomain]] = defaultdict(dict)
        self.disks: dict[str, dict[str, FakeDisk]] = defaultdict(dict)


_MACHINE = FakeMachine()


class FakeState:
    """State of a fake host and its guests, used by all parts of its driver.

    Tests may change the following attributes:

    - vcpus, memory_mb, local_gb and pci_devices describe the host. Tests set 'available' in ``mdev_types`` of a PCI
    device to the maximum number of mediated devices; the method ``mdev_types`` subtracts the existing devices.
    - ``mdevs`` is {uuid: (address of the parent, type)} of existing mediated devices.
    - ``unusable`` is {address: reason why the device cannot be given to guests}.
    - ``consoles`` is {server uuid: console output}, and ``screens`` is {(server uuid, protocol): console address}.
    - ``passwords`` is {server uuid: (user, password)} with the password that was set last.
    - ``connected`` is {volume id: uuids of the servers for which the volume is connected to this host}.
    """

    # The driver's part for moves, which the part for live migrations calls.
    moves: Moves

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageSource | None, machine: FakeMachine | None) -> None:
        self.conf, self.name, self.image_client = conf, conf.host, image_client
        self.machine = machine or _MACHINE
        self.directories = self.machine.disks[self.name]
        self.domains: dict[str, FakeDomain] = {}
        self.copies: dict[str, str] = {}
        self.rescued: set[str] = set()
        self.vcpus, self.memory_mb, self.local_gb = 64, 262144, 1024
        self.pci_devices: list[dict[str, Any]] = []
        self.unusable: dict[str, str] = {}
        self.mdevs: dict[str, tuple[str, str]] = {}
        self.consoles: dict[str, str] = {}
        self.passwords: dict[str, tuple[str, str]] = {}
        self.connected: dict[str, set[str]] = {}
        self.screens: dict[tuple[str, str], ConsoleAddress | None] = {}
        self.calls: list[tuple[str, str | None]] = []
        self.listener: Listener | None = None
        # The smallest and the largest value of quota:cpu_shares that this host accepts. Tests may change it.
        self.cpu_shares = tuning.CPU_LIMITS['shares']
        self._failures: dict[str, list[tuple[BaseException, bool]]] = defaultdict(list)
        self._lock = threading.RLock()

    def fail(self, method: str, error: BaseException, *, times: int = 1, after: bool = False) -> None:
        """Make the next ``times`` calls of ``method`` raise ``error``.

        The calls have no effect, or, with ``after``, have their usual effect before they raise the error.
        """
        self._failures[method].extend([(error, after)] * times)

    def write(self, uuid: str, content: str) -> None:
        """Write content to the guest's root disk."""
        self.directories[uuid] = replace(self.directories[uuid], content=content)

    def read(self, uuid: str) -> str:
        """Return the content of the guest's root disk."""
        return self.directories[uuid].content

    def make_mdev(self, uuid: str, parent: str, type_: str) -> None:
        """Create a mediated device, or do nothing if it exists already.

        The device exists until a test removes it from ``mdevs``. Raises MdevUnavailable if no device of this type is
        available, or if another device has the uuid.
        """
        reason, found = '', self.mdevs.get(uuid)
        if found == (parent, type_):
            return
        if found is not None:
            reason = f'it is of type {found[1]} on {found[0]}'
        elif not self.mdev_types(parent).get(type_, {}).get('available'):
            reason = 'none is available'
        if reason:
            raise MdevUnavailable(uuid=uuid, type=type_, parent=parent, reason=reason)
        self.mdevs[uuid] = parent, type_

    @contextlib.contextmanager
    def around(self, name: str, *args: object) -> Iterator[None]:
        """Record a call, run the ``with`` block under a lock, and raise the error that a test has set."""
        uuid = next((arg.uuid for arg in args if hasattr(arg, 'uuid')), None)
        with self._lock:
            self.calls.append((name, uuid))
            error, after = self._failures[name].pop(0) if self._failures[name] else (None, False)
        if error and not after:
            raise error
        with self._lock:
            yield
        if error:
            raise error

    def check(self, instance: objects.Instance) -> None:
        """Check the flavor's extra spec quota:cpu_shares.

        Raises NotOnThisHost if only another host may support its value, and errors.Invalid if no host supports it.
        """
        asked, (least, most) = tuning.of(instance.flavor.extra_specs or {}).cpu, self.cpu_shares
        if not least <= asked.get('shares', least) <= most:
            raise NotOnThisHost(
                name='quota:cpu_shares',
                value=asked['shares'],
                reason=f'this host accepts values from {least} to {most}',
            )

    def running(self, instance: objects.Instance) -> FakeDomain:
        """Return the domain of a running guest. Raises GuestFailed if it does not run."""
        domain = self.domains.get(instance.uuid)
        if domain is None or domain.state != PowerState.RUNNING:
            raise GuestFailed(act='measure', uuid=instance.uuid, reason='it does not run')
        return domain

    def disk(self, instance: objects.Instance) -> FakeDisk:
        """Return the server's disk. Raises errors.InstanceNotFound if it has none."""
        if instance.uuid not in self.directories:
            raise errors.InstanceNotFound(instance_id=instance.uuid)
        return self.directories[instance.uuid]

    def mdev_types(self, parent: str) -> dict[str, dict[str, Any]]:
        """Return the types of mediated devices that a PCI function supports: {type: {'available': …, 'api': …}}.

        'available' is the number of devices of the type that can still be created, and 'api' is for example 'vfio-pci'.
        """
        offered: dict[str, dict[str, Any]] = next(
            (device.get('mdev_types', {}) for device in self.pci_devices if device['address'] == parent), {}
        )
        made = Counter(self.mdevs.values())
        return {
            type_: {**what, 'available': max(0, what['available'] - made[parent, type_])}
            for type_, what in offered.items()
        }

    def prepare(self, pci_devices: Iterable[objects.PciDevice]) -> list[str]:
        """Create the mediated devices that are in ``pci_devices``. Return the addresses of all ``pci_devices``."""
        devices = list(pci_devices)
        for device in devices:
            if device.dev_type == MDEV:
                self.make_mdev(device.address, device.parent_addr, device.extra_info['mdev_type'])
        return [device.address for device in devices]

    def connect(self, instance: objects.Instance) -> dict[str, int]:
        """Connect a server's volumes to this host, and return {volume id: size in GiB}.

        Raises VolumeUnsupported, before any volume is connected, if a volume cannot be connected to this host.
        """
        volumes = [volume for volume in instance.volumes if volume.kind is not None]
        for volume in volumes:
            self.check_volume(volume)
        for volume in volumes:
            self.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
        return {volume.volume_id: volume.size for volume in volumes}

    def check_volume(self, volume: AttachedVolume) -> None:
        """Raise VolumeUnsupported if the volume is attached to another host or cannot be decrypted."""
        reason = why_locked(volume)
        if volume.host != self.name:
            reason = f'it is attached to host {volume.host}'
        if reason:
            raise VolumeUnsupported(volume=volume.volume_id, host=self.name, reason=reason)

    def disconnect(self, instance: objects.Instance, volumes: Iterable[AttachedVolume] | None = None) -> None:
        """Disconnect ``volumes``, or if it is None, all of the server's volumes that are attached to this host."""
        here = [volume for volume in instance.volumes if volume.at(self.name)] if volumes is None else volumes
        for volume in here:
            users = self.connected.get(volume.volume_id, set())
            users.discard(instance.uuid)
            if not users:
                self.connected.pop(volume.volume_id, None)

    def define(
        self,
        instance: objects.Instance,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Create the domain with its volumes, ports and devices, and start it if ``power_on`` is True.

        If ``plugged`` is given, the guest is PAUSED until ``plugged()`` has returned.
        """
        self.disk(instance)
        volumes = self.connect(instance)
        slots = {vif.id: vif.slot or '' for vif in instance.vifs if vif.is_function}
        # Ids of the PCI requests of detached ports. The domain does not get the devices of these requests.
        useless = {
            request.request_id
            for request in requests_of_ports(getattr(instance, 'pci_requests', None))
            if request.requester_id not in slots
        }
        hostdevs = self.prepare(device for device in pci_devices if getattr(device, 'request_id', None) not in useless)
        if not set(slots.values()) <= set(hostdevs):
            raise errors.KilonovaError(
                f'Ports of server {instance.uuid} use the PCI functions {slots}, but the server has only {hostdevs}.'
            )
        # A macvtap or vDPA port gives the guest a device on top of the PCI function, so the function is no hostdev.
        behind = [vif.slot for vif in instance.vifs if vif.vnic_type in BEHIND]
        hostdevs = [address for address in hostdevs if address not in behind]
        self.rescued.discard(instance.uuid)
        self.domains[instance.uuid] = FakeDomain(
            instance.uuid,
            driver.guest_name(self.conf, instance),
            PowerState.RUNNING if power_on else PowerState.SHUTDOWN,
            instance.flavor.vcpus,
            instance.flavor.memory_mb,
            hostdevs,
            [vif.id for vif in instance.vifs],
            slots,
            volumes,
        )
        self.note(instance, instance.vifs, instance.volumes)
        if power_on and plugged is not None:
            self.domains[instance.uuid].state = PowerState.PAUSED
            self.release(instance, plugged)

    def release(self, instance: objects.Instance, plugged: Plugged) -> None:
        """Call ``plugged()`` for a guest that was started paused, and then resume the guest.

        Calls for other guests are not blocked while ``plugged()`` runs.
        """
        self._lock.release()
        try:
            plugged()
        finally:
            self._lock.acquire()
        self.domains[instance.uuid].state = PowerState.RUNNING

    def note(self, instance: objects.Instance, vifs: Iterable[Vif], volumes: Iterable[AttachedVolume]) -> None:
        """Write the PCI addresses that tagged interfaces and volumes have in the guest to ``instance.device_metadata``.

        The domain's ports and volumes, in this order, have the PCI slots 3, 4, 5 and so on.
        """
        domain = self.domains[instance.uuid]
        slots = {
            name: objects.PCIDeviceBus(address=f'0000:00:{slot:02x}.0')
            for slot, name in enumerate([*domain.vifs, *domain.volumes], 3)
        }
        found: list[objects.DeviceMetadata] = [
            objects.NetworkInterfaceMetadata(bus=slots[vif.id], tags=[vif.tag], mac=vif.mac)
            for vif in vifs
            if vif.tag and vif.id in slots
        ]
        found += [
            objects.DiskMetadata(
                bus=slots[volume.volume_id], tags=[volume.tag], serial=volume.volume_id, path=volume.device
            )
            for volume in volumes
            if volume.tag and volume.volume_id in slots
        ]
        if found or getattr(instance, 'device_metadata', None) is not None:
            instance.device_metadata = objects.InstanceDeviceMetadata(devices=found)

    def start(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice]) -> None:
        """Replace the guest's domain by a new domain in power state RUNNING."""
        self.define(instance, pci_devices, True)

    def stop(self, instance: objects.Instance) -> None:
        """Set the guest's power state to SHUTDOWN. Do nothing if there is no domain."""
        if instance.uuid in self.domains:
            self.domains[instance.uuid].state = PowerState.SHUTDOWN


class FakePart:
    """Base class of the parts of the fake driver, such as the part for power operations."""

    def __init__(self, fake: FakeState) -> None:
        self.fake = fake


S = TypeVar('S', bound=FakePart)
P = ParamSpec('P')
T = TypeVar('T')


def scripted(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a method so that it records its calls and raises the errors that ``FakeState.fail`` has set."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.fake.around(method.__name__, *args):
            return method(self, *args, **kwargs)

    return call
