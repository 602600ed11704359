"""Hosts of the simulated cloud: machines whose guests and disks outlive their compute service.

    machine = Machine('gpu1', devices=[gpu('0000:08:00.0')])
    driver = Driver(conf, images, machine)          # a new one each time that the service starts

A call of the driver takes virtual time before and after its work, so that anybody may die in between.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from kilonova import objects
from kilonova.errors import HostRejected
from kilonova.objects.volume import NFS, AttachedVolume
from kilonova.states import PowerState
from kilonova.virt.fake import FakeDriver
from kilonova.virt.fakes.host import FakeHost
from kilonova.virt.fakes.moves import FakeMoves
from kilonova.virt.fakes.state import FakeDisk, FakeDomain, FakeMachine
from kilonova.virt.fakes.volume_snapshots import FakeVolumeSnapshots
from kilonova.virt.fakes.volumes import FakeVolumes
from kilonova.virt.hardware import numa
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import Plugged
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.moves import MoveOffer
from kilonova.virt.parts.volume_snapshots import Merge
from tests.simulation.timeline import Timeline

# Usual steps that a call of the driver takes before and after its work; all others take one.
LASTS = {
    'spawn': 2000,
    'migrate_disk_and_power_off': 3000,
    'finish_migration': 1500,
    'destroy': 300,
    'power_off': 1500,
    'power_on': 800,
    'reboot': 1500,
    'finish_revert_migration': 1200,
    'confirm_migration': 100,
}
# Calls that a hypervisor refuses, and how often, whichever host is asked: {'spawn': 1}. One run a process.
REFUSALS: dict[str, int] = {}
# Calls that read the disk, and that write to it.
STORED = frozenset(('spawn', 'power_on', 'restart', 'reboot', 'resume', 'rescue', 'finish_migration'))
WRITING = frozenset(('spawn', 'migrate_disk_and_power_off', 'finish_migration', 'snapshot'))


def gpu(address: str, product: str = '13f1', **values: Any) -> dict[str, Any]:
    """A whole PCI device as libvirt's driver tells of it."""
    return {
        'dev_id': 'pci_' + address.replace(':', '_').replace('.', '_'),
        'address': address,
        'vendor_id': '10de',
        'product_id': product,
        'numa_node': 0,
        'label': f'label_10de_{product}',
        'dev_type': 'type-PCI',
        'capabilities': {},
        **values,
    }


class Machine:
    """What is there whether the compute service runs or not. ``cells``: NUMA cells, 0: none."""

    def __init__(self, name: str, devices: Sequence[dict[str, Any]], vcpus: int = 64, cells: int = 0) -> None:
        self.name, self.devices, self.vcpus, self.cells = name, list(devices), vcpus, cells
        self.domains: dict[str, FakeDomain] = {}
        self.copies: dict[str, str] = {}
        self.mdevs: dict[str, tuple[str, str]] = {}
        self.rescued: set[str] = set()
        self.connected: dict[str, set[str]] = {}
        self.full = False
        # Whether they are there: after a power cut they may come later than the compute service.
        self.has_libvirtd = self.has_storage = True
        # Seconds that a guest takes to be made; and the servers that a long call works on now.
        self.long = 0.0
        self.at_work: list[str] = []

    def running(self) -> list[FakeDomain]:
        """Guests that run now."""
        return [domain for domain in self.domains.values() if domain.state == PowerState.RUNNING]

    def reboot(self) -> None:
        """No guest is left running; what was suspended is on the disk."""
        kept = {uuid: domain for uuid, domain in self.domains.items() if domain.state == PowerState.SUSPENDED}
        self.domains.clear()
        self.domains.update(kept)


