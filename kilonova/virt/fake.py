"""A hypervisor in memory, for tests and for trying out a cloud without libvirt.

It keeps domains and disks as data and obeys the same contract tests as the libvirt driver. Tests can make
any call fail, before or after its work:

    driver = FakeDriver(conf, machine=FakeMachine())
    driver.fail('spawn', errors.KilonovaError('boom'))            # the next guests.spawn does nothing and raises
    driver.fail('finish_migration', OSError(), after=True)        # does its work, then raises
    driver.calls                                                  # [('spawn', uuid), ...]
"""
from __future__ import annotations

import contextlib
import functools
import io
import json
import threading
import uuid as uuidlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from oslo_config import cfg

from kilonova import errors, objects
from kilonova.objects.vif import BEHIND, Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.pci.device import MDEV
from kilonova.states import POWER_WORDS, PowerState
from kilonova.virt import disk_names, driver, inventory
from kilonova.virt.parts.disks import Check, ImageClient, ImageMeta
from kilonova.virt.parts.guests import ConsoleAddress, DomainInfo, GuestFailed, Plugged, UnsupportedHardware
from kilonova.virt.parts.host import Inventories, Listener, MdevUnavailable
from kilonova.virt.parts.live_migrations import LiveDisk, LiveGuest, LiveOffer, LivePlace, LiveTold, PlacedOffer
from kilonova.virt.parts.moves import DiskInfo, MoveOffer, Progress
from kilonova.virt.parts.volume_snapshots import Merge
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


class FakeDriver:
    """``driver.ComputeDriver`` in memory. Change vcpus, memory_mb, local_gb and pci_devices to shape the host; what
    mdev_types in it say is available is so while there are no ``mdevs``, {uuid: (address of the parent, type)};
    ``consoles`` holds what guests wrote, by uuid; ``screens`` where they are shown, by uuid and protocol; ``passwords``
    what (user, password) was set in them, by uuid; ``connected`` the volumes that this host has, by id, each with the
    servers that it is for."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageClient | None = None, *,
                 machine: FakeMachine | None = None) -> None:
        self.conf, self.name, self.image_client = conf, conf.host, image_client
        self.machine = machine or _MACHINE
        self.directories = self.machine.disks[self.name]
        self.domains: dict[str, FakeDomain] = {}
        self.copies: dict[str, str] = {}
        self.rescued: set[str] = set()
        self.vcpus, self.memory_mb, self.local_gb = 64, 262144, 1024
        self.pci_devices: list[dict[str, Any]] = []
        self.mdevs: dict[str, tuple[str, str]] = {}
        self.consoles: dict[str, str] = {}
        self.passwords: dict[str, tuple[str, str]] = {}
        self.connected: dict[str, set[str]] = {}
        self.screens: dict[tuple[str, str], ConsoleAddress | None] = {}
        self.calls: list[tuple[str, str | None]] = []
        self.listener: Listener | None = None
        self._failures: dict[str, list[tuple[BaseException, bool]]] = defaultdict(list)
        self._lock = threading.RLock()
        self.host, self.guests, self.power = FakeHost(self), FakeGuests(self), FakePower(self)
        self.rescues = FakeRescues(self)
        self.disks, self.moves, self.live_migrations = FakeDisks(self), FakeMoves(self), FakeLiveMigrations(self)
        self.snapshots, self.devices, self.volumes = FakeSnapshots(self), FakeDevices(self), FakeVolumes(self)
        self.volume_snapshots = FakeVolumeSnapshots(self)

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

    # -- for the parts -------------------------------------------------------------------------------

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
        hostdevs = self.prepare(pci_devices)
        slots = {vif.id: vif.slot or '' for vif in instance.vifs if vif.is_function}
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


class _Part:
    def __init__(self, fake: FakeDriver) -> None:
        self.fake = fake


S = TypeVar('S', bound=_Part)
P = ParamSpec('P')
T = TypeVar('T')


def _scripted(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Note the call and raise what ``fail`` has put there for it."""
    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.fake.around(method.__name__, *args):
            return method(self, *args, **kwargs)
    return call


