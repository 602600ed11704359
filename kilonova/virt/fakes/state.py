"""What a fake hypervisor holds: guests, disks, devices and volumes as data, and what its calls shall raise."""
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
from kilonova.virt.parts.disks import ImageClient
from kilonova.virt.parts.guests import ConsoleAddress, GuestFailed, NotOnThisHost, Plugged
from kilonova.virt.parts.host import Listener, MdevUnavailable
from kilonova.virt.parts.moves import Moves
from kilonova.virt.parts.volumes import VolumeCounters, VolumeUnsupported, why_locked


@dataclass
class FakeDomain:
    """What a hypervisor would hold of one guest."""

    uuid: str
    name: str
    state: int
    vcpus: int
    memory_mb: int
    hostdevs: list[str] = field(default_factory=list)
    # Ids of its ports, and the PCI addresses of those that are functions.
    vifs: list[str] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    # {id of a volume: GiB that the guest sees of it}, in the order in which it has them.
    volumes: dict[str, int] = field(default_factory=dict)
    # What the guest has done with them since it was started.
    used: dict[str, VolumeCounters] = field(default_factory=dict)
    # {id of a volume: id of what it is being copied to; of what has taken its place}.
    copies: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    # {id of a volume: names of the files behind it, from the one to which the guest writes}.
    files: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeDisk:
    """A server's directory: its root disk's size and what the guest wrote into it."""

    root_gb: int
    ephemeral_gb: int
    content: str = ''
    move: str | None = None


class FakeMachine:
    """The disks of all fake hosts of one machine: {host: {directory name: FakeDisk}}."""

    def __init__(self, machine_id: str = 'fake-machine') -> None:
        self.machine_id = machine_id
        # Guests that came to a host and that it has not received yet.
        self.arrived: dict[str, dict[str, FakeDomain]] = defaultdict(dict)
        self.disks: dict[str, dict[str, FakeDisk]] = defaultdict(dict)


_MACHINE = FakeMachine()


