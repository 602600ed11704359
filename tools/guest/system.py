"""Build the guest that one can log in to by ssh.

It is a disk with a boot partition (syslinux, kernel, ramdisk) and a root partition (ext4) with a busybox, dropbear, and
the tools that acceptance suites run in guests.

    disk = system.build(Path('build/guest'))      # a qcow2 file
    system.USER                                   # who logs in, with a key from the metadata

What it does when it boots stands in ``files/rc``. ``make tempest GUESTS=qemu`` has it as its image. The root file
system is on the disk, so what is written there is in each copy of the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.cloud.layout import CloudError
from tools.guest import image

USER = 'root'
FILES = Path(__file__).with_name('files')
# Programs of this machine that go along with their libraries, all into /sbin: bindep.txt installs them.
PROGRAMS = ('dropbear', 'lsblk', 'blkid', 'mkfs.ext4', 'mkfs.vfat')
NEEDED = (*image.NEEDED, *PROGRAMS, 'dropbearkey', 'ldd')
# What the root partition is found with, and what the rest of the guest needs.
_FIRST = ('virtio_pci', 'virtio_blk', 'virtio_scsi', 'sd_mod', 'ata_piix')
_THEN = (
    'virtio_net',
    'virtio_balloon',
    'virtio-rng',
    'sr_mod',
    'isofs',
    'vfat',
    'nls_cp437',
    'nls_iso8859-1',
    'nls_utf8',
    'nls_ascii',
    'button',
    'evdev',
)
_COMMANDS = ('sh', 'mount', 'cat', 'echo', 'sleep', 'insmod', 'switch_root', 'poweroff')
COMMAND_LINE = f'{image.COMMAND_LINE} mitigations=off'
_SYSLINUX = f"""SERIAL 0 115200
DEFAULT guest
LABEL guest
 KERNEL vmlinuz
 APPEND initrd=initrd.gz {COMMAND_LINE}
