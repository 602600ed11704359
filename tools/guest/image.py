"""Builds the test guest, once: as kernel and ramdisk, and as a disk that boots (syslinux).

    guest = image.build(Path('build/guest'))
    guest.disk, guest.kernel, guest.ramdisk, guest.blank     # paths
    image.kvm_works(guest)                                   # whether it boots by KVM on this machine

The kernel is Debian's for clouds, downloaded and unpacked below the directory (26 MB), never installed; the ramdisk has
a static busybox, the modules that its devices need and ``init``, which see. Nothing of it needs root.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cloud.layout import CloudError

INIT, NET = Path(__file__).with_name('init'), Path(__file__).with_name('net')
BUSYBOX = Path('/bin/busybox')
NEEDED = (
    'apt-get',
    'apt-cache',
    'dpkg-deb',
    'depmod',
    'modprobe',
    'cpio',
    'syslinux',
    'mcopy',
    'mkfs.vfat',
    'qemu-img',
    'qemu-system-x86_64',
)
PACKAGE = 'linux-image-cloud-amd64'
MODULES = (
    'virtio_pci',
    'virtio_blk',
    'virtio_scsi',
    'virtio_net',
    'virtio_balloon',
    'virtio-rng',
    'sr_mod',
    'sd_mod',
    'ata_piix',
    'isofs',
    'vfat',
    'nls_cp437',
    'nls_iso8859-1',
    'nls_utf8',
    'nls_ascii',
    'button',
    'evdev',
)
COMMANDS = (
    'sh',
    'mount',
    'umount',
    'mkdir',
    'ls',
    'cat',
    'echo',
    'sleep',
    'poweroff',
    'insmod',
    'grep',
    'sed',
    'awk',
    'dd',
    'head',
    'sort',
    'tr',
    'wc',
    'basename',
    'sync',
    'printf',
    'acpid',
    'find',
    'uname',
    'chmod',
    'ip',
    'udhcpc',
    'ping',
    'nc',
    'timeout',
)
COMMAND_LINE = 'console=tty0 console=ttyS0 quiet panic=1'
# MiB of the disk and of its boot partition; the guest's record of its boots stands between their ends.
DISK, BOOT = 32, 22
_SYSLINUX = f"""SERIAL 0 115200
DEFAULT guest
LABEL guest
 KERNEL vmlinuz
 APPEND initrd=initrd.gz {COMMAND_LINE}
"""
# Seconds in which a guest by KVM has to say that it is ready; an emulated one needs 4 of its own.
KVM_WITHIN = 20.0


@dataclass(frozen=True)
class Guest:
    """Files in one directory: ``disk`` boots by itself, ``blank`` is an empty disk for kernel and ramdisk."""

    directory: Path

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.directory / 'vmlinuz'

    @property
    def ramdisk(self) -> Path:
        """The ramdisk with which the guest starts."""
        return self.directory / 'initrd.gz'

    @property
    def disk(self) -> Path:
        """The disk that boots by itself."""
        return self.directory / 'disk.qcow2'

    @property
    def blank(self) -> Path:
        """The empty disk that is used with ``kernel`` and ``ramdisk``."""
        return self.directory / 'blank.qcow2'


def build(directory: Path) -> Guest:
    """Return the guest below ``directory``, made unless it is there from the same sources.

    Raises CloudError if something that it is made from is missing.
    """
    directory = directory.resolve()
    missing = [name for name in NEEDED if shutil.which(name) is None and not Path('/sbin', name).exists()]
    if not BUSYBOX.exists():
        missing.append('busybox-static')
    if missing:
        raise CloudError(f'not installed: {", ".join(missing)}; make bootstrap-guests installs it')
    with alone(directory):
        kernel = unpacked(directory)
        total = hashlib.sha256(kernel.name.encode() + BUSYBOX.read_bytes())
        for path in (INIT, NET, Path(__file__)):
            total.update(path.read_bytes())
        guest = Guest(directory / total.hexdigest()[:16])
        if not guest.directory.exists():
            aside = Path(tempfile.mkdtemp(dir=directory, prefix='.making-'))
            try:
                _make(Guest(aside), kernel)
                aside.chmod(0o755)
                aside.rename(guest.directory)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return guest


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Let one process at a time build below a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(argv: Sequence[str], cwd: Path, text: str | None = None) -> str:
    """Run a program and return its output. Raises CloudError with that if it fails."""
    path = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    done = subprocess.run(
        list(argv),
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, 'PATH': path, 'LC_ALL': 'C'},
    )
    if done.returncode:
        raise CloudError(f'{" ".join(argv[:4])} failed: {(done.stderr or done.stdout).strip()[-800:]}')
    return done.stdout


def unpacked(directory: Path) -> Path:
    """Return the unpacked kernel package below a directory; the one that is there already, however old it is.

    Raises CloudError if apt does not have the package.
    """
    found = sorted(directory.glob('linux-image-*'))
    if found:
        return found[-1]
    match = re.search(r'Depends: (linux-image-\S+)', run(['apt-cache', 'depends', PACKAGE], directory))
    if match is None:
        raise CloudError(f"apt has no {PACKAGE}: the test guest is built from Debian's kernel (apt-get update first?)")
    return unpacked_kernel(directory, match[1])


def unpacked_kernel(directory: Path, name: str) -> Path:
    """Download and unpack a kernel package of Debian's as ``directory``/``name``; return that directory."""
    with tempfile.TemporaryDirectory(dir=directory, prefix='.kernel-') as scratch:
        unpack(name, Path(scratch))
        version = (next((Path(scratch) / 'unpacked/lib/modules').iterdir())).name
        run(['depmod', '-b', 'unpacked', version], Path(scratch))
        return (Path(scratch) / 'unpacked').rename(directory / name)