class FakeHost(_Part):
    """``parts.host.Host``."""

    def listen(self, listener: Listener) -> None:
        self.fake.listener = listener

    @_scripted
    def init_host(self) -> None:
        for name in [name for name in self.fake.directories if name.endswith('_del')]:
            del self.fake.directories[name]

    @_scripted
    def get_available_resource(self) -> dict[str, Any]:
        used = sum(disk.root_gb + disk.ephemeral_gb for disk in self.fake.directories.values())
        return {
            'supported_instances': [['x86_64', 'kvm', 'hvm'], ['x86_64', 'qemu', 'hvm']],
            'vcpus': self.fake.vcpus, 'memory_mb': self.fake.memory_mb, 'local_gb': self.fake.local_gb,
            'vcpus_used': 0, 'memory_mb_used': 0, 'local_gb_used': used,
            'hypervisor_type': 'FAKE', 'hypervisor_version': 1, 'hypervisor_hostname': self.fake.name,
            'uuid': str(uuidlib.uuid5(uuidlib.NAMESPACE_DNS, self.fake.name)),
            'cpu_info': json.dumps({'arch': 'x86_64', 'model': 'fake', 'vendor': 'fake', 'features': [],
                                    'topology': {'cells': 1, 'sockets': 1, 'cores': self.fake.vcpus, 'threads': 1}}),
            'disk_available_least': self.fake.local_gb - used, 'numa_topology': None, 'stats': {},
            'pci_passthrough_devices': self._devices()}

    def _devices(self) -> list[dict[str, Any]]:
        functions = {device['address']: dict(device) for device in self.fake.pci_devices}
        for address, function in functions.items():
            if 'mdev_types' in function:
                function['mdev_types'] = self.fake.mdev_types(address)
        return [*functions.values(), *(
            {'dev_id': f'mdev_{uuid.replace("-", "_")}', 'address': uuid, 'dev_type': MDEV,
             'parent_addr': parent, 'mdev_type': type_, 'capabilities': {},
             **{key: functions[parent].get(key) for key in ('vendor_id', 'product_id', 'numa_node', 'label')}}
            for uuid, (parent, type_) in sorted(self.fake.mdevs.items()) if parent in functions)]

    def inventory(self, existing: Inventories | None = None) -> Inventories:
        return inventory.root(self.fake.conf, self.fake.vcpus, self.fake.memory_mb, self.fake.local_gb, existing)

    def traits(self) -> set[str]:
        return set(inventory.COMMON_TRAITS)

    @_scripted
    def uptime(self) -> str | None:
        return ' 10:00:00 up 1 day,  2:03,  0 users,  load average: 0.00, 0.01, 0.05'