"""
# MiB of the disk: in front of the boot partition, that one, the root partition.
_FRONT, _BOOT, _ROOT = 1, 16, 48
_SECTOR = 512
_MBR = Path('/usr/lib/SYSLINUX/mbr.bin')


def build(directory: Path) -> Path:
    """Return the disk below ``directory``; make it unless it is there from the same sources.

    Raises CloudError with what is not installed, or with what a program said that failed.
    """
    directory = directory.resolve()
    missing = [name for name in NEEDED if _where(name) is None]
    missing += [str(path) for path in (image.BUSYBOX, _MBR) if not path.exists()]
    if missing:
        raise CloudError(f'not installed: {", ".join(missing)}; make bootstrap-guests installs it')
    with image.alone(directory):
        kernel = image.unpacked(directory)
        total = hashlib.sha256(kernel.name.encode() + image.BUSYBOX.read_bytes())
        for path in (*sorted(FILES.iterdir()), Path(__file__)):
            total.update(path.read_bytes())
        made = directory / f'system-{total.hexdigest()[:16]}.qcow2'
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=directory, prefix='.making-') as scratch:
                _make(Path(scratch), kernel).rename(made)
    return made


def _where(name: str) -> Path | None:
    """Return the path of a program, or None; those of administrators count, whoever asks."""
    found = shutil.which(name, path=f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin')
    return Path(found).resolve() if found else None


def _make(where: Path, kernel: Path) -> Path:
    """Return the disk, made from a kernel package in an empty directory."""
    shutil.copyfile(next((kernel / 'boot').glob('vmlinuz-*')), where / 'vmlinuz')
    (where / 'initrd.gz').write_bytes(image.ramdisk(kernel, where, {'init': FILES / 'init'}, _FIRST, _COMMANDS))
    (where / 'syslinux.cfg').write_text(_SYSLINUX)
    image.run(
        ['mkfs.vfat', '-F', '16', '-h', str(_sectors(_FRONT)), '-n', 'BOOT', '-C', 'boot', str(_BOOT << 10)], where
    )
    for name in ('vmlinuz', 'initrd.gz', 'syslinux.cfg'):
        image.run(['mcopy', '-i', 'boot', name, f'::{name}'], where)
    image.run(['syslinux', '--install', 'boot'], where)
    root = where / 'tree'
    _furnish(root, kernel)
    # Without checksums of metadata: a guest of emulated processors computes them for long.
    image.run(
        [
            'mkfs.ext4',
            '-q',
            '-O',
            '^metadata_csum',
            '-L',
            'root',
            '-E',
            'root_owner=0:0',
            '-d',
            str(root),
            'root',
            f'{_ROOT}M',
        ],
        where,
    )
    with (where / 'disk').open('wb') as disk:
        disk.write(_first_sector())
        for name, start in (('boot', _FRONT), ('root', _FRONT + _BOOT)):
            disk.seek(start << 20)
            disk.write((where / name).read_bytes())
        disk.truncate(_FRONT + _BOOT + _ROOT << 20)
    image.run(['qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', '-c', 'disk', 'disk.qcow2'], where)
    return where / 'disk.qcow2'


def _sectors(mebibytes: int) -> int:
    return (mebibytes << 20) // _SECTOR


def _first_sector() -> bytes:
    """Return the master boot record: the code that starts the active partition, and the table of both."""
    code = _MBR.read_bytes()[:440].ljust(446, b'\0')
    table = b''.join(
        struct.pack('<B3sB3sII', active, b'\xfe\xff\xff', kind, b'\xfe\xff\xff', _sectors(start), _sectors(size))
        for active, kind, start, size in ((0x80, 0x0E, _FRONT, _BOOT), (0, 0x83, _FRONT + _BOOT, _ROOT))
    )
    return code + table.ljust(64, b'\0') + b'\x55\xaa'


def _furnish(root: Path, kernel: Path) -> None:
    """Write the tree of the root file system into ``root``, which must not exist."""
    for name in (
        'bin',
        'sbin',
        'dev',
        'proc',
        'sys',
        'run',
        'tmp',
        'mnt',
        'media',
        'mod',
        'etc/acpi/PWRF',
        'root/.ssh',
        'var/lib',
        'var/log',
        'usr',
        'lib64',
        'home',
    ):
        (root / name).mkdir(parents=True)
    (root / 'tmp').chmod(0o1777)
    for name, target in (
        ('usr/bin', '../bin'),
        ('usr/sbin', '../sbin'),
        ('var/run', '../run'),
        ('lib', 'lib64'),
        ('etc/resolv.conf', '/run/resolv.conf'),
        ('etc/mtab', '/proc/mounts'),
    ):
        (root / name).symlink_to(target)
    shutil.copy(image.BUSYBOX, root / 'bin' / 'busybox')
    ours = {
        'rc': 'etc/rc',
        'lease': 'etc/lease',
        'inittab': 'etc/inittab',
        'power': 'etc/acpi/PWRF/00000080',
        'sudo': 'bin/sudo',
        'mkfs': 'sbin/mkfs',
        'curl': 'bin/curl',
    }
    _programs(root)
    for name, there in ours.items():
        shutil.copy(FILES / name, root / there)
        (root / there).chmod(0o755)
    # Both directories have all of busybox's commands, as callers name them by either path.
    for name in image.run([str(image.BUSYBOX), '--list'], root).split():
        for place in ('bin', 'sbin'):
            if not any((root / there / name).exists() for there in ('bin', 'sbin')) or name == 'init':
                (root / place / name).symlink_to('/bin/busybox')
    order = image.module_files(kernel, _THEN)
    for path in order:
        shutil.copy(path, root / 'mod' / path.name)
    loaded = {path.name for path in image.module_files(kernel, _FIRST)}
    (root / 'mod' / 'order').write_text(''.join(f'{path.name}\n' for path in order if path.name not in loaded))
    for name, text in (
        ('passwd', f'{USER}:*:0:0::/root:/bin/sh\n'),
        ('group', 'root:x:0:\n'),
        ('shells', '/bin/sh\n'),
        ('hostname', 'guest\n'),
        ('profile', 'export PATH=/sbin:/bin\n'),
    ):
        (root / 'etc' / name).write_text(text)
    image.run(['dropbearkey', '-t', 'ed25519', '-f', 'etc/host.key'], root)


def _programs(root: Path) -> None:
    """Copy PROGRAMS and the libraries that they load; each library lies where its program looks for it."""
    for name in PROGRAMS:
        path = _where(name)
        assert path is not None
        shutil.copy(path, root / 'sbin' / name)
        for library in libraries(image.run(['ldd', str(path)], root)):
            there = root / library.relative_to('/')
            there = root / 'lib64' / there.relative_to(root / 'lib') if there.is_relative_to(root / 'lib') else there
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, there)


def libraries(listed: str) -> Iterable[Path]:
    """Return the paths of libraries in what ldd printed."""
    return [Path(found) for found in re.findall(r'(/\S+) \(0x', listed)]
