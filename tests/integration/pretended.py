"""A machine with H100s that isn't there: a /sys for a private libvirtd, the kernel's part of it, and a QEMU that takes
a harmless device in place of each passed-through one.

    machine = Pretended(directory, GPUS)
    Libvirtd(directory, machine)        # mounts it, in its own namespace
    machine.driver_of('0000:3b:00.0')   # 'nvidia', 'vfio-pci' while a guest has it

libvirt's own work is real: node devices, IOMMU groups, managed devices, who has which. What only a kernel with VFIO has
is not: the guest sees QEMU's ``edu`` device at the place of its GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA, H100 = 0x10DE, 0x2330
VFIO = 'vfio-pci'
# What of the true /sys libvirt and QEMU go on seeing.
_TRUE = ('devices/system', 'devices/virtual', 'module', 'kernel/mm', 'fs/cgroup')
_ADDRESS = re.compile(rb'[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')

_QEMU = """#!{python} -S
import json, os, sys
given = sys.argv[1:]
for place, value in enumerate(given):
    if place and given[place - 1] == '-device' and value.startswith('{{'):
        device = json.loads(value)
        if device['driver'] == 'vfio-pci':
            if not os.path.exists(device.get('sysfsdev') or '/sys/bus/pci/devices/' + device['host']):
                sys.exit('no such host device')
            kept = {{name: device[name] for name in ('id', 'bus', 'addr') if name in device}}
            given[place] = json.dumps({{'driver': 'edu', **kept}})
