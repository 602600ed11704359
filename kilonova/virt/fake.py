"""A hypervisor in memory, for tests and for trying out a cloud without libvirt.

It keeps domains and disks as data and obeys the same contract tests as the libvirt driver. Tests can make
any call fail, before or after its work:

    driver = FakeDriver(conf, machine=FakeMachine())
    driver.fail('spawn', errors.KilonovaError('boom'))            # the next spawn does nothing and raises
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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg

from kilonova import errors, objects
from kilonova.states import POWER_WORDS, PowerState
from kilonova.virt import driver, inventory


@dataclass
class FakeDomain:
    """What a hypervisor would hold of one guest."""

    uuid: str
    name: str
    state: int
    vcpus: int
    memory_mb: int
    hostdevs: list[str] = field(default_factory=list)


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
        self.disks: dict[str, dict[str, FakeDisk]] = defaultdict(dict)


_MACHINE = FakeMachine()


def _scripted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Note the call and raise what ``fail`` has put there for it."""
    @functools.wraps(method)
    def call(self: FakeDriver, *args: Any, **kwargs: Any) -> Any:
        with self._around(method.__name__, *args):
            return method(self, *args, **kwargs)
    return call


class FakeDriver:
    """ComputeDriver in memory. Change vcpus, memory_mb, local_gb and pci_devices to shape the host; ``consoles`` holds
    what guests wrote, by uuid."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(self, conf: cfg.ConfigOpts, image_client: driver.ImageClient | None = None, *,
                 machine: FakeMachine | None = None) -> None:
        self.conf, self.host, self.image_client = conf, conf.host, image_client
        self.machine = machine or _MACHINE
        self.disks = self.machine.disks[self.host]
        self.domains: dict[str, FakeDomain] = {}
        self.copies: dict[str, str] = {}
        self.vcpus, self.memory_mb, self.local_gb = 64, 262144, 1024
        self.pci_devices: list[dict[str, Any]] = []
        self.consoles: dict[str, str] = {}
        self.calls: list[tuple[str, str | None]] = []
        self.listener: driver.Listener | None = None
        self._failures: dict[str, list[tuple[Exception, bool]]] = defaultdict(list)
        self._lock = threading.RLock()

    # -- for tests -----------------------------------------------------------------------------------

    def fail(self, method: str, error: Exception, *, times: int = 1, after: bool = False) -> None:
        """Let the next ``times`` calls of ``method`` raise ``error``, before or ``after`` their work."""
        self._failures[method].extend([(error, after)] * times)

    def write(self, uuid: str, content: str) -> None:
        """What the guest writes to its root disk."""
        self.disks[uuid] = replace(self.disks[uuid], content=content)

    def read(self, uuid: str) -> str:
        """What is on the guest's root disk."""
        return self.disks[uuid].content

    @contextlib.contextmanager
    def _around(self, name: str, *args: Any) -> Iterator[None]:
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

    # -- the host ------------------------------------------------------------------------------------

    def listen(self, listener: driver.Listener) -> None:
        self.listener = listener

    @_scripted
    def init_host(self) -> None:
        for name in [name for name in self.disks if name.endswith('_del')]:
            del self.disks[name]

    @_scripted
    def get_available_resource(self) -> dict[str, Any]:
        used = sum(disk.root_gb + disk.ephemeral_gb for disk in self.disks.values())
        return {
            'supported_instances': [['x86_64', 'kvm', 'hvm'], ['x86_64', 'qemu', 'hvm']],
            'vcpus': self.vcpus, 'memory_mb': self.memory_mb, 'local_gb': self.local_gb,
            'vcpus_used': 0, 'memory_mb_used': 0, 'local_gb_used': used,
            'hypervisor_type': 'FAKE', 'hypervisor_version': 1, 'hypervisor_hostname': self.host,
            'uuid': str(uuidlib.uuid5(uuidlib.NAMESPACE_DNS, self.host)),
            'cpu_info': json.dumps({'arch': 'x86_64', 'model': 'fake', 'vendor': 'fake', 'features': [],
                                    'topology': {'cells': 1, 'sockets': 1, 'cores': self.vcpus, 'threads': 1}}),
            'disk_available_least': self.local_gb - used, 'numa_topology': None, 'stats': {},
            'pci_passthrough_devices': [dict(device) for device in self.pci_devices]}

    def inventory(self, existing: dict[str, dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
        return inventory.root(self.conf, self.vcpus, self.memory_mb, self.local_gb, existing)

    def traits(self) -> set[str]:
        return set(inventory.COMMON_TRAITS)

    @_scripted
    def missing_devices(self, addresses: Iterable[str]) -> list[str]:
        there = {device['address'] for device in self.pci_devices}
        return [address for address in addresses if address not in there]

    @_scripted
    def uptime(self) -> str | None:
        return ' 10:00:00 up 1 day,  2:03,  0 users,  load average: 0.00, 0.01, 0.05'

    def list_instance_uuids(self) -> list[str]:
        return list(self.domains)

    @_scripted
    def describe(self) -> list[dict[str, Any]]:
        return [{'uuid': domain.uuid, 'name': domain.name, 'state': int(domain.state),
                 'hostdevs': sorted(domain.hostdevs)} for domain in self.domains.values()]

    def list_directories(self) -> list[str]:
        return sorted(self.disks)

    # -- one guest -----------------------------------------------------------------------------------

    @_scripted
    def get_info(self, instance: Any) -> int:
        domain = self.domains.get(instance.uuid)
        return int(domain.state if domain else PowerState.SHUTDOWN)

    @_scripted
    def spawn(self, ctxt: Any, instance: Any, image_meta: dict[str, Any], *, pci_devices: Iterable[Any] = (),
              admin_password: str | None = None, files: Sequence[tuple[str, str]] = (),
              image_fetch: driver.ImageFetch | None = None, block_devices: Sequence[Any] = ()) -> None:
        self.disks[instance.uuid] = FakeDisk(instance.flavor.root_gb, instance.flavor.ephemeral_gb)
        self._start(instance, pci_devices)

    @_scripted
    def destroy(self, instance: Any, destroy_disks: bool = True) -> None:
        self.domains.pop(instance.uuid, None)
        if destroy_disks:
            for suffix in ('', '_resize', '_del'):
                self.disks.pop(instance.uuid + suffix, None)

    @_scripted
    def power_off(self, instance: Any, timeout: int = 0, retry_interval: int = 0) -> None:
        self._stop(instance)

    @_scripted
    def power_on(self, ctxt: Any, instance: Any, image_meta: dict[str, Any],
                 pci_devices: Iterable[Any] = ()) -> None:
        self._start(instance, pci_devices)

    @_scripted
    def reboot(self, ctxt: Any, instance: Any, reboot_type: str, image_meta: dict[str, Any],
               pci_devices: Iterable[Any] = ()) -> None:
        self._start(instance, pci_devices)

    # -- looking at a guest --------------------------------------------------------------------------

    @_scripted
    def get_console_output(self, instance: Any) -> str:
        return self.consoles.get(instance.uuid, '')

    @_scripted
    def get_diagnostics(self, instance: Any) -> dict[str, Any]:
        domain = self._running(instance)
        return {**{f'cpu{number}_time': 17300000000 for number in range(domain.vcpus)},
                'memory': domain.memory_mb * 1024, 'vda_errors': -1, 'vda_read': 262144, 'vda_read_req': 112,
                'vda_write': 5778432, 'vda_write_req': 488}

    @_scripted
    def get_instance_diagnostics(self, instance: Any) -> objects.Diagnostics:
        domain = self._running(instance)
        # The enum has no word for a fake: it passes for the driver that it stands in for.
        return objects.Diagnostics(
            state=POWER_WORDS[PowerState(domain.state)], driver='libvirt', hypervisor='fake', hypervisor_os='fake-os',
            uptime=46664, config_drive=False,
            memory_details=objects.MemoryDiagnostics(maximum=domain.memory_mb, used=0),
            cpu_details=[objects.CpuDiagnostics(id=number, time=17300000000, utilisation=15)
                         for number in range(domain.vcpus)],
            nic_details=[], disk_details=[objects.DiskDiagnostics(
                read_bytes=262144, read_requests=112, write_bytes=5778432, write_requests=488, errors_count=1)],
            num_cpus=domain.vcpus, num_nics=0, num_disks=1)

    # -- images of a guest ---------------------------------------------------------------------------

    @_scripted
    def snapshot(self, ctxt: Any, instance: Any, image_id: str, check: driver.Check, copied: driver.Check) -> None:
        if self.image_client is None or self.image_client.get(image_id)['status'] == 'active':
            return
        check()
        content = self.copies.setdefault(image_id, self._disk(instance).content)
        copied()
        self.image_client.upload(image_id, io.BytesIO(content.encode()), check)
        del self.copies[image_id]

    @_scripted
    def forget_snapshot(self, instance: Any, image_id: str) -> None:
        self.copies.pop(image_id, None)

    # -- disk moves ----------------------------------------------------------------------------------

    def fetch_base(self, instance: Any, image_meta: dict[str, Any]) -> None:
        """Nothing is read from it."""

    @_scripted
    def prepare_move(self) -> dict[str, Any]:
        path = f'fake:/{self.host}'
        return {'host': self.host, 'machine_id': self.machine.machine_id, 'boot_id': 'fake-boot',
                'instances_path': path, 'base_path': f'{path}/_base', 'storage_id': path,
                'move': str(uuidlib.uuid4())}

    @_scripted
    def check_move(self, instance: Any, dest: dict[str, Any], flavor: Any) -> None:
        self._check_move(instance, dest, flavor)

    @_scripted
    def migrate_disk_and_power_off(self, instance: Any, dest: dict[str, Any], flavor: Any,
                                   timeout: int = 0, retry_interval: int = 0,
                                   progress: driver.Progress | None = None) -> dict[str, Any]:
        self._check_move(instance, dest, flavor)
        self._stop(instance)
        uuid, kept, move = instance.uuid, instance.uuid + '_resize', dest['move']
        if uuid in self.disks and (kept not in self.disks or self.disks[kept].move != move):
            self.disks[kept] = replace(self.disks.pop(uuid), move=move)
        if kept not in self.disks:
            raise errors.InstanceNotFound(instance_id=uuid)
        arrived = self.machine.disks[dest['host']]
        if uuid not in arrived or arrived[uuid].move != move:
            arrived[uuid] = self.disks[kept]
        self.domains.pop(uuid, None)
        return {'move': move, 'disks': ['disk']}

    @_scripted
    def discard_copy(self, instance: Any, dest: dict[str, Any]) -> None:
        arrived = self.machine.disks[dest['host']]
        if dest['host'] != self.host and instance.uuid in arrived and arrived[instance.uuid].move == dest['move']:
            del arrived[instance.uuid]

    @_scripted
    def finish_migration(self, ctxt: Any, instance: Any, image_meta: dict[str, Any], pci_devices: Iterable[Any],
                         power_on: bool, disk_info: dict[str, Any]) -> None:
        disk = self._disk(instance)
        self.disks[instance.uuid] = replace(
            disk, root_gb=max(disk.root_gb, instance.flavor.root_gb),
            ephemeral_gb=max(disk.ephemeral_gb, instance.flavor.ephemeral_gb))
        self._define(instance, pci_devices, power_on)

    @_scripted
    def confirm_migration(self, instance: Any, same_host: bool) -> None:
        self.disks.pop(instance.uuid + '_resize', None)
        if same_host:
            if instance.uuid in self.disks:
                self.disks[instance.uuid] = replace(self.disks[instance.uuid], move=None)
        else:
            self.domains.pop(instance.uuid, None)

    @_scripted
    def cleanup_move_dest(self, instance: Any, same_host: bool) -> None:
        if same_host and instance.uuid + '_resize' not in self.disks:
            return
        self.domains.pop(instance.uuid, None)
        disk = self.disks.get(instance.uuid)
        if disk and disk.move:
            del self.disks[instance.uuid]

    @_scripted
    def finish_revert_migration(self, ctxt: Any, instance: Any, image_meta: dict[str, Any],
                                pci_devices: Iterable[Any], power_on: bool) -> None:
        kept = self.disks.pop(instance.uuid + '_resize', None)
        if kept:
            self.disks[instance.uuid] = replace(kept, move=None)
        elif instance.uuid in self.domains and power_on == (
                self.domains[instance.uuid].state == PowerState.RUNNING):
            return
        self._define(instance, pci_devices, power_on)

    # -- parts ---------------------------------------------------------------------------------------

    def _running(self, instance: Any) -> FakeDomain:
        domain = self.domains.get(instance.uuid)
        if domain is None or domain.state != PowerState.RUNNING:
            raise driver.GuestFailed(act='measure', uuid=instance.uuid, reason='it does not run')
        return domain

    def _disk(self, instance: Any) -> FakeDisk:
        if instance.uuid not in self.disks:
            raise errors.InstanceNotFound(instance_id=instance.uuid)
        return self.disks[instance.uuid]

    def _define(self, instance: Any, pci_devices: Iterable[Any], power_on: bool) -> None:
        self._disk(instance)
        self.domains[instance.uuid] = FakeDomain(
            instance.uuid, driver.guest_name(self.conf, instance),
            PowerState.RUNNING if power_on else PowerState.SHUTDOWN, instance.flavor.vcpus,
            instance.flavor.memory_mb, [device.address for device in pci_devices])

    def _start(self, instance: Any, pci_devices: Iterable[Any]) -> None:
        self._define(instance, pci_devices, True)

    def _stop(self, instance: Any) -> None:
        if instance.uuid in self.domains:
            self.domains[instance.uuid].state = PowerState.SHUTDOWN

    def _check_move(self, instance: Any, dest: dict[str, Any], flavor: Any) -> None:
        old = instance.flavor
        if flavor.root_gb < old.root_gb or flavor.ephemeral_gb < old.ephemeral_gb:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        if dest['machine_id'] != self.machine.machine_id:
            raise errors.DisksUnmovable(source=self.host, dest=dest['host'], reason='they are different machines')
