"""The nested machine: an emulated host with an IOMMU, /dev/kvm and libvirtd, whose devices its guests are given.

    nested = Nested(image, Path('…/nested'), shared=Path('…/var/hosts/vfio1'))
    nested.start()                   # returns when its libvirtd answers; CloudError: what it lacks
    nested.uri                       # qemu+tcp://…: as a compute on this machine calls it
    nested.run('lspci -n')           # what a script of bash prints there
    nested.power_off(); nested.start()     # its root disk is as it was
    nested.end()

The compute runs here, its guests there: ``shared`` has the same path on both. By TCG, which emulates AMD's SVM, too, so
that no KVM is needed on this machine, and guests there run by KVM.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

from tools.cloud import ports
from tools.cloud.layout import CloudError
from tools.vfio.image import Image

# QEMU's edu, which has no driver: what guests are given whole. The last one is on NUMA node 1.
CARD = '1234:11e8'
CARDS = ('0000:00:10.0', '0000:00:11.0', '0000:02:00.0', '0000:42:00.0')
# An NVMe controller with SR-IOV, and its VFs.
NVME = '1b36:0010'
PHYSICAL, VIRTUAL = '0000:01:00.0', ('0000:01:00.1', '0000:01:00.2')
# The card of the vGPUs (vgpu.py), on NUMA node 1.
VGPU_CARD = '0000:41:00.0'
# MiB; the half is a NUMA node's.
MEMORY = 1536
# MiB that have to be free: its memory, and QEMU's own with the code that it made.
FREE = 2600
# Seconds; 25 to 40 on an idle machine of two cores.
UP_WITHIN, DONE_WITHIN = 300.0, 120.0
_DEVICES = (
    'edu,bus=pcie.0,addr=0x10',
    'edu,bus=pcie.0,addr=0x11',
    'pcie-root-port,id=rp1,slot=1,chassis=1,bus=pcie.0,addr=0x14',
    'nvme-subsys,id=subsystem,nqn=subsystem',
    (
        'nvme,id=pf,serial=NESTED,subsys=subsystem,bus=rp1,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,'
        'max_ioqpairs=10,msix_qsize=9'
    ),
    'nvme-ns,drive=nvme,bus=pf,nsid=1',
    'pcie-root-port,id=rp2,slot=2,chassis=2,bus=pcie.0,addr=0x15',
    'edu,bus=rp2',
    'pxb-pcie,id=far,bus_nr=0x40,numa_node=1,bus=pcie.0,addr=0x16',
    'pcie-root-port,id=rp3,slot=3,chassis=3,bus=far,addr=0x0',
    'pci-testdev,bus=rp3',
    'pcie-root-port,id=rp4,slot=4,chassis=4,bus=far,addr=0x1',
    'edu,bus=rp4',
)


class Nested:
    """Below ``directory``; it ends with the process that started it, whatever ends that."""

    def __init__(self, image: Image, directory: Path, shared: Path) -> None:
        self._image, self._directory, self._shared = image, directory.resolve(), shared.resolve()
        self._orders = self._directory / 'orders'
        self._orders.mkdir(parents=True)
        self._shared.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._port = ports.choose({}, ['libvirt'], ours=set(), start=ports.start_for(self._directory))['libvirt']
        self._disk, self._nvme = self._directory / 'disk.qcow2', self._directory / 'nvme.raw'
        self._qemu_img('-b', str(image.disk), '-F', 'qcow2', str(self._disk))
        with self._nvme.open('wb') as file:
            file.truncate(16 << 20)

    def _qemu_img(self, *argv: str) -> None:
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', *argv], check=True)

    @property
    def uri(self) -> str:
        """The URI of the nested libvirtd."""
        return f'qemu+tcp://127.0.0.1:{self._port}/system'

    @property
    def console(self) -> str:
        """The text that the nested machine wrote to its console since its start."""
        path = self._directory / 'console.log'
        return path.read_text(errors='replace') if path.exists() else ''

    @property
    def peak(self) -> int:
        """The most memory that its QEMU had, in MiB."""
        assert self._process is not None
        status = Path(f'/proc/{self._process.pid}/status').read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith('VmHWM:'))) >> 10

    def is_on(self) -> bool:
        """Whether the nested machine runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, vfs: int = len(VIRTUAL)) -> None:
        """Power the nested machine on; its libvirtd answers when this returns.

        ``vfs`` is the number of virtual functions of the NVMe controller, which do not outlive a boot by themselves, as
        on other machines. Raises CloudError if the machine lacks something or does not come up.
        """
        check_memory()
        for path in self._orders.iterdir():
            path.unlink()
        (self._orders / 'shared').write_text(str(self._shared))
        (self._orders / 'vfs').write_text(str(vfs))
        (self._directory / 'console.log').unlink(missing_ok=True)
        with (self._directory / 'qemu.log').open('ab') as log:
            self._process = subprocess.Popen(
                self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + UP_WITHIN
        while 'NESTED-READY' not in (said := self.console):
            if not self.is_on() or time.monotonic() > deadline:
                self.end()
                words = [*said.splitlines()[-20:], *(self._directory / 'qemu.log').read_text().splitlines()[-5:]]
                raise CloudError(
                    '\n'.join([f'the nested machine does not come up within {UP_WITHIN:.0f} s; it said:', *words])
                )
            time.sleep(0.2)
        if lacks := lacking(said):
            self.end()
            raise CloudError(f'the nested machine lacks {", ".join(lacks)}')

    def run(self, script: str) -> str:
        """Run a script of bash on the nested machine and return its output. Raises CloudError if it fails."""
        self._count += 1
        order = self._orders / f'{self._count:06}.sh'
        aside = order.with_suffix('.new')
        aside.write_text(script)
        aside.rename(order)
        deadline, done = time.monotonic() + DONE_WITHIN, order.with_suffix('.rc')
        while not (done.exists() and (code := done.read_text().strip())):
            if not self.is_on() or time.monotonic() > deadline:
                raise CloudError(f'the nested machine did not do: {script}')
            time.sleep(0.05)
        said = order.with_suffix('.out').read_text()
        if code != '0':
            raise CloudError(f'{script}: ended with {code} in the nested machine:\n{said}')
        return said

    def make_vfs(self) -> None:
        """Have the NVMe controller make all its virtual functions. There must be none."""
        self.run(f'echo {len(VIRTUAL)} > /sys/bus/pci/devices/{PHYSICAL}/sriov_numvfs; udevadm settle')

    def driver_of(self, address: str) -> str:
        """Return the driver of a device on the nested machine, '' for none."""
        return self.run(f'basename "$(readlink /sys/bus/pci/devices/{address}/driver)"').strip()

    def power_off(self) -> None:
        """Shut the nested machine down, which writes its disk. Raises CloudError if it does not end in time."""
        assert self._process is not None
        (self._orders / 'poweroff').touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DONE_WITHIN)
            return
        self.end()
        raise CloudError('the nested machine did not power off')

    def end(self) -> None:
        """Kill the nested machine's process if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(DONE_WITHIN)

    def _argv(self) -> list[str]:
        half = f'{MEMORY // 2}M'
        argv = [
            'setpriv',
            '--pdeathsig',
            'KILL',
            'qemu-system-x86_64',
            '-name',
            'nested',
            '-machine',
            'q35',
            '-accel',
            'tcg,thread=multi,tb-size=512',
            '-cpu',
            'EPYC',
            '-smp',
            '2',
            '-m',
            str(MEMORY),
            '-nodefaults',
            '-no-user-config',
            '-display',
            'none',
            '-no-reboot',
            '-serial',
            f'file:{self._directory}/console.log',
            '-kernel',
            str(self._image.kernel),
            '-initrd',
            str(self._image.ramdisk),
            # On a busy machine the timer's interrupts come later than the kernel's own check waits.
            '-append',
            'console=ttyS0 quiet intel_iommu=on iommu=nopt panic=1 net.ifnames=0 no_timer_check',
            '-device',
            'intel-iommu,intremap=on',
            '-drive',
            f'if=none,id=root,file={self._disk},format=qcow2,cache=unsafe',
            '-device',
            'virtio-blk-pci,drive=root,bus=pcie.0,addr=0x2',
            '-drive',
            f'if=none,id=nvme,file={self._nvme},format=raw',
            '-netdev',
            f'user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self._port}-:16509',
            '-device',
            'virtio-net-pci,netdev=net,bus=pcie.0,addr=0x4',
        ]
        for node in range(2):
            argv += [
                '-object',
                f'memory-backend-ram,id=memory{node},size={half}',
                '-numa',
                f'node,nodeid={node},cpus={node},memdev=memory{node}',
            ]
        for place, (name, path) in enumerate((('orders', self._orders), ('shared', self._shared)), 5):
            argv += [
                '-fsdev',
                f'local,id={name},path={path},security_model=none',
                '-device',
                f'virtio-9p-pci,fsdev={name},mount_tag={name},bus=pcie.0,addr={place:#x}',
            ]
        for device in _DEVICES:
            argv += ['-device', device]
        return argv


def lacking(console: str) -> list[str]:
    """Return what tools/vfio/init did not find."""
    return [line.partition('NESTED-LACKS ')[2].strip() for line in console.splitlines() if 'NESTED-LACKS ' in line]


def check_memory() -> None:
    """Raise CloudError if too little memory is free."""
    lines = Path('/proc/meminfo').read_text().splitlines()
    free = next(int(line.split()[1]) >> 10 for line in lines if line.startswith('MemAvailable:'))
    if free < FREE:
        raise CloudError(f'the nested machine needs {FREE} MiB of memory, {free} MiB are free')
