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

from kilonova.errors import HostRejected
from kilonova.states import PowerState
from kilonova.virt.fake import FakeDisk, FakeDomain, FakeDriver, FakeMachine
from kilonova.virt.hardware import numa
from kilonova.virt.hardware.offer import Offer
from tests.simulation.timeline import Timeline

# Usual steps that a call of the driver takes before and after its work; all others take one.
LASTS = {'spawn': 2000, 'migrate_disk_and_power_off': 3000, 'finish_migration': 1500, 'destroy': 300, 'power_off': 1500,
         'power_on': 800, 'reboot': 1500, 'finish_revert_migration': 1200, 'confirm_migration': 100}
# Calls that a hypervisor refuses, and how often, whichever host is asked: {'spawn': 1}. One run a process.
REFUSALS: dict[str, int] = {}
# Calls that write to the disk.
WRITING = frozenset(('spawn', 'migrate_disk_and_power_off', 'finish_migration', 'snapshot'))


def gpu(address: str, product: str = '13f1', **values: Any) -> dict[str, Any]:
    """A whole PCI device as libvirt's driver tells of it."""
    return {'dev_id': 'pci_' + address.replace(':', '_').replace('.', '_'), 'address': address, 'vendor_id': '10de',
            'product_id': product, 'numa_node': 0, 'label': f'label_10de_{product}', 'dev_type': 'type-PCI',
            'capabilities': {}, **values}


class Machine:
    """What is there whether the compute service runs or not. ``cells``: NUMA cells, 0: none."""

    def __init__(self, name: str, devices: Sequence[dict[str, Any]], vcpus: int = 64, cells: int = 0) -> None:
        self.name, self.devices, self.vcpus, self.cells = name, list(devices), vcpus, cells
        self.domains: dict[str, FakeDomain] = {}
        self.copies: dict[str, str] = {}
        self.full = False
        # Seconds that a guest takes to be made; and the servers that a long call works on now.
        self.long = 0.0
        self.at_work: list[str] = []

    def running(self) -> list[FakeDomain]:
        """Guests that run now."""
        return [domain for domain in self.domains.values() if domain.state == PowerState.RUNNING]

    def reboot(self) -> None:
        """No guest is left running."""
        self.domains.clear()


class Driver(FakeDriver):
    """FakeDriver on a Machine. ``disks``: those of all hosts, which share a store."""

    def __init__(self, conf: Any, images: Any, machine: Machine, disks: FakeMachine, timeline: Timeline,
                 changed: Any) -> None:
        super().__init__(conf, images, machine=disks)
        self.box, self._timeline, self._changed = machine, timeline, changed
        self.domains, self.copies = machine.domains, machine.copies
        self.pci_devices, self.vcpus = machine.devices, machine.vcpus

    @contextlib.contextmanager
    def _around(self, name: str, *args: Any) -> Iterator[None]:
        uuid = next((arg.uuid for arg in args if hasattr(arg, 'uuid')), None)
        if uuid is None:
            self._timeline.step()
            yield
            return
        if name != 'get_info':
            self._timeline.tell(f'{name} {uuid[:8]}')
        self._timeline.step(LASTS.get(name, 1))
        if self.box.full and name in WRITING:
            raise OSError(28, 'No space left on device')
        if REFUSALS.get(name):
            REFUSALS[name] -= 1
            self._timeline.tell(f'{name} {uuid[:8]} is refused')
            raise OSError(28, 'No space left on device')
        if self.box.long and name == 'spawn':
            self.box.at_work.append(uuid)
            self._timeline.sleep(self.box.long)
            self.box.at_work.remove(uuid)
        yield
        self._changed(self.conf.host)
        self._timeline.step(LASTS.get(name, 1) * 0.2)

    def prepare_move(self) -> dict[str, Any]:
        """May be refused."""
        self._timeline.step()
        if REFUSALS.get('prepare_move'):
            REFUSALS['prepare_move'] -= 1
            self._timeline.tell('prepare_move is refused')
            raise HostRejected(reason='no room for a disk')
        found: dict[str, Any] = super().prepare_move()
        return found

    def get_available_resource(self) -> dict[str, Any]:
        """With NUMA cells, if there are any."""
        found: dict[str, Any] = super().get_available_resource()
        if self.box.cells:
            cells = numa.spread(self.box.cells, 1, self.vcpus // self.box.cells, 1, self.memory_mb)
            topology = numa.topology_of(cells, Offer.read(self.conf, frozenset(range(self.vcpus))))
            found['numa_topology'] = topology.to_json() if topology is not None else None
        return found

    def _start(self, instance: Any, pci_devices: Any) -> None:
        super()._start(instance, list(pci_devices))


def remains(disks: FakeMachine) -> dict[str, dict[str, FakeDisk]]:
    """What lies on each host's disk."""
    return {host: dict(found) for host, found in disks.disks.items() if found}


def alias(name: str, product: str, kind: str) -> str:
    """A [pci]alias."""
    return json.dumps({'name': name, 'vendor_id': '10de', 'product_id': product, 'device_type': kind})