os.execv({qemu!r}, [{qemu!r}, *given])
"""
# The guest's memory would have to be locked, which a root without CAP_SYS_RESOURCE may not allow.
_LOCKING = """
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int prlimit(pid_t pid, __rlimit_resource_t what, const struct rlimit *new, struct rlimit *old) {
    return syscall(SYS_prlimit64, pid, what, what == RLIMIT_MEMLOCK ? (void *) 0 : new, old);
}
int prlimit64(pid_t pid, __rlimit_resource_t what, const struct rlimit64 *new, struct rlimit64 *old) {
    return prlimit(pid, what, (const struct rlimit *) new, (struct rlimit *) old);
}
"""


@dataclass(frozen=True)
class Function:
    """A PCI function; ``physical``: whose VF it is, ``most``: how many VFs it could have; ``mdevs``: its mediated
    devices, {uuid: (type, IOMMU group)}."""

    address: str
    group: int
    numa: int = 0
    product: int = H100
    driver: str | None = 'nvidia'
    physical: str | None = None
    most: int = 0
    mdevs: Mapping[str, tuple[str, int]] = field(default_factory=dict)


# Two cards on each of two NUMA cells; the last of them has two VFs. Another has two vGPUs, and room for none.
GPUS = (
    Function('0000:3a:00.0', 41),
    Function('0000:3b:00.0', 42),
    Function('0000:b9:00.0', 43, numa=1),
    Function('0000:ba:00.0', 44, numa=1, most=16),
    Function('0000:ba:00.4', 45, numa=1, driver=None, physical='0000:ba:00.0'),
    Function('0000:ba:00.5', 46, numa=1, driver=None, physical='0000:ba:00.0'),
    Function(
        '0000:3c:00.0',
        47,
        mdevs={
            'c2177883-f1bb-47f0-914d-32a22e3a8804': ('nvidia-1145', 51),
            'c2177883-f1bb-47f0-914d-32a22e3a8805': ('nvidia-1145', 52),
        },
    ),
)


class Pretended:
    """Below ``directory``; ``start`` and ``end`` are called by its Libvirtd."""

    def __init__(self, directory: Path, functions: Sequence[Function] = GPUS) -> None:
        missing = [name for name in ('gcc', 'qemu-system-x86_64') if shutil.which(name) is None]
        assert not missing, f'not installed: {", ".join(missing)}'
        self._sys, self._bin, self._functions = directory / 'sys', directory / 'bin', functions
        # To be loaded into libvirtd.
        self.shim = self._bin / 'locking.so'
        for path in (
            *_TRUE,
            'bus/pci/devices',
            'bus/pci/slots',
            'bus/mdev/devices',
            'class/mdev_bus',
            'class/net',
            'kernel/iommu_groups',
            'kernel/security',
        ):
            (self._sys / path).mkdir(parents=True)
        self._pci = self._sys / 'bus/pci'
        for name in ('nvidia', VFIO):
            (self._pci / 'drivers' / name).mkdir(parents=True)
            os.mkfifo(self._pci / 'drivers' / name / 'unbind')
        os.mkfifo(self._pci / 'drivers_probe')
        for function in functions:
            self._add(function)
        self._bin.mkdir()
        qemu = shutil.which('qemu-system-x86_64')
        (self._bin / 'qemu-system-x86_64').write_text(_QEMU.format(python=sys.executable, qemu=qemu))
        (self._bin / 'qemu-system-x86_64').chmod(0o755)
        subprocess.run(
            ['gcc', '-shared', '-fPIC', '-x', 'c', '-o', str(self.shim), '-'], input=_LOCKING, text=True, check=True
        )
        self._stopping = threading.Event()
        self._kernel = threading.Thread(target=self._work, daemon=True)
        self._made_vfio = not Path('/dev/vfio').exists()

    def _home(self, function: Function) -> Path:
        return self._sys / f'devices/pci{function.address[:7]}' / function.address

    def _add(self, function: Function) -> None:
        home, group = self._home(function), self._sys / f'kernel/iommu_groups/{function.group}'
        home.mkdir(parents=True)
        (group / 'devices').mkdir(parents=True)
        texts = {
            'vendor': f'{NVIDIA:#06x}',
            'device': f'{function.product:#06x}',
            'class': '0x030200',
            'irq': '0',
            'subsystem_vendor': f'{NVIDIA:#06x}',
            'subsystem_device': '0x16c1',
            'revision': '0xa1',
            'enable': '0',
            'numa_node': str(function.numa),
            'driver_override': '(null)',
            'resource': '0x0 0x0 0x0\n' * 12,
        }
        if function.most:
            mine = [other for other in self._functions if other.physical == function.address]
            texts |= {'sriov_totalvfs': str(function.most), 'sriov_numvfs': str(len(mine))}
            for number, other in enumerate(mine):
                _link(self._home(other), home / f'virtfn{number}')
        for name, text in texts.items():
            (home / name).write_text(f'{text}\n')
        (home / 'config').write_bytes(_configuration(function))
        (home / 'uevent').write_text(
            f'PCI_CLASS=30200\nPCI_ID={NVIDIA:04X}:{function.product:04X}\nPCI_SLOT_NAME={function.address}\n'
        )
        (home / 'reset').touch()
        _link(self._pci, home / 'subsystem')
        _link(home, self._pci / 'devices' / function.address)
        _link(home, group / 'devices' / function.address)
        _link(group, home / 'iommu_group')
        if function.physical:
            _link(self._sys / f'devices/pci{function.physical[:7]}' / function.physical, home / 'physfn')
        self._bind(function, function.driver)
        for uuid, (mdev_type, number) in function.mdevs.items():
            self._add_mdev(home, uuid, mdev_type, number)

    def _add_mdev(self, card: Path, uuid: str, mdev_type: str, number: int) -> None:
        kind, bus = card / 'mdev_supported_types' / mdev_type, self._sys / 'bus/mdev'
        home, group = card / uuid, self._sys / f'kernel/iommu_groups/{number}'
        if not kind.exists():
            (kind / 'devices').mkdir(parents=True)
            for name, text in {
                'name': f'NVIDIA {mdev_type}',
                'device_api': 'vfio-pci',
                'available_instances': '0',
                'description': '',
            }.items():
                (kind / name).write_text(f'{text}\n')
            _link(card, self._sys / 'class/mdev_bus' / card.name)
        home.mkdir()
        (group / 'devices').mkdir(parents=True)
        (home / 'uevent').write_text('DRIVER=nvidia-vgpu-vfio\nMODALIAS=mdev:\n')
        for target, path in (
            (bus, home / 'subsystem'),
            (kind, home / 'mdev_type'),
            (home, bus / 'devices' / uuid),
            (home, kind / 'devices' / uuid),
            (home, group / 'devices' / uuid),
            (group, home / 'iommu_group'),
        ):
            _link(target, path)

    # -- the kernel ----------------------------------------------------------------------------------------------------
    def driver_of(self, address: str) -> str | None:
        path = self._pci / 'devices' / address / 'driver'
        return path.resolve().name if path.is_symlink() else None

    def _bind(self, function: Function, driver: str | None) -> None:
        home, before = self._home(function), self.driver_of(function.address)
        if before:
            (home / 'driver').unlink()
            (self._pci / 'drivers' / before / function.address).unlink()
        if driver:
            _link(self._pci / 'drivers' / driver, home / 'driver')
            _link(home, self._pci / 'drivers' / driver / function.address)

    def _work(self) -> None:
        """What is written to ``unbind`` and ``drivers_probe``, done."""
        pipes = [*(self._pci / 'drivers').glob('*/unbind'), self._pci / 'drivers_probe']
        by_address = {function.address.encode(): function for function in self._functions}
        with contextlib.ExitStack() as open_files:
            readers = {}
            for pipe in pipes:
                readers[pipe] = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
                open_files.callback(os.close, readers[pipe])
            while not self._stopping.is_set():
                for pipe, reader in readers.items():
                    with contextlib.suppress(BlockingIOError):
                        for address in _ADDRESS.findall(os.read(reader, 4096)):
                            function = by_address[address]
                            wanted = (self._home(function) / 'driver_override').read_text().strip()
                            self._bind(
                                function,
                                None if pipe.name == 'unbind' else wanted if wanted == VFIO else function.driver,
                            )
                time.sleep(0.005)

    # -- for its libvirtd ----------------------------------------------------------------------------------------------
    def start(self) -> None:
        if not self._kernel.is_alive():
            self._kernel.start()

    def mounts(self) -> str:
        """Shell commands, in libvirtd's own mount namespace."""
        commands = [
            'mkdir -p /dev/vfio',
            'mount -t tmpfs tmpfs /dev/vfio',
            *(
                f'mknod /dev/vfio/{name} c 1 3'
                for name in (
                    'vfio',
                    *(function.group for function in self._functions),
                    *(number for function in self._functions for _, number in function.mdevs.values()),
                )
            ),
            *(f'mount --rbind /sys/{path} {self._sys}/{path}' for path in _TRUE),
            f'mount --rbind {self._sys} /sys',
        ]
        return ' && '.join(commands)

    def environment(self) -> dict[str, str]:
        """Of libvirtd: libudev takes a /sys that is no sysfs, our QEMU is found first."""
        return {'SYSTEMD_DEVICE_VERIFY_SYSFS': '0', 'PATH': f'{self._bin}:{os.environ["PATH"]}'}

    def end(self) -> None:
        self._stopping.set()
        if self._kernel.is_alive():
            self._kernel.join()
        if self._made_vfio:
            with contextlib.suppress(OSError):
                os.rmdir('/dev/vfio')


def _link(target: Path, path: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def _configuration(function: Function) -> bytes:
    """PCI configuration space: an endpoint with power management and a PCI Express capability that can be reset."""
    space = bytearray(4096)
    struct.pack_into('<HHHHI', space, 0, NVIDIA, function.product, 0x0006, 0x0010, 0x030200A1)
    space[0x34] = 0x40
    struct.pack_into('<BBHH', space, 0x40, 0x01, 0x60, 0x0003, 0x0008)
    struct.pack_into('<BBHI', space, 0x60, 0x10, 0x00, 0x0002, 0x10008000)
    return bytes(space)