class FakeState:
    """What a fake host and its guests have, for the parts of its driver. Change vcpus, memory_mb, local_gb and
    pci_devices to shape the host; what mdev_types in it say is available is so while there are no ``mdevs``, {uuid:
    (address of the parent, type)}; ``unusable`` says why devices can't be given to guests, by address; ``consoles``
    holds what guests wrote, by uuid; ``screens`` where they are shown, by uuid and protocol; ``passwords`` what (user,
    password) was set in them, by uuid; ``connected`` the volumes that this host has, by id, each with the servers that
    it is for."""

    # Of the same driver: a live migration asks it for a place, too.
    moves: Moves

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageClient | None, machine: FakeMachine | None) -> None:
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
        # Most and least CPU shares that a guest may have here.
        self.cpu_shares = tuning.CPU_LIMITS['shares']
        self._failures: dict[str, list[tuple[BaseException, bool]]] = defaultdict(list)
        self._lock = threading.RLock()

    def fail(self, method: str, error: BaseException, *, times: int = 1, after: bool = False) -> None:
        """Let the next ``times`` calls of ``method`` raise ``error``, before or ``after`` their work."""
        self._failures[method].extend([(error, after)] * times)

    def write(self, uuid: str, content: str) -> None:
        """What the guest writes to its root disk."""
        self.directories[uuid] = replace(self.directories[uuid], content=content)

    def read(self, uuid: str) -> str:
        """What is on the guest's root disk."""
        return self.directories[uuid].content

    def make_mdev(self, uuid: str, parent: str, type_: str) -> None:
        """A mediated device, which stays until a test takes it out of ``mdevs``. Fine if it is there; MdevUnavailable.
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
        """A call's work is done inside: noted, failing if it shall, one at a time."""
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
        """Raise NotOnThisHost or errors.Invalid for what guests of this host can't have."""
        asked, (least, most) = tuning.of(instance.flavor.extra_specs or {}).cpu, self.cpu_shares
        if not least <= asked.get('shares', least) <= most:
            raise NotOnThisHost(name='quota:cpu_shares', value=asked['shares'],
                                reason=f'it must be from {least} to {most}')

    def running(self, instance: objects.Instance) -> FakeDomain:
        domain = self.domains.get(instance.uuid)
        if domain is None or domain.state != PowerState.RUNNING:
            raise GuestFailed(act='measure', uuid=instance.uuid, reason='it does not run')
        return domain

    def disk(self, instance: objects.Instance) -> FakeDisk:
        if instance.uuid not in self.directories:
            raise errors.InstanceNotFound(instance_id=instance.uuid)
        return self.directories[instance.uuid]

    def mdev_types(self, parent: str) -> dict[str, dict[str, Any]]:
        """What mediated devices can still be made on that PCI function: {type: {available, api}}."""
        offered: dict[str, dict[str, Any]] = next(
            (device.get('mdev_types', {}) for device in self.pci_devices if device['address'] == parent), {})
        made = Counter(self.mdevs.values())
        return {type_: {**what, 'available': max(0, what['available'] - made[parent, type_])}
                for type_, what in offered.items()}

    def prepare(self, pci_devices: Iterable[objects.PciDevice]) -> list[str]:
        """Addresses of devices that a guest is to have; the mediated ones are made."""
        devices = list(pci_devices)
        for device in devices:
            if device.dev_type == MDEV:
                self.make_mdev(device.address, device.parent_addr, device.extra_info['mdev_type'])
        return [device.address for device in devices]

    def connect(self, instance: objects.Instance) -> dict[str, int]:
        """The volumes of a server are connected; what its guest sees of them."""
        volumes = [volume for volume in instance.volumes if volume.kind is not None]
        for volume in volumes:
            self.check_volume(volume)
        for volume in volumes:
            self.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
        return {volume.volume_id: volume.size for volume in volumes}

    def check_volume(self, volume: AttachedVolume) -> None:
        reason = why_locked(volume)
        if volume.host != self.name:
            reason = f'it is attached to host {volume.host}'
        if reason:
            raise VolumeUnsupported(volume=volume.volume_id, host=self.name, reason=reason)

    def disconnect(self, instance: objects.Instance, volumes: Iterable[AttachedVolume] | None = None) -> None:
        """Those, or all of the server's that are attached to this host."""
        here = [volume for volume in instance.volumes if volume.at(self.name)] if volumes is None else volumes
        for volume in here:
            users = self.connected.get(volume.volume_id, set())
            users.discard(instance.uuid)
            if not users:
                self.connected.pop(volume.volume_id, None)

    def define(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], power_on: bool,
               plugged: Plugged | None = None) -> None:
        self.disk(instance)
        volumes = self.connect(instance)
        slots = {vif.id: vif.slot or '' for vif in instance.vifs if vif.is_function}
        # What is for a port that is gone is of no use to the guest, which doesn't get it.
        useless = {request.request_id for request in requests_of_ports(getattr(instance, 'pci_requests', None))
                   if request.requester_id not in slots}
        hostdevs = self.prepare(device for device in pci_devices
                                if getattr(device, 'request_id', None) not in useless)
        if not set(slots.values()) <= set(hostdevs):
            raise errors.KilonovaError(f'The ports of {instance.uuid} are {slots}, and it holds {hostdevs}.')
        # Something of the host's leads to it: no domain names it.
        behind = [vif.slot for vif in instance.vifs if vif.vnic_type in BEHIND]
        hostdevs = [address for address in hostdevs if address not in behind]
        self.rescued.discard(instance.uuid)
        self.domains[instance.uuid] = FakeDomain(
            instance.uuid, driver.guest_name(self.conf, instance),
            PowerState.RUNNING if power_on else PowerState.SHUTDOWN, instance.flavor.vcpus,
            instance.flavor.memory_mb, hostdevs, [vif.id for vif in instance.vifs], slots, volumes)
        self.note(instance, instance.vifs, instance.volumes)
        if power_on and plugged is not None:
            self.domains[instance.uuid].state = PowerState.PAUSED
            self.release(instance, plugged)

    def release(self, instance: objects.Instance, plugged: Plugged) -> None:
        """A guest that was started paused runs when ``plugged()`` has returned; other calls don't wait for that."""
        self._lock.release()
        try:
            plugged()
        finally:
            self._lock.acquire()
        self.domains[instance.uuid].state = PowerState.RUNNING

    def note(self, instance: objects.Instance, vifs: Iterable[Vif], volumes: Iterable[AttachedVolume]) -> None:
        """Where the guest has those of these that have tags: each in the PCI slot of its place among all."""
        domain = self.domains[instance.uuid]
        slots = {name: objects.PCIDeviceBus(address=f'0000:00:{slot:02x}.0')
                 for slot, name in enumerate([*domain.vifs, *domain.volumes], 3)}
        found: list[objects.DeviceMetadata] = [
            objects.NetworkInterfaceMetadata(bus=slots[vif.id], tags=[vif.tag], mac=vif.mac)
            for vif in vifs if vif.tag and vif.id in slots]
        found += [objects.DiskMetadata(bus=slots[volume.volume_id], tags=[volume.tag], serial=volume.volume_id,
                                       path=volume.device) for volume in volumes
                  if volume.tag and volume.volume_id in slots]
        if found or getattr(instance, 'device_metadata', None) is not None:
            instance.device_metadata = objects.InstanceDeviceMetadata(devices=found)

    def start(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice]) -> None:
        self.define(instance, pci_devices, True)

    def stop(self, instance: objects.Instance) -> None:
        if instance.uuid in self.domains:
            self.domains[instance.uuid].state = PowerState.SHUTDOWN


class Part:
    """A part of the driver."""

    def __init__(self, fake: FakeState) -> None:
        self.fake = fake


S = TypeVar('S', bound=Part)
P = ParamSpec('P')
T = TypeVar('T')


def scripted(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Note the call and raise what ``fail`` has put there for it."""
    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.fake.around(method.__name__, *args):
            return method(self, *args, **kwargs)
    return call