class FakeGuests(_Part):
    """``parts.guests.Guests``."""

    def list_instance_uuids(self) -> list[str]:
        return list(self.fake.domains)

    @_scripted
    def describe(self) -> list[DomainInfo]:
        return [{'uuid': domain.uuid, 'name': domain.name, 'state': int(domain.state),
                 'hostdevs': sorted(domain.hostdevs)} for domain in self.fake.domains.values()]

    @_scripted
    def get_info(self, instance: objects.Instance) -> int:
        domain = self.fake.domains.get(instance.uuid)
        return int(domain.state if domain else PowerState.SHUTDOWN)

    @_scripted
    def spawn(self, instance: objects.Instance, image_meta: ImageMeta, *,
              pci_devices: Iterable[objects.PciDevice] = (), admin_password: str | None = None,
              files: Sequence[tuple[str, str]] = (), block_devices: Iterable[objects.BlockDeviceMapping] = (),
              power_on: bool = True, plugged: Plugged | None = None) -> None:
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = FakeDisk(instance.local_root_gb, instance.flavor.ephemeral_gb)
        self.fake.define(instance, pci_devices, power_on, plugged)

    @_scripted
    def prepare_rebuild(self, instance: objects.Instance, image_meta: ImageMeta,
                        pci_devices: Iterable[objects.PciDevice]) -> None:
        self.fake.connect(instance)
        self.fake.prepare(pci_devices)

    @_scripted
    def rebuild(self, instance: objects.Instance, image_meta: ImageMeta, *,
                pci_devices: Iterable[objects.PciDevice], power_on: bool, preserve_ephemeral: bool = False,
                admin_password: str | None = None, files: Sequence[tuple[str, str]] = ()) -> None:
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = FakeDisk(instance.local_root_gb, instance.flavor.ephemeral_gb)
        self.fake.define(instance, pci_devices, power_on)

    @_scripted
    def attach_interface(self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif,
                         pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        domain, held = self.fake.domains.get(instance.uuid), [device.address for device in pci_devices]
        if domain is None:
            return
        if vif.id not in domain.vifs:
            if vif.is_function and vif.slot not in held:
                raise errors.KilonovaError(f'Port {vif.id} is {vif.slot}, and {instance.uuid} holds {held}.')
            domain.vifs.append(vif.id)
            if vif.is_function:
                domain.slots[vif.id] = vif.slot or ''
                domain.hostdevs += [vif.slot or ''] * (vif.vnic_type not in BEHIND)
        self.fake.note(instance, {one.id: one for one in (*instance.vifs, vif)}.values(), instance.volumes)

    @_scripted
    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        check()
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None and vif.id in domain.vifs:
            domain.vifs.remove(vif.id)
            slot = domain.slots.pop(vif.id, None)
            domain.hostdevs = [address for address in domain.hostdevs if address != slot]
        if domain is not None:
            self.fake.note(instance, instance.vifs, instance.volumes)

    @_scripted
    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        if destroy_disks:
            for suffix in ('', '_resize', '_del'):
                self.fake.directories.pop(instance.uuid + suffix, None)

    @_scripted
    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state != PowerState.RUNNING:
            raise errors.AdminPasswordNotSet(instance=instance.uuid, reason='it does not run')
        self.fake.passwords[instance.uuid] = (user, password)

    @_scripted
    def get_console_output(self, instance: objects.Instance) -> str:
        return self.fake.consoles.get(instance.uuid, '')

    @_scripted
    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state == PowerState.SHUTDOWN:
            return None
        return self.fake.screens.get((instance.uuid, protocol), ConsoleAddress('127.0.0.1', 5900))

    @_scripted
    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        domain = self.fake.running(instance)
        return {**{f'cpu{number}_time': 17300000000 for number in range(domain.vcpus)},
                'memory': domain.memory_mb * 1024, 'vda_errors': -1, 'vda_read': 262144, 'vda_read_req': 112,
                'vda_write': 5778432, 'vda_write_req': 488}

    @_scripted
    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        domain = self.fake.running(instance)
        # The enum has no word for a fake: it passes for the driver that it stands in for.
        return objects.Diagnostics(
            state=POWER_WORDS[PowerState(domain.state)], driver='libvirt', hypervisor='fake', hypervisor_os='fake-os',
            uptime=46664, config_drive=False,
            memory_details=objects.MemoryDiagnostics(maximum=domain.memory_mb, used=0),
            cpu_details=[objects.CpuDiagnostics(id=number, time=17300000000, utilisation=15)
                         for number in range(domain.vcpus)],
            nic_details=[objects.NicDiagnostics() for _port in domain.vifs], disk_details=[objects.DiskDiagnostics(
                read_bytes=262144, read_requests=112, write_bytes=5778432, write_requests=488, errors_count=1)],
            num_cpus=domain.vcpus, num_nics=len(domain.vifs), num_disks=1)


class FakePower(_Part):
    """``parts.power.Power``."""

    @_scripted
    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        self.fake.stop(instance)

    @_scripted
    def define(self, instance: objects.Instance, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice]) -> None:
        self.fake.define(instance, pci_devices, False)

    @_scripted
    def power_on(self, instance: objects.Instance, image_meta: ImageMeta,
                 pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        self.fake.start(instance, pci_devices)

    @_scripted
    def reboot(self, instance: objects.Instance, reboot_type: str, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        self.fake.start(instance, pci_devices)

    @_scripted
    def pause(self, instance: objects.Instance) -> None:
        self._move(instance, 'pause', PowerState.PAUSED, PowerState.RUNNING)

    @_scripted
    def unpause(self, instance: objects.Instance) -> None:
        self._move(instance, 'unpause', PowerState.RUNNING, PowerState.PAUSED)

    @_scripted
    def suspend(self, instance: objects.Instance, check: Check) -> None:
        check()
        self._move(instance, 'suspend', PowerState.SUSPENDED, PowerState.RUNNING, PowerState.PAUSED)

    @_scripted
    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice],
               check: Check) -> None:
        self.fake.prepare(pci_devices)
        self._move(instance, 'resume', PowerState.RUNNING, PowerState.SUSPENDED)

    @_scripted
    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        self._move(instance, 'interrupt', None, PowerState.RUNNING, PowerState.PAUSED)

    def _move(self, instance: objects.Instance, act: str, after: PowerState | None, *before: PowerState) -> None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (after, *before):
            raise GuestFailed(act=act, uuid=instance.uuid, reason='its state does not allow it')
        if after is not None:
            domain.state = after