def unpack(name: str, scratch: Path) -> None:
    """Download a package of Debian's and unpack it as ``scratch``/unpacked."""
    run(['apt-get', 'download', name], scratch)
    (package,) = scratch.glob('*.deb')
    run(['dpkg-deb', '-x', package.name, 'unpacked'], scratch)
    package.unlink()


def _make(guest: Guest, kernel: Path) -> None:
    shutil.copyfile(next((kernel / 'boot').glob('vmlinuz-*')), guest.kernel)
    guest.ramdisk.write_bytes(ramdisk(kernel, guest.directory, {'init': INIT, 'net': NET}, MODULES, COMMANDS))
    where, fat = guest.directory, 'fat.img'
    # 1. The boot partition is the whole front of the disk: syslinux starts from its first sector.
    run(['mkfs.vfat', '-F', '16', '-n', 'BOOT', '-C', fat, str(BOOT << 10)], where)
    (where / 'syslinux.cfg').write_text(_SYSLINUX)
    for name in (guest.kernel.name, guest.ramdisk.name, 'syslinux.cfg'):
        run(['mcopy', '-i', fat, name, f'::{name}'], where)
    run(['syslinux', '--install', fat], where)
    # 2. The disk.
    os.truncate(where / fat, DISK << 20)
    run(['qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', fat, guest.disk.name], where)
    run(['qemu-img', 'create', '-q', '-f', 'qcow2', guest.blank.name, f'{DISK}M'], where)
    for name in (fat, 'syslinux.cfg'):
        (where / name).unlink()


def module_files(kernel: Path, modules: Iterable[str]) -> list[Path]:
    """Return the files of modules and of what they need, in the order in which they load."""
    version = next((kernel / 'lib/modules').iterdir()).name
    found: dict[Path, None] = {}
    for module in modules:
        shown = run(['modprobe', '-d', str(kernel), '-S', version, '--show-depends', module], kernel)
        found |= dict.fromkeys(map(Path, re.findall(r'^insmod (\S+)', shown, re.MULTILINE)))
    return list(found)


def ramdisk(
    kernel: Path, where: Path, programs: Mapping[str, Path], modules: Iterable[str], commands: Iterable[str]
) -> bytes:
    """Return a compressed cpio archive with a busybox.

    ``programs`` is a dict from names there to files, ``init`` among them. /mod/order there lists the modules in /mod.
    """
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        root = Path(scratch)
        for name in ('bin', 'dev', 'proc', 'sys', 'tmp', 'mod', 'etc', 'root'):
            (root / name).mkdir()
        shutil.copy(BUSYBOX, root / 'bin' / 'busybox')
        for name in commands:
            (root / 'bin' / name).symlink_to('busybox')
        for name, path in programs.items():
            shutil.copy(path, root / name)
            (root / name).chmod(0o755)
        order = module_files(kernel, modules)
        for path in order:
            shutil.copy(path, root / 'mod' / path.name)
        (root / 'mod' / 'order').write_text(''.join(f'{path.name}\n' for path in order))
        names = ''.join(f'{path.relative_to(root)}\n' for path in sorted(root.rglob('*')))
        archive = where / 'initrd'
        run(['cpio', '-o', '-H', 'newc', '--quiet', '-R', '0:0', '-F', str(archive)], root, names)
        packed = gzip.compress(archive.read_bytes(), 9, mtime=0)
        archive.unlink()
        return packed


def kvm_works(guest: Guest, directory: Path) -> bool:
    """Return whether KVM runs this guest here. /dev/kvm may open although no guest gets through its boot.

    It is tried once a boot of the machine; ``directory`` keeps the result.
    """
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        return False
    kept = directory / f'kvm-{Path("/proc/sys/kernel/random/boot_id").read_text().strip()}'
    if not kept.exists():
        kept.write_text('works' if boots(guest, 'kvm', KVM_WITHIN) else 'does not work')
    return kept.read_text() == 'works'


def boots(guest: Guest, accelerator: str, within: float) -> bool:
    """Whether kernel and ramdisk come up in QEMU ``within`` so many seconds."""
    child = subprocess.Popen(
        [
            'qemu-system-x86_64',
            '-accel',
            accelerator,
            '-m',
            '128',
            '-nodefaults',
            '-display',
            'none',
            '-no-reboot',
            '-serial',
            'stdio',
            '-kernel',
            str(guest.kernel),
            '-initrd',
            str(guest.ramdisk),
            '-append',
            COMMAND_LINE,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    seen, deadline = b'', time.monotonic() + within
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b'GUEST-READY' not in seen:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return False
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    return False
                seen += data
        return True
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
