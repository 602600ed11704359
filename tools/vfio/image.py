"""Builds the nested machine, once: a kernel, a ramdisk, and a root disk with libvirtd and QEMU.

    image = build(Path('build/vfio'))
    image.kernel, image.ramdisk, image.disk      # paths

Debian's kernel of the installed headers, with a module of mediated devices (vgpu.py) from its own sources; the root is
debootstrap's. What takes minutes is the disk: the ramdisk brings the programs of this directory into it. Needs root.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.cloud.layout import CloudError
from tools.cloud.machine import GROUP, QEMU_CONF, USER
from tools.guest.image import BUSYBOX, alone, module_files, ramdisk, run, unpack, unpacked_kernel
from tools.vfio import vgpu

OURS = Path(__file__).parent
PROGRAMS = {'init': OURS / 'ramdisk-init', 'nested-init': OURS / 'init'}
# What the target installs by bindep.txt's profile vfio: program, package.
NEEDED = {
    'apt-get': 'apt',
    'apt-cache': 'apt',
    'dpkg-deb': 'dpkg',
    'depmod': 'kmod',
    'modprobe': 'kmod',
    'cpio': 'cpio',
    'debootstrap': 'debootstrap',
    'gcc': 'gcc',
    'make': 'make',
    'strip': 'binutils',
    'tar': 'tar',
    'xz': 'xz-utils',
    'mke2fs': 'e2fsprogs',
    'qemu-img': 'qemu-utils',
    'qemu-system-x86_64': 'qemu-system-x86',
    'setpriv': 'util-linux',
    'chroot': 'coreutils',
}
HEADERS, SOURCES = 'linux-headers-amd64', 'linux-source'
RELEASE = 'bookworm'
PACKAGES = (
    'libvirt-daemon',
    'libvirt-daemon-driver-qemu',
    'libvirt-clients',
    'qemu-system-x86',
    'qemu-utils',
    'kmod',
    'iproute2',
    'pciutils',
    'udev',
    'mdevctl',
)
# Those of its root, and those by which the ramdisk gets there.
MODULES = (
    'vfio-pci',
    'vfio_iommu_type1',
    'vfio',
    'mdev',
    'kvm-amd',
    'nvme',
    'virtio_net',
    'virtio_blk',
    'virtio_pci',
    '9p',
    '9pnet_virtio',
    'ext4',
)
FIRST_MODULES = ('virtio_pci', 'virtio_blk', 'ext4')
COMMANDS = ('sh', 'mount', 'mkdir', 'cat', 'echo', 'sleep', 'insmod', 'cp', 'poweroff', 'switch_root')
# MiB of the root disk (sparse), and what the building needs beside it, free.
DISK, FREE = 1200, 4000
LIBVIRTD_CONF = """listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
auth_unix_rw = "none"
auth_unix_ro = "none"
unix_sock_group = "root"
log_outputs = "3:file:/var/log/libvirtd.log"
"""


@dataclass(frozen=True)
class Image:
    """Files: the disk of one directory, kernel and ramdisk of another."""

    disk: Path
    directory: Path

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.directory / 'vmlinuz'

    @property
    def ramdisk(self) -> Path:
        """The ramdisk with which the nested machine starts."""
        return self.directory / 'initrd.gz'


def build(directory: Path) -> Image:
    """Return the image below ``directory``, made unless it is there from the same sources.

    Raises CloudError if something that it is made from is missing.
    """
    directory = directory.resolve()
    check_programs()
    with alone(directory):
        kernel = _kernel(directory)
        disk = directory / f'root-{_digest(kernel.name, OURS / "vgpu.py", OURS / "image.py")}.qcow2'
        if not disk.exists():
            free = shutil.disk_usage(directory).free >> 20
            if free < FREE:
                raise CloudError(f'{directory} has {free} MiB of room, the nested machine needs {FREE} MiB to be built')
            with tempfile.TemporaryDirectory(dir=directory, prefix='.making-') as scratch:
                _make_disk(kernel, Path(scratch), disk)
            _forget(directory.glob('root-*.qcow2'), disk)
        image = Image(disk, directory / f'boot-{_digest(kernel.name, BUSYBOX, *PROGRAMS.values())}')
        if not image.ramdisk.exists():
            image.directory.mkdir(exist_ok=True)
            _forget(directory.glob('boot-*'), image.directory)
            shutil.copyfile(next((kernel / 'boot').glob('vmlinuz-*')), image.kernel)
            packed = ramdisk(kernel, image.directory, PROGRAMS, FIRST_MODULES, COMMANDS)
            aside = image.ramdisk.with_suffix('.new')
            aside.write_bytes(packed)
            aside.replace(image.ramdisk)
    return image


def check_programs() -> None:
    """Raise CloudError with the packages to install if a program is missing."""
    path = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    missing = {package for name, package in NEEDED.items() if shutil.which(name, path=path) is None}
    if not BUSYBOX.exists():
        missing.add('busybox-static')
    if not _headers():
        missing.add(HEADERS)
    if missing:
        raise CloudError(f'the nested machine lacks {", ".join(sorted(missing))}; make bootstrap-vfio installs it')
    if os.geteuid() != 0:
        raise CloudError('the nested machine is built and run by root')


def _headers() -> list[str]:
    """Return the versions whose headers are installed, such as 6.1.0-56-amd64, the newest first."""
    found = [
        path.name.removeprefix('linux-headers-')
        for path in Path('/usr/src').glob('linux-headers-6.1.*-amd64')
        if 'cloud' not in path.name and 'rt' not in path.name
    ]
    return sorted(found, key=lambda name: [int(part) for part in re.findall(r'\d+', name)], reverse=True)


def _forget(made: Iterable[Path], kept: Path) -> None:
    """Remove what was made from other sources."""
    for path in made:
        if path.is_dir() and path != kept:
            shutil.rmtree(path)
        elif path != kept:
            path.unlink()


def _digest(name: str, *paths: Path) -> str:
    total = hashlib.sha256(name.encode())
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def _kernel(directory: Path) -> Path:
    """Return the unpacked kernel of the newest headers, or the one that is there already, however old."""
    found = sorted(directory.glob('linux-image-*'))
    return found[-1] if found else unpacked_kernel(directory, f'linux-image-{_headers()[0]}')


def _make_disk(kernel: Path, scratch: Path, disk: Path) -> None:
    version, root = kernel.name.removeprefix('linux-image-'), scratch / 'root'
    module = _module(version, scratch)
    # 1. Packages. Their own scripts make no user for libvirtd; that is the package of a whole host's.
    run(['debootstrap', '--variant=minbase', f'--include={",".join(PACKAGES)}', RELEASE, str(root), _mirror()], scratch)
    for name, line in (('passwd', USER), ('group', GROUP)):
        with (root / 'etc' / name).open('a') as file:
            file.write(line)
    run(['chroot', str(root), 'apt-get', 'clean'], scratch)
    for name in ('var/lib/apt/lists', 'usr/share/doc', 'usr/share/man', 'usr/share/locale', 'usr/share/info'):
        shutil.rmtree(root / name, ignore_errors=True)
    # 2. Modules.
    theirs, ours = kernel / 'lib/modules' / version, root / 'lib/modules' / version
    shutil.rmtree(root / 'lib/modules', ignore_errors=True)
    for path in (
        *module_files(kernel, MODULES),
        *(theirs / f'modules.{name}' for name in ('builtin', 'order', 'builtin.modinfo')),
    ):
        kept = ours / path.relative_to(theirs)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    (ours / 'extra').mkdir()
    shutil.copy(module, ours / 'extra')
    run(['depmod', '-b', str(root), version], scratch)
    # 3. libvirtd.
    (root / 'etc/libvirt').mkdir(exist_ok=True)
    (root / 'etc/libvirt/qemu.conf').write_text(QEMU_CONF)
    (root / 'etc/libvirt/libvirtd.conf').write_text(LIBVIRTD_CONF)
    # 4. A disk.
    run(['mke2fs', '-q', '-t', 'ext4', '-d', str(root), 'root.img', f'{DISK}M'], scratch)
    run(['qemu-img', 'convert', '-O', 'qcow2', '-c', 'root.img', 'root.qcow2'], scratch)
    (scratch / 'root.qcow2').rename(disk)


def _mirror() -> str:
    """Return the mirror of this machine's own packages."""
    lines = run(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(CODENAME)'], Path('/')).splitlines()
    found = [line.split()[0] for line in lines if line.split()[1:] == [RELEASE]]
    if not found:
        raise CloudError(f'apt has no packages of {RELEASE}, of which the nested machine is (apt-get update first?)')
    return found[0]


def _module(version: str, scratch: Path) -> Path:
    """Compile the module of vgpu.py."""
    match = re.search(r'Depends: (linux-source-\S+)', run(['apt-cache', 'depends', SOURCES], scratch))
    if match is None:
        raise CloudError(f'apt has no {SOURCES}: the mediated devices are built from it (apt-get update first?)')
    unpack(match[1], scratch)
    (sources,) = (scratch / 'unpacked/usr/src').glob('linux-source-*.tar.xz')
    sample = f'{match[1]}/samples/vfio-mdev/mtty.c'
    run(['tar', '-xJf', str(sources), '--occurrence=1', sample], scratch)
    where = scratch / 'module'
    where.mkdir()
    (where / f'{vgpu.NAME}.c').write_text(vgpu.source((scratch / sample).read_text()))
    (where / 'Makefile').write_text(f'obj-m := {vgpu.NAME}.o\n')
    run(['make', '-s', '-C', f'/usr/src/linux-headers-{version}', f'M={where}', 'modules'], scratch)
    run(['strip', '--strip-debug', f'{vgpu.NAME}.ko'], where)
    return where / f'{vgpu.NAME}.ko'
