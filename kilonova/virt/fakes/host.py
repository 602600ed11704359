"""The fake host with its resources, and its devices."""

from __future__ import annotations

import json
import uuid as uuidlib
from collections.abc import Iterable, Mapping
from typing import Any

from kilonova import objects
from kilonova.pci import carved
from kilonova.pci.device import MDEV, VGPU_TYPE
from kilonova.virt import inventory
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.host import Inventories, Listener


def _line(parents: Mapping[str, str | None], address: str) -> list[str]:
    """Return a device's address, its parent's address, the address of the parent's parent, and so on."""
    found: list[str] = []
    one: str | None = address
    while one is not None and one not in found:
        found.append(one)
        one = parents.get(one)
    return found


class FakeHost(FakePart):
    """Fake of ``parts.host.Host``."""

    def listen(self, listener: Listener) -> None:
        """Store the listener for events of guests.

        The fake has no hypervisor that sends events. Tests call the listener themselves.
        """
        self.fake.listener = listener

    @scripted
    def init_host(self) -> None:
        """Delete server directories whose deletion was not completed."""
        for name in [name for name in self.fake.directories if name.endswith('_del')]:
            del self.fake.directories[name]

    @scripted
    def get_available_resource(self) -> dict[str, Any]:
        """Return the fake host's resources and PCI devices."""
        used = sum(disk.root_gb + disk.ephemeral_gb for disk in self.fake.directories.values())
        return {
            'supported_instances': [['x86_64', 'kvm', 'hvm'], ['x86_64', 'qemu', 'hvm']],
            'vcpus': self.fake.vcpus,
            'memory_mb': self.fake.memory_mb,
            'local_gb': self.fake.local_gb,
            'vcpus_used': 0,
            'memory_mb_used': 0,
            'local_gb_used': used,
            'hypervisor_type': 'FAKE',
            'hypervisor_version': 1,
            'hypervisor_hostname': self.fake.name,
            'uuid': str(uuidlib.uuid5(uuidlib.NAMESPACE_DNS, self.fake.name)),
            'cpu_info': json.dumps(
                {
                    'arch': 'x86_64',
                    'model': 'fake',
                    'vendor': 'fake',
                    'features': [],
                    'topology': {'cells': 1, 'sockets': 1, 'cores': self.fake.vcpus, 'threads': 1},
                }
            ),
            'disk_available_least': self.fake.local_gb - used,
            'numa_topology': None,
            'stats': {},
            'pci_passthrough_devices': self._devices(),
        }

    def _devices(self) -> list[dict[str, Any]]:
        functions = {device['address']: dict(device) for device in self.fake.pci_devices}
        for address, function in functions.items():
            if 'mdev_types' in function:
                function['mdev_types'] = self.fake.mdev_types(address)
        return [
            *functions.values(),
            *(
                {
                    'dev_id': f'mdev_{uuid.replace("-", "_")}',
                    'address': uuid,
                    'dev_type': MDEV,
                    'parent_addr': parent,
                    'mdev_type': type_,
                    'capabilities': {},
                    **{key: functions[parent].get(key) for key in ('vendor_id', 'product_id', 'numa_node', 'label')},
                }
                for uuid, (parent, type_) in sorted(self.fake.mdevs.items())
                if parent in functions
            ),
        ]

    def inventory(self, existing: Inventories | None = None) -> Inventories:
        """Return the inventory of the fake host's resources."""
        return inventory.root(self.fake.conf, self.fake.vcpus, self.fake.memory_mb, self.fake.local_gb, existing)

    def traits(self) -> set[str]:
        """Return the traits that all drivers have."""
        return set(inventory.COMMON_TRAITS)

    @scripted
    def uptime(self) -> str | None:
        """Return a fixed text that looks like the output of ``uptime``."""
        return ' 10:00:00 up 1 day,  2:03,  0 users,  load average: 0.00, 0.01, 0.05'


class FakeDevices(FakePart):
    """Fake of ``parts.host.Devices``."""

    @scripted
    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        """Remove these mediated devices, except those that a domain uses."""
        used = {address for domain in self.fake.domains.values() for address in domain.hostdevs}
        for uuid in set(uuids) - used:
            self.fake.mdevs.pop(uuid, None)

    @scripted
    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return {address: (vendor id, product id)} of existing PCI functions."""
        wanted = set(addresses)
        return {
            one['address']: (one['vendor_id'], one['product_id'])
            for one in self.fake.pci_devices
            if one['address'] in wanted
        }

    @scripted
    def missing_devices(self, devices: Iterable[objects.PciDevice]) -> list[str]:
        """Return the addresses of devices that do not exist.

        A mediated device is missing only if its parent does not support its type.
        """
        return [device.address for device in devices if not self._has(device)]

    @scripted
    def unusable(self, devices: Iterable[objects.PciDevice]) -> dict[str, str]:
        """Return {address: reason} for devices that cannot be given to a guest.

        These are devices for which a test has set ``FakeState.unusable``, and virtual functions whose vGPU type is not
        the type in their row in pci_devices.
        """
        types = {function['address']: function.get(VGPU_TYPE) for function in self.fake.pci_devices}
        found = {}
        for device in devices:
            why = self.fake.unusable.get(device.address) or carved.problem(
                types.get(device.address), (device.extra_info or {}).get(VGPU_TYPE)
            )
            if why is not None:
                found[device.address] = why
        return found

    @scripted
    def related(self, devices: Iterable[objects.PciDevice]) -> dict[str, frozenset[str]]:
        """Return a dict from each device's address to a set: the device, all its parents, and all its descendants."""
        parents = {function['address']: function.get('parent_addr') for function in self.fake.pci_devices}
        parents |= {uuid: parent for uuid, (parent, _type) in self.fake.mdevs.items()}
        found = {}
        for device in devices:
            # Add the device itself with its ``parent_addr``: it may be a mediated device that was not created yet.
            own = parents | {device.address: parents.get(device.address) or getattr(device, 'parent_addr', None)}
            found[device.address] = frozenset(
                {*_line(own, device.address), *(one for one in own if device.address in _line(own, one))}
            )
        return found

    def _has(self, device: objects.PciDevice) -> bool:
        if device.dev_type == MDEV:
            return device.address in self.fake.mdevs or (
                device.extra_info['mdev_type'] in self.fake.mdev_types(device.parent_addr)
            )
        return any(device.address == function['address'] for function in self.fake.pci_devices)
