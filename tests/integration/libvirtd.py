"""A libvirtd of a test's own, with QEMU guests by TCG: own directories, socket, settings; nothing of the machine's.

    daemon = Libvirtd(directory)
    daemon.start()
    driver = daemon.driver('gpu1')         # a LibvirtDriver
    daemon.kill(); daemon.start()          # guests go on running
    daemon.end()                           # guests, too

libvirtd has its directories compiled in, so it runs in a mount namespace in which those are ours. Needs root, as its
system mode does. The guest is a boot sector: it counts its boots on its disk, says so on its console, and goes on
saying a dot twice a second.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import libvirt

from kilonova.virt.libvirt.driver import LibvirtDriver
from tests.integration.pretended import Pretended
from tests.unit.virt import builders
from tools.cloud.machine import GROUP, QEMU_CONF, USER

PROGRAMS = ('libvirtd', 'qemu-system-x86_64', 'qemu-img', 'unshare')
# 16-bit code, with SeaBIOS: read sector 2, add 1 to its first byte, write it; send the text and that digit to COM1;
# then for ever: nine ticks of 55 ms, a dot.
_CODE = (
    bytes.fromhex(
        '31c08ed88ec08ed0bc007cfcfbb80102bb007eb90200b600cd13fe06007eb80103bb007eb90200b600cd13be617cac84c07405e81c00ebf6'
        'a0007e0430e81200b00ae80d00b90900f4e2fdb02ee80200ebf350bafd03eca82074f858baf803eec3'
    )
    + b'GUEST-BOOT \0'
)
_ETC = ('group', 'passwd', 'nsswitch.conf', 'ld.so.cache', 'hosts', 'localtime')
# The first connection starts QEMU to see what it can do.
WAIT = 120.0


def make_image(path: Path) -> Path:
    """A raw image of 1 MiB that boots; one partition, as images without any are refused."""
    partition = bytes.fromhex('80000200 0c000000 01000000 ff070000')
    sector = _CODE.ljust(446, b'\0') + partition.ljust(64, b'\0') + b'\x55\xaa'
    path.write_bytes(sector.ljust(1 << 20, b'\0'))
    return path


class Libvirtd:
    """Below ``directory``; ``machine``: what it shall take for its hardware, else this one."""

    def __init__(self, directory: Path, machine: Pretended | None = None) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        assert not missing, f'not installed (make test installs them): {", ".join(missing)}'
        assert os.geteuid() == 0, 'libvirtd and QEMU in system mode need root'
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        self._machine = machine
        for name in ('sock', 'run', 'lib/libvirt', 'cache/libvirt', 'log/libvirt', 'etc/libvirt', 'hosts'):
            (directory / name).mkdir(parents=True)
        etc = directory / 'etc'
        for name in _ETC:
            if Path('/etc', name).exists():
                shutil.copy(Path('/etc', name), etc / name)
        with (etc / 'passwd').open('a') as passwd, (etc / 'group').open('a') as group:
            passwd.write(USER)
            group.write(GROUP)
        # Another libvirtd of this machine looks for free ports at the same time: each has some of its own. Runs beside
        # one another have the same seed, so it can't choose.
        first = random.SystemRandom().randrange(20_000, 60_000, 100)
        ports = ''.join(
            f'remote_{kind}_{name} = {port}\n'
            for kind, begin in (('display', 0), ('websocket', 50))
            for name, port in (('port_min', first + begin), ('port_max', first + begin + 49))
        )
        (etc / 'libvirt' / 'qemu.conf').write_text(QEMU_CONF + ports)
        (etc / 'libvirt' / 'libvirtd.conf').write_text(
            f'unix_sock_dir = "{directory}/sock"\nunix_sock_group = "root"\nauth_unix_rw = "none"\n'
            f'auth_unix_ro = "none"\nlog_outputs = "2:file:{directory}/libvirtd.log"\n'
        )
        self.image = make_image(directory / 'image.raw')
        self.images = builders.Images(self.image)

    @property
    def uri(self) -> str:
        return f'qemu+unix:///system?socket={self.directory}/sock/libvirt-sock'

    # -- its life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and wait until it serves."""
        d = self.directory
        script = (
            'mount --make-rprivate / && '
            + ' && '.join(
                f'mount --bind {d}/{ours} {theirs}'
                for ours, theirs in (
                    ('run', '/run'),
                    ('lib', '/var/lib'),
                    ('cache', '/var/cache'),
                    ('log', '/var/log'),
                    ('etc', '/etc'),
                )
            )
            + ' && mkdir -p /run/libvirt'
        )
        started, environment = 'libvirtd', dict(os.environ)
        if self._machine is not None:
            self._machine.start()
            script += f' && {self._machine.mounts()}'
            started = f'env LD_PRELOAD={self._machine.shim} libvirtd'
            environment |= self._machine.environment()
        script += f' && exec {started} -p {d}/libvirtd.pid'
        with (d / 'out').open('ab') as out:
            self.process = subprocess.Popen(
                ['unshare', '-m', 'sh', '-c', script],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment,
            )
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (d / 'out').read_text()
            with contextlib.suppress(libvirt.libvirtError):
                libvirt.open(self.uri).close()
                return
            time.sleep(0.1)
        raise AssertionError(f'libvirtd does not serve: {(d / "libvirtd.log").read_text()[-3000:]}')

    def kill(self) -> None:
        """As when it crashes; guests go on."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """As ``systemctl stop`` does; guests go on."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(WAIT)

    def hang(self) -> None:
        """It accepts and answers nothing until ``go_on``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Nothing is left running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT)
        for path in (self.directory / 'run' / 'libvirt' / 'qemu').glob('*.pid'):
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        if self._machine is not None:
            self._machine.end()

    # -- its users -----------------------------------------------------------------------------------

    def driver(
        self,
        host: str,
        *,
        storage_of: str | None = None,
        pci: dict[str, Any] | None = None,
        switch: str | None = None,
        **options: Any,
    ) -> LibvirtDriver:
        """The driver of a compute; ``init_host`` is still to be called. ``options``: of [libvirt]. ``storage_of``:
        another compute, whose instances_path it shares. ``switch``: where Open vSwitch has its database."""
        hosts = self.directory / 'hosts'
        return LibvirtDriver(
            builders.new_conf(
                hosts,
                host,
                instances_path=str(hosts / (storage_of or host) / 'instances'),
                libvirt={'connection_uri': self.uri, 'virt_type': 'qemu', **options},
                pci=pci or {},
                os_vif_ovs={'ovsdb_connection': switch} if switch else {},
            ),
            self.images,
        )

    def console(self, host: str, uuid: str) -> str:
        """What the guest has said since its start."""
        path = self.directory / 'hosts' / host / 'instances' / uuid / 'console.log'
        return path.read_text(errors='replace') if path.exists() else ''

    def pid_of(self, name: str) -> int:
        """The QEMU of a guest."""
        return int((self.directory / 'run' / 'libvirt' / 'qemu' / f'{name}.pid').read_text())