class FakeRescues(_Part):
    """``parts.power.Rescues``."""

    @_scripted
    def rescue(self, instance: objects.Instance, image_meta: ImageMeta, image: ImageMeta | None,
               pci_devices: Iterable[objects.PciDevice], *, admin_password: str | None = None, timeout: int = 0,
               retry_interval: int = 0) -> None:
        self.fake.start(instance, pci_devices)
        self.fake.rescued.add(instance.uuid)

    @_scripted
    def restart(self, instance: objects.Instance, image_meta: ImageMeta,
                pci_devices: Iterable[objects.PciDevice]) -> None:
        if instance.uuid not in self.fake.rescued:
            raise GuestFailed(act='rescue', uuid=instance.uuid, reason='it is not rescued')
        self.fake.start(instance, pci_devices)
        self.fake.rescued.add(instance.uuid)


class FakeDisks(_Part):
    """``parts.disks.Disks``."""

    def list_directories(self) -> list[str]:
        return sorted(self.fake.directories)

    @_scripted
    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Nothing is cached."""
        return []

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Nothing is read from it."""


class FakeMoves(_Part):
    """``parts.moves.Moves``."""

    @_scripted
    def prepare_move(self) -> MoveOffer:
        path = f'fake:/{self.fake.name}'
        return {'host': self.fake.name, 'machine_id': self.fake.machine.machine_id, 'boot_id': 'fake-boot',
                'instances_path': path, 'base_path': f'{path}/_base', 'storage_id': path,
                'move': str(uuidlib.uuid4())}

    @_scripted
    def check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        self._check_move(instance, dest, flavor)

    @_scripted
    def migrate_disk_and_power_off(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor,
                                   timeout: int = 0, retry_interval: int = 0,
                                   progress: Progress | None = None) -> DiskInfo:
        self._check_move(instance, dest, flavor)
        self.fake.stop(instance)
        uuid, kept, move, here = instance.uuid, instance.uuid + '_resize', dest['move'], self.fake.directories
        if uuid in here and (kept not in here or here[kept].move != move):
            here[kept] = replace(here.pop(uuid), move=move)
        if kept not in here:
            raise errors.InstanceNotFound(instance_id=uuid)
        arrived = self.fake.machine.disks[dest['host']]
        if uuid not in arrived or arrived[uuid].move != move:
            arrived[uuid] = here[kept]
        self.fake.domains.pop(uuid, None)
        self.fake.disconnect(instance)
        return {'move': move, 'disks': ['disk']}

    @_scripted
    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        arrived = self.fake.machine.disks[dest['host']]
        if dest['host'] != self.fake.name and instance.uuid in arrived and arrived[instance.uuid].move == dest['move']:
            del arrived[instance.uuid]

    @_scripted
    def finish_migration(self, instance: objects.Instance, image_meta: ImageMeta,
                         pci_devices: Iterable[objects.PciDevice], power_on: bool,
                         disk_info: DiskInfo, plugged: Plugged | None = None) -> None:
        disk = self.fake.disk(instance)
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = replace(
            disk, root_gb=max(disk.root_gb, instance.local_root_gb),
            ephemeral_gb=max(disk.ephemeral_gb, instance.flavor.ephemeral_gb))
        self.fake.define(instance, pci_devices, power_on, plugged)

    @_scripted
    def take_over(self, instance: objects.Instance, source: str) -> bool:
        return False

    @_scripted
    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        return False

    @_scripted
    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        self.fake.directories.pop(instance.uuid + '_resize', None)
        if same_host:
            if instance.uuid in self.fake.directories:
                self.fake.directories[instance.uuid] = replace(self.fake.directories[instance.uuid], move=None)
        else:
            self.fake.domains.pop(instance.uuid, None)

    @_scripted
    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        if same_host and instance.uuid + '_resize' not in self.fake.directories:
            return
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        self.fake.machine.arrived[self.fake.name].pop(instance.uuid, None)
        disk = self.fake.directories.get(instance.uuid)
        if disk and disk.move:
            del self.fake.directories[instance.uuid]

    @_scripted
    def finish_revert_migration(self, instance: objects.Instance, image_meta: ImageMeta,
                                pci_devices: Iterable[objects.PciDevice], power_on: bool,
                                plugged: Plugged | None = None) -> None:
        kept = instance.uuid + '_resize'
        if kept not in self.fake.directories and instance.uuid in self.fake.domains and power_on == (
                self.fake.domains[instance.uuid].state == PowerState.RUNNING):
            return
        self.fake.connect(instance)
        if kept in self.fake.directories:
            self.fake.directories[instance.uuid] = replace(self.fake.directories.pop(kept), move=None)
        self.fake.define(instance, pci_devices, power_on, plugged)

    def _check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        old = instance.flavor
        shrinks = not instance.is_from_volume and flavor.root_gb < old.root_gb
        if shrinks or flavor.ephemeral_gb < old.ephemeral_gb:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        if dest['machine_id'] != self.fake.machine.machine_id:
            raise errors.DisksUnmovable(source=self.fake.name, dest=dest['host'], reason='they are different machines')