class Driver(FakeDriver):
    """FakeDriver on a Machine. ``disks``: those of all hosts, which share a store; ``share``: whose ``files`` volumes
    may be, if there are volumes."""

    def __init__(
        self,
        conf: Any,
        images: Any,
        machine: Machine,
        disks: FakeMachine,
        timeline: Timeline,
        changed: Any,
        share: Any = None,
    ) -> None:
        super().__init__(conf, images, machine=disks)
        self.box, self.timeline, self._changed, self.share = machine, timeline, changed, share
        self.domains, self.copies, self.mdevs = machine.domains, machine.copies, machine.mdevs
        self.rescued, self.pci_devices, self.vcpus = machine.rescued, machine.devices, machine.vcpus
        self.connected = machine.connected
        self.host, self.moves = _Host(self), _Moves(self)
        self.volumes, self.volume_snapshots = _Volumes(self), _VolumeSnapshots(self)

    def refuses(self, name: str) -> bool:
        """Whether the hypervisor is to refuse this call; takes virtual time."""
        self.timeline.step()
        if REFUSALS.get(name):
            REFUSALS[name] -= 1
            self.timeline.tell(f'{name} is refused')
            return True
        return False

    def define(self, instance: objects.Instance, *args: Any, **kwargs: Any) -> None:
        """The guest has the files that its server's row says, and those from which they read."""
        super().define(instance, *args, **kwargs)
        for volume in instance.volumes:
            self.open(instance.uuid, volume)

    def open(self, uuid: str, volume: AttachedVolume) -> None:
        """A guest gets a volume."""
        if volume.kind == NFS and uuid in self.domains:
            self.domains[uuid].files[volume.volume_id] = self.share.chain(volume.file[0])

    def release(self, instance: objects.Instance, plugged: Plugged) -> None:
        """Here nothing is locked."""
        plugged()
        self.domains[instance.uuid].state = PowerState.RUNNING
        self._changed(self.conf.host)

    @contextlib.contextmanager
    def around(self, name: str, *args: Any) -> Iterator[None]:
        if not self.box.has_libvirtd:
            self.timeline.step()
            raise HypervisorUnavailable(host=self.conf.host, reason='its libvirtd is not there')
        if not self.box.has_storage and name in STORED:
            self.timeline.step()
            raise OSError(5, 'Input/output error')
        uuid = next((arg.uuid for arg in args if hasattr(arg, 'uuid')), None)
        if uuid is None:
            self.timeline.step()
            yield
            return
        if name != 'get_info':
            self.timeline.tell(f'{name} {uuid[:8]}')
        self.timeline.step(LASTS.get(name, 1))
        if self.box.full and name in WRITING:
            raise OSError(28, 'No space left on device')
        if REFUSALS.get(name):
            REFUSALS[name] -= 1
            self.timeline.tell(f'{name} {uuid[:8]} is refused')
            raise OSError(28, 'No space left on device')
        if self.box.long and name == 'spawn':
            self.box.at_work.append(uuid)
            self.timeline.sleep(self.box.long)
            self.box.at_work.remove(uuid)
        yield
        self._changed(self.conf.host)
        self.timeline.step(LASTS.get(name, 1) * 0.2)


class _Host(FakeHost):
    def __init__(self, fake: Driver) -> None:
        super().__init__(fake)
        self.box = fake.box

    def get_available_resource(self) -> dict[str, Any]:
        """With NUMA cells, if there are any."""
        found, fake = super().get_available_resource(), self.fake
        if self.box.cells:
            cells = numa.spread(self.box.cells, 1, fake.vcpus // self.box.cells, 1, fake.memory_mb)
            topology = numa.topology_of(cells, Offer.read(fake.conf, frozenset(range(fake.vcpus))))
            found['numa_topology'] = topology.to_json() if topology is not None else None
        return found


class _Moves(FakeMoves):
    def __init__(self, fake: Driver) -> None:
        super().__init__(fake)
        self._refuses = fake.refuses

    def prepare_move(self) -> MoveOffer:
        """May be refused."""
        if self._refuses('prepare_move'):
            raise HostRejected(reason='no room for a disk')
        return super().prepare_move()


class _Volumes(FakeVolumes):
    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """By the file that it is in."""
        had = instance.uuid in self.fake.domains and volume.volume_id in self.fake.domains[instance.uuid].volumes
        super().attach(instance, image_meta, volume)
        if not had:
            self.fake.open(instance.uuid, volume)

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """And of it."""
        super().detach(instance, volume, check)
        if instance.uuid in self.fake.domains:
            self.fake.domains[instance.uuid].files.pop(volume.volume_id, None)


class _VolumeSnapshots(FakeVolumeSnapshots):
    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """From then on the files say so themselves."""
        super().merge(instance, volume, merge, check)
        names = self._files(instance, volume)
        self.fake.share.files.update(zip(names, [*names[1:], None], strict=True))


def remains(disks: FakeMachine) -> dict[str, dict[str, FakeDisk]]:
    """What lies on each host's disk."""
    return {host: dict(found) for host, found in disks.disks.items() if found}


def alias(name: str, product: str, kind: str) -> str:
    """A [pci]alias."""
    return json.dumps({'name': name, 'vendor_id': '10de', 'product_id': product, 'device_type': kind})