class FakeLiveMigrations(_Part):
    """``parts.live_migrations.LiveMigrations``: a guest arrives at once, whole."""

    def __init__(self, fake: FakeDriver) -> None:
        super().__init__(fake)
        # Guests that are on their way.
        self._giving: set[str] = set()

    @_scripted
    def describe(self, instance: objects.Instance) -> LiveGuest:
        domain, size = self._active(instance), self.fake.disk(instance).root_gb << 30
        disk: LiveDisk = {'name': 'disk', 'format': 'raw', 'size': size, 'used': size, 'copied': True}
        return {'host': self.fake.name, 'storage_id': f'fake:/{self.fake.name}',
                'instances_path': f'fake:/{self.fake.name}', 'arch': 'x86_64', 'machine': None, 'virt_type': 'fake',
                'cpu': None, 'asked': {}, 'volumes': list(domain.volumes),
                'disks': [] if instance.is_from_volume else [disk]}

    @_scripted
    def offer(self, instance: objects.Instance, guest: LiveGuest, block: bool | None,
              over_commit: bool) -> LiveOffer:
        if block is False and guest['disks']:
            raise errors.MigrationPreCheckError(reason='fakes share no storage')
        if sum(disk['size'] for disk in guest['disks']) > self.fake.local_gb << 30 or guest['virt_type'] != 'fake':
            raise errors.MigrationPreCheckError(reason='it does not fit')
        uri = f'fake:/{self.fake.name}'
        return {**self.fake.moves.prepare_move(), 'block': True, 'uri': uri, 'data_uri': uri, 'listen': {}}

    @_scripted
    def place(self, instance: objects.Instance, image_meta: ImageMeta) -> LivePlace:
        return {'cpuset': None, 'cputune': None, 'numatune': None}

    @_scripted
    def prepare(self, instance: objects.Instance, guest: LiveGuest, offer: LiveOffer,
                pci_devices: Iterable[objects.PciDevice] = ()) -> dict[str, str]:
        coming = [volume for one in instance.volumes if (volume := one.coming(self.fake.name)) is not None]
        for volume in coming:
            self.fake.check_volume(volume)
        self.fake.prepare(pci_devices)
        self.fake.domains.pop(instance.uuid, None)
        self.fake.directories[instance.uuid] = FakeDisk(
            sum(disk['size'] for disk in guest['disks']) >> 30, 0, move=offer['move'])
        for volume in coming:
            self.fake.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
        return {volume.volume_id: f'fake:/{self.fake.name}' for volume in coming}

    @_scripted
    def migrate(self, instance: objects.Instance, offer: PlacedOffer, told: LiveTold) -> None:
        machine, there = self.fake.machine, offer['host']
        if instance.uuid in machine.arrived[there]:
            return
        domain, disk = self._active(instance), self.fake.disk(instance)
        if missing := sorted(domain.volumes.keys() - offer.get('volumes', {}).keys()):
            raise errors.MigrationError(reason=f'the destination has not connected volume {missing[0]}')
        size = disk.root_gb << 30
        self._giving.add(instance.uuid)
        try:
            self._tell(told, domain, size)
        finally:
            self._giving.discard(instance.uuid)
        machine.disks[there][instance.uuid] = replace(disk, move=offer['move'])
        machine.arrived[there][instance.uuid] = replace(
            domain, hostdevs=[offer.get('hostdevs', {})[one] for one in domain.hostdevs], used={})
        domain.state = PowerState.SHUTDOWN

    @staticmethod
    def _tell(told: LiveTold, domain: FakeDomain, size: int) -> None:
        told({'memory_total': domain.memory_mb << 20, 'memory_processed': domain.memory_mb << 20,
              'memory_remaining': 0, 'disk_total': size, 'disk_processed': size, 'disk_remaining': 0})

    @_scripted
    def force_complete(self, instance: objects.Instance) -> None:
        if instance.uuid not in self._giving:
            raise errors.MigrationError(reason='no migration of the guest runs')

    @_scripted
    def abort(self, instance: objects.Instance) -> bool:
        return instance.uuid in self.fake.domains and self.fake.domains[instance.uuid].state != PowerState.SHUTDOWN

    def has_switched(self, instance: objects.Instance) -> bool:
        """It is here or there, as a whole."""
        return False

    @_scripted
    def go_on(self, instance: objects.Instance) -> None:
        """It is never held."""

    def has_arrived(self, instance: objects.Instance) -> bool:
        return instance.uuid in self.fake.domains or instance.uuid in self.fake.machine.arrived[self.fake.name]

    @_scripted
    def receive(self, instance: objects.Instance) -> None:
        came = self.fake.machine.arrived[self.fake.name].pop(instance.uuid, None)
        if came is not None:
            self.fake.domains[instance.uuid] = came
        self.fake.directories[instance.uuid] = replace(self.fake.disk(instance), move=None)

    @_scripted
    def leave(self, instance: objects.Instance, offer: LiveOffer) -> None:
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        self.fake.directories.pop(instance.uuid, None)

    def _active(self, instance: objects.Instance) -> FakeDomain:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state == PowerState.SHUTDOWN:
            raise GuestFailed(act='migrate', uuid=instance.uuid, reason='it is off')
        return domain


class FakeSnapshots(_Part):
    """``parts.disks.Snapshots``."""

    @_scripted
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        if self.fake.image_client is None or self.fake.image_client.get(image_id)['status'] == 'active':
            return
        check()
        content = self.fake.copies.setdefault(image_id, self.fake.disk(instance).content)
        copied()
        self.fake.image_client.upload(image_id, io.BytesIO(content.encode()), check)
        del self.fake.copies[image_id]

    @_scripted
    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        self.fake.copies.pop(image_id, None)


class FakeDevices(_Part):
    """``parts.host.Devices``."""

    @_scripted
    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        used = {address for domain in self.fake.domains.values() for address in domain.hostdevs}
        for uuid in set(uuids) - used:
            self.fake.mdevs.pop(uuid, None)

    @_scripted
    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        wanted = set(addresses)
        return {one['address']: (one['vendor_id'], one['product_id']) for one in self.fake.pci_devices
                if one['address'] in wanted}

    @_scripted
    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        return [device.address for device in devices if not self._has(device)]

    def _has(self, device: objects.PciDevice) -> bool:
        if device.dev_type == MDEV:
            return device.address in self.fake.mdevs or (
                device.extra_info['mdev_type'] in self.fake.mdev_types(device.parent_addr))
        return any(device.address == function['address'] for function in self.fake.pci_devices)


class FakeVolumes(_Part):
    """``parts.volumes.Volumes``: any kind; no key is needed."""

    @_scripted
    def connector(self) -> dict[str, Any]:
        return {'ip': self.fake.conf.my_block_storage_ip, 'host': self.fake.name, 'initiator': 'fake'}

    @_scripted
    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        flavor, bus = instance.flavor, (image_meta.get('properties') or {}).get('hw_disk_bus') or 'virtio'
        for one in (bus, *(volume.bus or bus for volume in instance.volumes)):
            if one not in disk_names.PREFIX:
                raise UnsupportedHardware(model=one, virt='fake')
        own = [bus] * (bool(flavor.ephemeral_gb) + bool(flavor.swap))
        roots = [volume for volume in instance.volumes if volume.is_root]
        rest = [volume for volume in instance.volumes if not volume.is_root]
        names, others = disk_names.assign([*(volume.bus or bus for volume in roots), *([] if roots else [bus]), *own],
                                          [(volume.bus or bus, volume.device) for volume in rest])
        found = {volume.uuid: name for volume, name in [*zip(roots, names, strict=False),
                                                        *zip(rest, others, strict=True)]}
        return [f'/dev/{found[volume.uuid]}' for volume in instance.volumes if not volume.device]

    @_scripted
    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        self.fake.check_volume(volume)
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            self.fake.connected.setdefault(volume.volume_id, set()).add(instance.uuid)
            domain.volumes.setdefault(volume.volume_id, volume.size)
            others = [one for one in instance.volumes if one.volume_id != volume.volume_id]
            self.fake.note(instance, instance.vifs, [*others, volume])

    @_scripted
    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        check()
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            domain.volumes.pop(volume.volume_id, None)
            domain.used.pop(volume.volume_id, None)
            self.fake.note(instance, instance.vifs, instance.volumes)
        self.fake.disconnect(instance, [volume])

    @_scripted
    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        self.fake.disconnect(instance, [volume])

    @_scripted
    def copy(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume,
             new: AttachedVolume, check: Check) -> None:
        self.fake.check_volume(new)
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (PowerState.RUNNING, PowerState.PAUSED):
            raise GuestFailed(act='copy a volume of', uuid=instance.uuid, reason='it does not run')
        self.fake.connected.setdefault(new.volume_id, set()).add(instance.uuid)
        check()
        domain.copies[volume.volume_id] = new.volume_id

    @_scripted
    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None:
            domain.copies.pop(volume.volume_id, None)
        self.fake.disconnect(instance, [new])

    @_scripted
    def swap(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume,
             new: AttachedVolume) -> bool:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None:
            return False
        if domain.copies.get(volume.volume_id) == new.volume_id and domain.state in (
                PowerState.RUNNING, PowerState.PAUSED):
            del domain.copies[volume.volume_id]
            domain.moved[volume.volume_id] = new.volume_id
            domain.volumes[volume.volume_id] = new.size
            self.fake.disconnect(instance, [new])
        return domain.moved.get(volume.volume_id) == new.volume_id

    @_scripted
    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None and volume.volume_id in domain.volumes:
            domain.volumes[volume.volume_id] = volume.size

    @_scripted
    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (PowerState.RUNNING, PowerState.PAUSED):
            return {}
        return {volume.volume_id: domain.used.get(volume.volume_id, VolumeCounters())
                for volume in instance.volumes if volume.volume_id in domain.volumes}


class FakeVolumeSnapshots(_Part):
    """``parts.volume_snapshots.VolumeSnapshots``: any file is there."""

    @_scripted
    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume,
             new: AttachedVolume) -> None:
        self.fake.check_volume(new)
        files = self._files(instance, old)
        if files[0] != new.file[0]:
            files.insert(0, new.file[0])

    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        domain = self.fake.domains.get(instance.uuid)
        return domain is not None and domain.files.get(new.volume_id, [''])[0] == new.file[0]

    @_scripted
    def withdraw(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume,
                 new: AttachedVolume, check: Check) -> None:
        check()
        if self.has(instance, new):
            self._files(instance, old).pop(0)

    @_scripted
    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge,
              check: Check) -> None:
        check()
        files = self._files(instance, volume)
        if merge.is_done(files):
            return
        if reason := merge.why_not(files):
            raise GuestFailed(act='merge files of', uuid=instance.uuid, reason=reason)
        gone = {merge.file} if merge.into is not None else set(
            files[1:files.index(merge.file) if merge.file is not None else None])
        files[:] = [name for name in files if name not in gone]

    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        return merge.is_done(self._files(instance, volume))

    def _files(self, instance: objects.Instance, volume: AttachedVolume) -> list[str]:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or volume.volume_id not in domain.volumes:
            raise GuestFailed(act=f'find volume {volume.volume_id} in', uuid=instance.uuid,
                              reason='it does not run with it')
        return domain.files.setdefault(volume.volume_id, [volume.file[0]])


_: type[driver.ComputeDriver] = FakeDriver      # mypy compares it with the protocol
